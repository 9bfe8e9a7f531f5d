"""Other ways to split words into pieces: subword regularisation (Kudo, 2018).

A unigram vocabulary gives each way to spell a word with its pieces a probability; the likeliest is what
a tokenizer makes. Drawn anew in every epoch, they are as many sources for one target: a model that has
few pairs and sees them often learns them by heart later. Pieces do not reach over spaces, so each word
is drawn by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64, UInt64
from torch import Tensor

from cdcd.data.order import mix
from cdcd.data.sequences import Indices, Sequences
from cdcd.data.tokenizers import SentencePieceTokenizer, Tokenizer
from cdcd.data.vocabulary import EOS, PAD

MOST_WAYS = 16
"""Ways to split a word that are drawn from, the likeliest."""
BLOCK = 1 << 14


class Resegmented:
    """Sequences whose words are split anew in every epoch; by their numbers they are as they were."""

    def __init__(self, sequences: Sequences, tokenizer: Tokenizer, alpha: float) -> None:
        if not (isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.is_unigram):
            raise ValueError(
                "data.subword_sampling needs a unigram vocabulary of SentencePiece, which this is not: "
                "turn it off with --data.subword-sampling 0"
            )
        self.sequences = sequences
        numbers: dict[tuple[int, ...], int] = {}
        words, counts = [], []
        for found in _words(sequences, tokenizer):
            counts.append(len(found))
            words += [numbers.setdefault(word, len(numbers)) for word in found]
        self.words: Int64[np.ndarray, " words"] = np.array(words, np.int64)
        self.starts: Int64[np.ndarray, " rows_and_one"] = np.concatenate([[0], np.cumsum(counts)])
        self.ways = _Ways.of(list(numbers), tokenizer, alpha)

    @property
    def length(self) -> int:
        return self.sequences.length

    def __len__(self) -> int:
        return len(self.sequences)

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        return self.sequences.rows(indices)

    def varied(
        self, indices: Int64[np.ndarray, " rows"], drawn: UInt64[np.ndarray, " rows"]
    ) -> Int[Tensor, "rows length"]:
        """These sequences with words split as `drawn` says; as they were, where that would not fit."""
        counts = self.starts[indices + 1] - self.starts[indices]
        row, place = _places(counts)
        words = self.words[self.starts[indices][row] + place]
        u = (mix(drawn[row] + place.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        way = self.ways.draw(words, u)
        size = np.bincount(row, self.ways.sizes[way], minlength=len(indices))
        way = np.where(size[row] > self.length, self.ways.first[words], way)
        pieces = self.ways.pieces_of(way)
        size = np.bincount(row, self.ways.sizes[way], minlength=len(indices)).astype(np.int64)
        found = np.full((len(indices), self.length), PAD, np.int64)
        found[_places(size)] = pieces
        return torch.from_numpy(found)


def _places(counts: Int64[np.ndarray, " rows"]) -> tuple[np.ndarray, np.ndarray]:
    """The row and the place in it, of so many things in each row, one row after another."""
    row = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return row, np.arange(len(row)) - before[row]


def _words(
    sequences: Sequences, tokenizer: SentencePieceTokenizer
) -> Iterator[list[tuple[int, ...]]]:
    """The tokens of each sequence, word by word; its end is a word."""
    begins = np.array(
        [tokenizer.piece(token).startswith("▁") for token in range(tokenizer.vocab_size)]
    )
    begins[EOS] = True
    for first in range(0, len(sequences), BLOCK):
        for row in sequences.rows(np.arange(first, min(first + BLOCK, len(sequences)))).numpy():
            tokens = row[row != PAD]
            cuts = np.flatnonzero(begins[tokens[1:]]) + 1
            bounds = [0, *cuts.tolist(), len(tokens)]
            listed = tokens.tolist()
            yield [tuple(listed[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True)
class _Ways:
    """The ways to split each word, those of one word behind those of another, and their pieces."""

    first: Int64[np.ndarray, " words"]
    """The way in which a word came."""
    cumulative: Float64[np.ndarray, " ways"]
    """The number of the word, and the probability of its ways up to this one."""
    sizes: Int64[np.ndarray, " ways"]
    starts: Int64[np.ndarray, " ways"]
    pieces: Int64[np.ndarray, " pieces"]

    @classmethod
    def of(
        cls, words: Sequence[tuple[int, ...]], tokenizer: SentencePieceTokenizer, alpha: float
    ) -> "_Ways":
        ways: list[list[int]] = []
        counts, cumulative = [], []
        for number, word in enumerate(words):
            found, log_p = tokenizer.ways_to_split(list(word), MOST_WAYS)
            p = np.exp(alpha * (np.array(log_p) - max(log_p))).cumsum()
            cumulative.append(number + p / p[-1])
            counts.append(len(found))
            ways += found
        sizes = np.array([len(way) for way in ways], np.int64)
        return cls(
            first=np.cumsum(counts) - counts,
            cumulative=np.concatenate(cumulative),
            sizes=sizes,
            starts=np.cumsum(sizes) - sizes,
            pieces=np.array([piece for way in ways for piece in way], np.int64),
        )

    def draw(
        self, words: Int64[np.ndarray, " n"], u: Float64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """A way for each word, by uniform u."""
        # A sum can round up to the next word's number.
        below = np.nextafter(words + 1.0, 0.0)
        return np.searchsorted(self.cumulative, np.minimum(words + u, below), side="right")

    def pieces_of(self, ways: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " pieces"]:
        """The pieces of these ways, one after another."""
        number, place = _places(self.sizes[ways])
        return self.pieces[self.starts[ways][number] + place]
