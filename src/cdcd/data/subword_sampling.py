"""Subword regularisation (Kudo, 2018): the words of a source are split into other pieces every epoch.

A unigram vocabulary gives each way to spell a word with its pieces a probability; a tokenizer takes
the likeliest way. Drawing one instead makes many sources for one target, so a model that sees few
pairs often learns them by heart later. Pieces do not reach over spaces, so each word is drawn by
itself. Draws are a function of (seed, epoch, pair, position of the word).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64, UInt64
from torch import Tensor

from cdcd.data.order import mix
from cdcd.data.pairs import PairDataset
from cdcd.data.sequences import Sequences
from cdcd.data.tokenizers import SentencePieceTokenizer, Tokenizer
from cdcd.data.vocabulary import EOS, PAD

MAX_WAYS = 16
"""Ways to split a word that are drawn from, the likeliest."""
BLOCK = 1 << 14


class SubwordSampledPairs(PairDataset):
    """Pairs whose sources are split anew in every epoch; `rows` returns them as they were."""

    def __init__(self, pairs: PairDataset, tokenizer: Tokenizer, alpha: float) -> None:
        super().__init__(pairs.sources, pairs.targets, num_dropped=pairs.num_dropped)
        self._sampler = SubwordSampler(pairs.sources, tokenizer, alpha)

    def resampled_rows(
        self, indices: Int64[np.ndarray, " rows"], bits: UInt64[np.ndarray, " rows"]
    ) -> Int[Tensor, "rows length"]:
        """Returns these pairs with the words of each source split by its own 64 random bits."""
        return torch.cat([self._sampler.draw(indices, bits), self.targets.rows(indices)], dim=1)


class SubwordSampler:
    """The words of sequences, and the ways to split each word."""

    def __init__(self, sequences: Sequences, tokenizer: Tokenizer, alpha: float) -> None:
        if not (isinstance(tokenizer, SentencePieceTokenizer) and _is_unigram(tokenizer)):
            raise ValueError(
                "data.subword_sampling needs a unigram vocabulary of SentencePiece, which this is not: "
                "turn it off with --data.subword-sampling 0"
            )
        self.length = sequences.length
        numbers: dict[tuple[int, ...], int] = {}
        self._words = _Ragged.of(
            [numbers.setdefault(word, len(numbers)) for word in words]
            for words in _split_into_words(sequences, tokenizer)
        )
        ways: list[list[int]] = []
        self._original: Int64[np.ndarray, " words"] = np.zeros(len(numbers), np.int64)
        cumulative = []
        for word, number in numbers.items():
            self._original[number] = len(ways)
            splits, log_p = ways_to_split(tokenizer, list(word))
            p = np.exp(alpha * (np.array(log_p) - max(log_p))).cumsum()
            cumulative.append(number + p / p[-1])
            ways += splits
        self._ways = _Ragged.of(ways)
        # For each way, the number of its word plus the probability of the ways up to this one.
        self._cumulative: Float64[np.ndarray, " ways"] = np.concatenate(cumulative)

    def draw(
        self, indices: Int64[np.ndarray, " rows"], bits: UInt64[np.ndarray, " rows"]
    ) -> Int[Tensor, "rows length"]:
        """Returns these sequences with words split by `bits`; as they were, where that would not fit."""
        row, position, words = self._words.take(indices)
        u = (mix(bits[row] + position.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        # A sum can round up to the number of the next word.
        below = np.minimum(words + u, np.nextafter(words + 1.0, 0.0))
        way = np.searchsorted(self._cumulative, below, side="right")
        sizes = np.bincount(row, self._ways.sizes[way], minlength=len(indices))
        way = np.where(sizes[row] > self.length, self._original[words], way)
        word, _, pieces = self._ways.take(way)
        rows: Int64[np.ndarray, "rows length"] = np.full((len(indices), self.length), PAD, np.int64)
        rows[row[word], _positions(np.bincount(row[word], minlength=len(indices)))] = pieces
        return torch.from_numpy(rows)


def ways_to_split(
    tokenizer: SentencePieceTokenizer, word: list[int]
) -> tuple[list[list[int]], list[float]]:
    """Returns the likeliest ways to spell the text of these tokens and their ln p, these tokens first."""
    ways: list[list[int]] = tokenizer.processor.nbest_encode(
        tokenizer.decode(word), nbest_size=MAX_WAYS
    )
    if word not in ways:  # bytes, or a text that is spelt in another way
        return [word], [0.0]
    ways.sort(key=lambda way: way != word)
    return ways, [sum(map(tokenizer.processor.get_score, way)) for way in ways]


def _is_unigram(tokenizer: SentencePieceTokenizer) -> bool:
    try:
        tokenizer.processor.nbest_encode("", nbest_size=1)
    except RuntimeError:
        return False
    return True


def _split_into_words(
    sequences: Sequences, tokenizer: SentencePieceTokenizer
) -> Iterator[list[tuple[int, ...]]]:
    """Yields the tokens of each sequence, word by word; its end is a word."""
    begins = np.array([tokenizer.piece(i).startswith("▁") for i in range(tokenizer.vocab_size)])
    begins[EOS] = True
    for first in range(0, len(sequences), BLOCK):
        for row in sequences.rows(np.arange(first, min(first + BLOCK, len(sequences)))).numpy():
            tokens = row[row != PAD]
            cuts = np.flatnonzero(begins[tokens[1:]]) + 1
            bounds = pairwise([0, *cuts.tolist(), len(tokens)])
            yield [tuple(tokens[a:b].tolist()) for a, b in bounds]


@dataclass(frozen=True)
class _Ragged:
    """Lists of different sizes, one after another."""

    sizes: Int64[np.ndarray, " lists"]
    starts: Int64[np.ndarray, " lists"]
    values: Int64[np.ndarray, " values"]

    @classmethod
    def of(cls, lists: Iterator[list[int]] | Sequence[list[int]]) -> "_Ragged":
        sizes, values = [], []
        for each in lists:
            sizes.append(len(each))
            values += each
        starts = np.cumsum([0, *sizes[:-1]])
        return cls(np.array(sizes, np.int64), starts, np.array(values, np.int64))

    def take(self, indices: Int64[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns, for each value of these lists, which of them holds it, its position there, and it."""
        sizes = self.sizes[indices]
        row, position = np.repeat(np.arange(len(indices)), sizes), _positions(sizes)
        return row, position, self.values[self.starts[indices][row] + position]


def _positions(sizes: Int64[np.ndarray, " lists"]) -> Int64[np.ndarray, " values"]:
    """Returns 0, 1, 2, … for each list, one list after another."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) - np.repeat(starts, sizes)
