"""Pairs to train a translator on: rows of [source, EOS, padding | target, EOS, padding].

Each side has a fixed length. A pair with a side that does not fit is left out and counted, never cut.
The paper predicts the padding too (§4.4), so the ends of the rows are part of the target.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.data.dataset_files import DESCRIPTION, PROGRESS, SIDES
from cdcd.data.sequences import Indices, InMemory, Sequences, TokenDataset, is_dataset
from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.files import file_hash, read_json


class PairDataset:
    """Sources and targets as `Sequences`: row n is source n and, behind it, target n."""

    def __init__(self, sources: Sequences, targets: Sequences, *, num_dropped: int = 0) -> None:
        if len(sources) != len(targets):
            raise ValueError(f"there are {len(sources):,} sources and {len(targets):,} targets")
        self.sources, self.targets = sources, targets
        self.num_dropped = num_dropped
        """Pairs that did not fit."""

    @property
    def source_length(self) -> int:
        return self.sources.length

    @property
    def target_length(self) -> int:
        return self.targets.length

    @property
    def length(self) -> int:
        return self.source_length + self.target_length

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        return torch.cat([self.sources.rows(indices), self.targets.rows(indices)], dim=1)


def pairs_in_memory(
    pairs: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    *,
    source_length: int,
    target_length: int,
) -> PairDataset:
    """Returns pairs of texts as a data set in memory."""
    lengths = (source_length, target_length)
    encoded = [[[*tokenizer.encode(text), EOS] for text in pair] for pair in pairs]
    fitting = [
        pair for pair in encoded if all(len(s) <= n for s, n in zip(pair, lengths, strict=True))
    ]
    if not fitting:
        raise _none_fits(len(encoded), source_length, target_length)
    sides = [
        InMemory(torch.tensor([[*side, *[PAD] * (length - len(side))] for side in column]).int())
        for column, length in zip(zip(*fitting, strict=True), lengths, strict=True)
    ]
    return PairDataset(*sides, num_dropped=len(encoded) - len(fitting))


def _none_fits(count: int, source_length: int, target_length: int) -> ValueError:
    return ValueError(
        f"none of {count:,} pairs fits into {source_length} + {target_length} tokens (source + target, "
        f"ends included); raise the lengths"
    )


def holds_pairs(path: str | Path) -> bool:
    """Returns whether this is the folder of a prepared data set of pairs, finished or not."""
    folder = Path(path).expanduser()
    if (folder / DESCRIPTION).is_file():
        return "sides" in read_json(folder / DESCRIPTION)
    return (folder / PROGRESS).is_file() and (folder / SIDES[0]).is_dir()


def _no_pairs(path: Path) -> ValueError:
    """Returns the error of a path that should hold pairs."""
    problem = "does not exist"
    if path.exists():
        problem = "holds single texts, no pairs" if is_dataset(path) else "is no prepared data set"
    command = "cdcd data prepare --source PATH --target-source PATH --out FOLDER"
    return ValueError(f"{path} {problem}; prepare pairs with: {command}")


class PreparedPairs:
    """A prepared data set of pairs; opening it checks the sides, their sizes and the tokenizers."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not holds_pairs(self.path):
            raise _no_pairs(self.path)
        if not (self.path / DESCRIPTION).is_file():
            raise ValueError(f"{self.path} is not finished; go on with the command that began it")
        self._described = read_json(self.path / DESCRIPTION)
        self.source, self.target = (TokenDataset(self.path / side) for side in SIDES)
        self.tokenizer: Tokenizer = self.source.tokenizer
        self.tokenizer_hash, self.vocab_size = self.source.tokenizer_hash, self.source.vocab_size
        for side in (self.source, self.target):
            present = file_hash(side.path / DESCRIPTION)
            if present != self._described["sides"][side.path.name]:
                raise ValueError(
                    f"{side.path} is not the side that was prepared with {self.path}: its dataset.json "
                    f"has SHA-256 {present}; put the right one back or prepare the data again"
                )

    @property
    def content_hash(self) -> str:
        """A SHA-256 that is equal if and only if all tokens are."""
        both = self.source.content_hash + self.target.content_hash
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that hold pairs."""
        return self.source.splits

    def num_pairs(self, split: str) -> int:
        return self.source.num_documents(split)

    def counts(self, split: str) -> dict[str, int]:
        """Returns the number of pairs of a split that were kept, or left out for each reason."""
        return dict(self._described["pairs"][split])

    def verify(self) -> None:
        """Raises an error where the checksum of a file is wrong."""
        self.source.verify()
        self.target.verify()

    def texts(self, split: str, index: int) -> tuple[str, str]:
        """Returns a pair as it was written, where the tokenizer is lossless."""
        source, target = (
            self.tokenizer.decode(side.document(split, index).tolist())
            for side in (self.source, self.target)
        )
        return source, target

    def sequences(
        self, split: str, *, source_length: int, target_length: int, reverse: bool = False
    ) -> PairDataset:
        """Returns the pairs that fit; reversed: from the target to the source."""
        sides = [(self.source, source_length), (self.target, target_length)]
        if reverse:
            sides = [(self.target, source_length), (self.source, target_length)]
        fits = np.all([side.lengths(split) <= length for side, length in sides], axis=0)
        if not fits.any():
            raise _none_fits(len(fits), source_length, target_length)
        sources, targets = (side.whole_documents(split, length, fits) for side, length in sides)
        return PairDataset(sources, targets, num_dropped=int((~fits).sum()))
