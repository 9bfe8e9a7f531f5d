"""BLEU and chrF from n-gram counts, for all pairs of some texts or for a whole corpus at once.

Both scores are functions of three counts for each length of n-gram: those of the candidate, those of
the reference, and the matches

    m(a, b) = Σ_g min(c_a(g), c_b(g)) = Σ_g Σ_{k ≥ 1} [c_a(g) ≥ k] · [c_b(g) ≥ k],

so that the matches of all pairs of n texts are one matrix product of 0s and 1s. The scores equal
sacreBLEU's with its defaults (exponential smoothing; chrF2 of characters without spaces).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int

WORD_ORDER, CHARACTER_ORDER = 4, 6
"""Longest n-grams: of words for BLEU, of characters for chrF."""
RECALL_WEIGHT = 4
"""chrF's β²: recall counts β = 2 times as much as precision."""
PLAIN = "none"
"""The tokenisation that splits at spaces and needs no sacreBLEU."""
CELLS_AT_A_TIME = 2**24
"""Bounds the memory of a matrix product."""


@dataclass(frozen=True)
class Symbols:
    """Texts one after another as numbers; equal numbers are equal words, or equal characters."""

    values: Int[np.ndarray, " symbols"]
    owners: Int[np.ndarray, " symbols"]
    """The text of each symbol, rising."""
    num_texts: int


@dataclass(frozen=True)
class Statistics:
    """The counts that give a score; the axes before the last are pairs of texts, or a corpus."""

    matches: Float[np.ndarray, "*pairs orders"]
    candidate: Float[np.ndarray, "*#pairs orders"]
    """N-grams of the candidate, for n = 1, 2, …"""
    reference: Float[np.ndarray, "*#pairs orders"]

    def sum(self, rows: Any = slice(None)) -> "Statistics":
        """Adds up sentences, all or some rows, to a corpus: its BLEU and chrF are no means of theirs."""
        return Statistics(
            self.matches[rows].sum(0), self.candidate[rows].sum(0), self.reference[rows].sum(0)
        )


@dataclass(frozen=True)
class _Counts:
    """The n-grams of one length: entries (n-gram, text, count), sorted in this order."""

    ngrams: Int[np.ndarray, " entries"]
    texts: Int[np.ndarray, " entries"]
    counts: Int[np.ndarray, " entries"]
    totals: Int[np.ndarray, " texts"]


def bleu(counts: Statistics, *, effective_order: bool) -> Float[np.ndarray, "*pairs"]:
    """Computes BLEU from 0 to 100, with exponential smoothing and brevity penalty.

    With `effective_order` the geometric mean is over the lengths that the candidate has, as befits
    single sentences; without, a candidate of fewer than four words has 0, as befits a corpus.
    """
    *pairs, num_orders = counts.matches.shape
    product, smoothed = np.ones(pairs), np.ones(pairs)
    for n in range(num_orders):
        matches, total = counts.matches[..., n], counts.candidate[..., n]
        smoothed = np.where((matches == 0) & (total > 0), smoothed / 2, smoothed)
        precision = np.where(matches > 0, matches, smoothed) / np.maximum(total, 1)
        product *= np.where(total > 0, precision, 1.0 if effective_order else 0.0)
    orders = (counts.candidate > 0).sum(-1) if effective_order else num_orders
    length, wanted = counts.candidate[..., 0], counts.reference[..., 0]
    brevity = np.exp(np.minimum(1 - wanted / np.maximum(length, 1), 0))
    score = 100 * brevity * product ** (1 / np.maximum(orders, 1))
    return np.where(counts.matches[..., 0] > 0, score, 0.0)


def chrf(counts: Statistics) -> Float[np.ndarray, "*pairs"]:
    """Computes chrF2 from 0 to 100, the F-score of mean precision and recall over shared lengths."""
    is_shared = (counts.candidate > 0) & (counts.reference > 0)
    num_orders = np.maximum(is_shared.sum(-1), 1)
    precision, recall = (
        np.where(is_shared, counts.matches / np.maximum(total, 1), 0).sum(-1) / num_orders
        for total in (counts.candidate, counts.reference)
    )
    below = RECALL_WEIGHT * precision + recall
    score = (1 + RECALL_WEIGHT) * precision * recall / np.where(below > 0, below, 1)
    return np.asarray(100 * score)


def word_symbols(texts: Sequence[str], tokenize: str) -> Symbols:
    """Splits texts into words by a tokenisation of sacreBLEU."""
    split = word_splitter(tokenize)
    words = [split(text) for text in texts]
    numbers: dict[str, int] = {}
    values = [numbers.setdefault(word, len(numbers)) for text in words for word in text]
    return Symbols(np.array(values, np.int64), _owners([len(text) for text in words]), len(texts))


def character_symbols(texts: Sequence[str]) -> Symbols:
    """Splits texts into characters without spaces."""
    joined = [_without_spaces(text) for text in texts]
    encoded = "".join(joined).encode("utf-32-le", "surrogatepass")
    values = np.frombuffer(encoded, "<u4").astype(np.int64)
    return Symbols(values, _owners([len(text) for text in joined]), len(texts))


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _owners(lengths: Sequence[int]) -> Int[np.ndarray, " symbols"]:
    return np.repeat(np.arange(len(lengths)), np.array(lengths, np.int64))


