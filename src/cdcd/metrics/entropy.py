"""Entropy, diversity and repetition of generated text, measured without another model (§6.2).

A text is an array of tokens with a mask, True at the positions that count. With n(v) the count of
token v among all N positions that count, the paper's unigram entropy is

    H = -Σ_v n(v)/N · ln n(v)/N.

H and the shares of distinct n-grams depend on N, so they are compared at equal N only. An n-gram is
n adjacent positions that all count. The share of an empty set is 0, and so is its entropy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

LONGEST_NGRAM = 4
"""Length up to which `text_statistics` counts n-grams, and at which it measures repetition."""


@dataclass(frozen=True)
class TextStatistics:
    """Entropy, diversity and repetition of a set of texts."""

    num_samples: int
    """Texts of which at least the beginning was counted."""
    num_tokens: int
    """Positions counted: the statistics of two sets compare where this is equal."""
    entropy: float
    """Unigram entropy in nats of all positions pooled: the paper's H."""
    sample_entropy: float
    """Mean of the unigram entropies, in nats, of the single texts."""
    distinct: tuple[float, ...]
    """Distinct n-grams per n-gram, for n = 1, 2, …"""
    repetition: float
    """Share of the longest n-grams that occurred before in the same text, averaged over texts."""
    duplicate_share: float
    """Texts that equal an earlier one."""


def text_statistics(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> TextStatistics:
    """Computes all statistics of the positions that count."""
    ngrams = list(_ngrams(tokens, is_generated))
    return TextStatistics(
        num_samples=len(tokens),
        num_tokens=int(is_generated.sum()),
        entropy=pooled_entropy(tokens, is_generated),
        sample_entropy=sample_entropy(tokens, is_generated),
        distinct=tuple(_distinct_share(*each) for each in ngrams),
        repetition=_mean_repetition(*ngrams[-1]),
        duplicate_share=duplicate_share(tokens, is_generated),
    )


def first_tokens(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"], num_tokens: int
) -> tuple[Int[Tensor, "kept seq"], Bool[Tensor, "kept seq"]]:
    """Keeps the samples in order, up to the `num_tokens`-th position that counts.

    Whole samples and not positions drawn at random: tokens of one text depend on each other, so the
    same number of positions spread over more texts would show a higher entropy.
    """
    position = is_generated.flatten().cumsum(0).view(is_generated.shape)
    available = int(is_generated.sum())
    if not 1 <= num_tokens <= available:
        raise ValueError(f"num_tokens is {num_tokens}; choose 1 to the {available} that count")
    begins_before = position[:, 0] - is_generated[:, 0].long() < num_tokens
    return tokens[begins_before], (is_generated & (position <= num_tokens))[begins_before]


def entropy(counts: Real[Tensor, " kinds"]) -> float:
    """Computes the entropy in nats of a distribution given by counts: ln N - Σ n ln n / N."""
    counts = counts.double()
    total = counts.sum().clamp(min=1)
    return float(total.log() - torch.xlogy(counts, counts).sum() / total)


def pooled_entropy(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> float:
    """Computes the unigram entropy in nats of all samples together, the paper's H (§6.2)."""
    return entropy(torch.bincount(_counted(tokens, is_generated)))


def sample_entropy(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> float:
    """Averages the unigram entropies, in nats, of the samples; empty samples do not count."""
    rows, _, counts = counts_by_sample(tokens, is_generated)
    totals = is_generated.sum(1).double()
    surprise = -torch.xlogy(counts, counts / totals[rows]) / totals[rows]
    return float(surprise.sum() / (totals > 0).sum().clamp(min=1))


def duplicate_share(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> float:
    """Returns the share of samples whose tokens that count equal, in order, an earlier sample's."""
    if not tokens.numel():
        return 0.0
    order = (~is_generated).long().argsort(dim=1, stable=True)
    parts = tokens.masked_fill(~is_generated, -1).gather(1, order)
    return 1 - len(torch.unique(parts, dim=0)) / len(parts)


def counts_by_sample(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """Counts the tokens of each sample: (sample, token, count), sorted by sample."""
    counted = _counted(tokens, is_generated)
    base = int(counted.max()) + 1 if len(counted) else 1
    rows = is_generated.nonzero()[:, 0]
    pairs, counts = torch.unique(rows * base + counted, return_counts=True)
    return pairs // base, pairs % base, counts.double()


def _counted(tokens: Tensor, is_generated: Tensor) -> Int[Tensor, " counted"]:
    counted = tokens[is_generated]
    if len(counted) and int(counted.min()) < 0:
        raise ValueError(f"a token is {int(counted.min())}; tokens are 0 or more: mask padding out")
    return counted


def _ngrams(tokens: Tensor, is_generated: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, for n = 1, 2, …, the number of the n-gram at each position, and a mask of those that count.

    An n-gram is numbered by its (n-1)-gram and its last token.
    """
    singles = ids = _dense(tokens)
    is_whole = is_generated
    yield ids, is_whole
    for n in range(1, LONGEST_NGRAM):
        ids = _dense(ids[:, :-1] * (tokens.numel() + 1) + singles[:, n:])
        is_whole = is_whole[:, :-1] & is_generated[:, n:]
        yield ids, is_whole


def _dense(ids: Tensor) -> Tensor:
    """Renumbers ids from 0 without gaps, so that their products cannot overflow."""
    return torch.unique(ids, return_inverse=True)[1].view(ids.shape)


def _distinct_share(ngrams: Tensor, is_whole: Tensor) -> float:
    counted = ngrams[is_whole]
    return len(counted.unique()) / max(len(counted), 1)


def _mean_repetition(ngrams: Tensor, is_whole: Tensor) -> float:
    rows, *_ = counts_by_sample(ngrams, is_whole)
    totals = is_whole.sum(1).double()
    repeats = totals - torch.bincount(rows, minlength=len(totals))
    return float((repeats / totals.clamp(min=1)).sum() / (totals > 0).sum().clamp(min=1))
