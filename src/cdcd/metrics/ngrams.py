"""BLEU and chrF from n-gram counts, for all pairs of some texts or for a whole corpus at once.

Both scores are functions of three counts for each length of n-gram: the matches

    m(a, b) = Σ_g min(c_a(g), c_b(g)) = Σ_g Σ_{k ≥ 1} [c_a(g) ≥ k] · [c_b(g) ≥ k],

the n-grams of the candidate a and those of the reference b. The matches of all pairs of n texts are one
matrix product of 0s and 1s, and the counts of a corpus are the sums of its sentences'. The scores equal
sacreBLEU's with its defaults (exponential smoothing; chrF2 of characters without spaces).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from cdcd.settings import unknown

Symbols: TypeAlias = str | tuple[str, ...]
"""A text to count n-grams in, as characters or words, or an n-gram."""
WORD_ORDER, CHARACTER_ORDER = 4, 6
"""Longest n-grams: of words for BLEU, of characters for chrF."""
RECALL_WEIGHT = 4
"""chrF's β²: recall counts β = 2 times as much as precision."""


def bleu(
    counts: Float[np.ndarray, "*pairs 3 orders"], *, effective_order: bool = False
) -> Float[np.ndarray, "*pairs"]:
    """Computes BLEU from 0 to 100, with exponential smoothing and brevity penalty.

    With `effective_order` the geometric mean is over the lengths that the candidate has, as befits
    single sentences; without, a candidate of fewer than four words has 0, as befits a corpus.
    """
    matches, candidate, reference = np.moveaxis(counts, -2, 0)
    *pairs, num_orders = matches.shape
    product, smoothed = np.ones(pairs), np.ones(pairs)
    for n in range(num_orders):
        matched, total = matches[..., n], candidate[..., n]
        smoothed = np.where((matched == 0) & (total > 0), smoothed / 2, smoothed)
        precision = np.where(matched > 0, matched, smoothed) / np.maximum(total, 1)
        product *= np.where(total > 0, precision, 1.0 if effective_order else 0.0)
    orders = (candidate > 0).sum(-1) if effective_order else num_orders
    length, wanted = candidate[..., 0], reference[..., 0]
    brevity = np.exp(np.minimum(1 - wanted / np.maximum(length, 1), 0))
    score = 100 * brevity * product ** (1 / np.maximum(orders, 1))
    return np.where(matches[..., 0] > 0, score, 0.0)


def chrf(counts: Float[np.ndarray, "*pairs 3 orders"]) -> Float[np.ndarray, "*pairs"]:
    """Computes chrF2 from 0 to 100, the F-score of mean precision and recall over shared lengths."""
    matches, candidate, reference = np.moveaxis(counts, -2, 0)
    is_shared = (candidate > 0) & (reference > 0)
    num_orders = np.maximum(is_shared.sum(-1), 1)
    precision, recall = (
        np.where(is_shared, matches / np.maximum(total, 1), 0).sum(-1) / num_orders
        for total in (candidate, reference)
    )
    below = RECALL_WEIGHT * precision + recall
    score = (1 + RECALL_WEIGHT) * precision * recall / np.where(below > 0, below, 1)
    return np.asarray(100 * score)


def sacrebleu_metrics() -> tuple[Any, Any]:
    """Imports sacreBLEU's classes BLEU and CHRF."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise ValueError("BLEU needs sacrebleu: pip install 'cdcd[translate]'") from None
    return BLEU, CHRF


@cache
def word_splitter(tokenize: str) -> Callable[[str], tuple[str, ...]]:
    """Returns what splits a text into BLEU's words, by the name of a tokenisation of sacreBLEU."""
    metric, _ = sacrebleu_metrics()
    if tokenize not in metric.TOKENIZERS:
        raise unknown("tokenisation", tokenize, metric.TOKENIZERS)
    tokenizer = metric(tokenize=tokenize).tokenizer
    return lambda text: tuple(tokenizer(text.rstrip()).split())


def characters(text: str) -> str:
    """Returns the characters that chrF compares: all but white space."""
    return "".join(text.split())


def pairwise_counts(
    texts: Sequence[Symbols], longest: int
) -> Float[np.ndarray, "candidates references 3 orders"]:
    """Compares each text, split into words or characters, with each as its reference."""
    counted = [[_ngrams(text, n) for text in texts] for n in range(1, longest + 1)]
    matches = np.stack([_matches(counts) for counts in counted], -1)
    totals = np.array([[each.total() for each in counts] for counts in counted], float).T
    return np.stack(np.broadcast_arrays(matches, totals[:, None], totals[None]), -2)


def _ngrams(text: Symbols, n: int) -> Counter[Symbols]:
    return Counter([text[start : start + n] for start in range(len(text) - n + 1)])


def _matches(counts: Sequence[Counter[Symbols]]) -> Float[np.ndarray, "texts texts"]:
    """Counts the matches of all pairs, from tables of the n-grams that a text has at least k times.

    N-grams of a single text match nothing but themselves and are left out: most of the long ones.
    """
    num_texts = Counter(chain.from_iterable(counts))
    columns = {g: i for i, g in enumerate(g for g, number in num_texts.items() if number > 1)}
    table = np.zeros((len(counts), len(columns)), np.int64)
    for row, each in zip(table, counts, strict=True):
        shared = [ngram for ngram in each if ngram in columns]
        row[[columns[ngram] for ngram in shared]] = [each[ngram] for ngram in shared]
    matches = np.zeros((len(counts), len(counts)))
    for times in range(1, table.max(initial=0) + 1):
        has = (table >= times).astype(np.float32)  # sums below 2^24 are exact
        matches += has @ has.T
    np.fill_diagonal(matches, [each.total() for each in counts])
    return matches


def bleu_counts(
    candidates: Sequence[str], references: Sequence[str], *, tokenize: str
) -> Float[np.ndarray, "sentences 3 orders"]:
    """Compares each candidate with its own reference, for BLEU."""
    return _aligned(candidates, references, word_splitter(tokenize), WORD_ORDER)


def chrf_counts(
    candidates: Sequence[str], references: Sequence[str]
) -> Float[np.ndarray, "sentences 3 orders"]:
    """Compares each candidate with its own reference, for chrF.

    As in sacreBLEU, n-grams of a length that the reference lacks do not count: it matters for sums.
    """
    counts = _aligned(candidates, references, characters, CHARACTER_ORDER)
    counts[:, 1] *= counts[:, 2] > 0
    return counts


def _aligned(
    candidates: Sequence[str],
    references: Sequence[str],
    split: Callable[[str], Symbols],
    longest: int,
) -> Float[np.ndarray, "sentences 3 orders"]:
    if len(candidates) != len(references):
        raise ValueError(
            f"there are {len(candidates)} translations and {len(references)} references; "
            "each translation needs its own: align them"
        )
    counts = np.zeros((len(candidates), 3, longest))
    for row, pair in enumerate(zip(candidates, references, strict=True)):
        ours, theirs = map(split, pair)
        for n in range(longest):
            candidate, reference = _ngrams(ours, n + 1), _ngrams(theirs, n + 1)
            matches = candidate & reference
            counts[row, :, n] = matches.total(), candidate.total(), reference.total()
    return counts