@cache
def word_splitter(tokenize: str) -> Callable[[str], list[str]]:
    """Returns what splits a text into BLEU's words: `none` at spaces, other names are sacreBLEU's."""
    if tokenize == PLAIN:
        return str.split
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ValueError(
            f"the tokenisation {tokenize} needs sacrebleu: pip install 'cdcd[translate]'"
        ) from None
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize is {tokenize}; choose one of {', '.join(BLEU.TOKENIZERS)}")
    tokenizer = BLEU(tokenize=tokenize).tokenizer
    return lambda text: tokenizer(text.rstrip()).split()


def pairwise_statistics(symbols: Symbols, longest: int) -> Statistics:
    """Compares each text (first axis) as a candidate with each text (second axis) as its reference."""
    counted = list(_counts_by_order(symbols, longest))
    totals = np.stack([each.totals for each in counted], -1).astype(float)
    matches = np.stack([_pairwise_matches(each) for each in counted], -1)
    return Statistics(matches.astype(float), totals[:, None], totals[None])


def bleu_statistics(
    candidates: Sequence[str], references: Sequence[str], *, tokenize: str
) -> Statistics:
    """Compares each candidate with its own reference, for BLEU."""
    return _aligned(candidates, references, word_splitter(tokenize), WORD_ORDER)


def chrf_statistics(candidates: Sequence[str], references: Sequence[str]) -> Statistics:
    """Compares each candidate with its own reference, for chrF.

    As in sacreBLEU, n-grams of a length that the reference lacks do not count: it matters for sums.
    """
    counts = _aligned(candidates, references, _without_spaces, CHARACTER_ORDER)
    return replace(counts, candidate=np.where(counts.reference > 0, counts.candidate, 0.0))


def _aligned(
    candidates: Sequence[str],
    references: Sequence[str],
    split: Callable[[str], Sequence[str]],
    longest: int,
) -> Statistics:
    if len(candidates) != len(references):
        raise ValueError(
            f"there are {len(candidates)} translations and {len(references)} references; "
            "each translation needs its own: align them"
        )
    counts = np.zeros((3, len(candidates), longest))
    for row, pair in enumerate(zip(candidates, references, strict=True)):
        ours, theirs = map(split, pair)
        for n in range(1, longest + 1):
            candidate, reference = _ngrams(ours, n), _ngrams(theirs, n)
            totals = (candidate & reference).total(), candidate.total(), reference.total()
            counts[:, row, n - 1] = totals
    return Statistics(*counts)


def _ngrams(symbols: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(symbols[start:] for start in range(n)), strict=False))


def _counts_by_order(symbols: Symbols, longest: int) -> Iterator[_Counts]:
    """Yields counts for n = 1 … longest; an n-gram is numbered by its (n-1)-gram and its last symbol."""
    singles = _dense(symbols.values)
    ids, base = singles, len(singles) + 1
    for n in range(1, longest + 1):
        if n > 1:
            ids = _dense(ids[:-1] * base + singles[n - 1 :])
        first, last = symbols.owners[: len(ids)], symbols.owners[n - 1 :]
        is_whole = first == last
        yield _counted(ids[is_whole], first[is_whole], symbols.num_texts)


def _dense(ids: Int[np.ndarray, " ids"]) -> Int[np.ndarray, " ids"]:
    """Renumbers ids from 0 without gaps, so that their products cannot overflow."""
    return np.unique(ids, return_inverse=True)[1]


def _counted(ids: np.ndarray, texts: np.ndarray, num_texts: int) -> _Counts:
    keys, counts = np.unique(ids * num_texts + texts, return_counts=True)
    totals = np.bincount(texts, minlength=num_texts)
    return _Counts(keys // num_texts, keys % num_texts, counts, totals)


def _pairwise_matches(counted: _Counts) -> Float32[np.ndarray, "texts texts"]:
    """Counts the matches of all pairs; counts below 2^24 are exact in float32."""
    num_texts = len(counted.totals)
    matches = np.zeros((num_texts, num_texts), np.float32)
    for texts, features in _shared_features(counted, max(1, CELLS_AT_A_TIME // num_texts)):
        has = np.zeros((num_texts, int(features.max()) + 1), np.float32)
        has[texts, features] = 1
        matches += has @ has.T
    np.fill_diagonal(matches, counted.totals)
    return matches


def _shared_features(counted: _Counts, at_a_time: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (text, feature) where a text has n-gram g at least k times: each (g, k) is a feature.

    Features of a single text match nothing but themselves and are left out: most of the long n-grams.
    """
    times = np.arange(counted.counts.sum()) - np.repeat(
        np.cumsum(counted.counts) - counted.counts, counted.counts
    )
    ngrams = np.repeat(counted.ngrams, counted.counts)
    texts = np.repeat(counted.texts, counted.counts)
    features = _dense(ngrams * (times.max(initial=0) + 1) + times)
    is_shared = np.bincount(features)[features] > 1 if len(features) else np.zeros(0, bool)
    texts, features = texts[is_shared], _dense(features[is_shared])
    blocks = features // at_a_time
    for block in range(int(blocks.max(initial=-1)) + 1):
        is_here = blocks == block
        yield texts[is_here], features[is_here] - block * at_a_time
