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

from cdcd.data.dataset_files import (
    DESCRIPTION,
    PROGRESS,
    REMEDY,
    SIDES,
    read_description,
)
from cdcd.data.remote import dataset_folder, described_at, is_remote
from cdcd.data.sequences import Indices, Sequences, TokenDataset, TokenDocuments, check_tokenizer
from cdcd.data.tokenizers import Tokenizer, load_tokenizer
from cdcd.files import expanded, file_hash, read_json


class PairDataset:
    """Sources and targets as `Sequences`: row n is source n and, behind it, target n."""

    def __init__(self, sources: Sequences, targets: Sequences, *, num_dropped: int = 0) -> None:
        if len(sources) != len(targets):
            raise _unequal(len(sources), len(targets))
        self.sources, self.targets = sources, targets
        self.source_length, self.target_length = sources.length, targets.length
        self.length = self.source_length + self.target_length
        self.num_dropped = num_dropped
        """Pairs that did not fit."""

    def __len__(self) -> int:
        return len(self.sources)

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        return torch.cat([self.sources.rows(indices), self.targets.rows(indices)], dim=1)


def fitting_pairs(
    sources: TokenDocuments, targets: TokenDocuments, *, source_length: int, target_length: int
) -> PairDataset:
    """Returns the pairs of which both sides fit."""
    sides = ((sources, source_length), (targets, target_length))
    if len(sources) != len(targets):
        raise _unequal(len(sources), len(targets))
    fits = np.all([side.lengths() <= length for side, length in sides], axis=0)
    if not fits.any():
        raise ValueError(
            f"none of {len(fits):,} pairs fits into {source_length} + {target_length} tokens (source + "
            f"target, ends included); raise the lengths"
        )
    rows = (side.beginnings(length, fits) for side, length in sides)
    return PairDataset(*rows, num_dropped=int((~fits).sum()))


def _unequal(num_sources: int, num_targets: int) -> ValueError:
    return ValueError(f"there are {num_sources:,} sources and {num_targets:,} targets")


def pairs_in_memory(
    pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, **lengths: int
) -> PairDataset:
    """Returns pairs of texts as a data set in memory; the lengths are those of `fitting_pairs`."""
    sides = (
        TokenDocuments.of_texts(texts, tokenizer, "the pairs") for texts in zip(*pairs, strict=True)
    )
    return fitting_pairs(*sides, **lengths)


def holds_pairs(path: str | Path) -> bool:
    """Returns whether this is a prepared data set of pairs, its folder finished or not."""
    if is_remote(path):
        return "sides" in described_at(str(path))
    folder = expanded(path)
    if (folder / DESCRIPTION).is_file():
        return "sides" in read_json(folder / DESCRIPTION)
    return (folder / PROGRESS).is_file() and (folder / SIDES[0]).is_dir()


class PreparedPairs:
    """A prepared data set of pairs; opening it checks the sides, their sizes and the tokenizers."""

    def __init__(self, path: str | Path) -> None:
        self.path = dataset_folder(path)
        self._described = read_description(self.path)
        if "sides" not in self._described:
            raise ValueError(
                f"{self.path} holds single texts, no pairs; prepare pairs with: cdcd data prepare "
                f"--source PATH --target-source PATH --out FOLDER"
            )
        self.source, self.target = (TokenDataset(self.path / side) for side in SIDES)
        self.tokenizer, self.tokenizer_hash = self.source.tokenizer, self.source.tokenizer_hash
        self.splits = self.source.splits
        """The splits that hold pairs."""
        for side in (self.source, self.target):
            present = file_hash(side.path / DESCRIPTION)
            if present != self._described["sides"][side.path.name]:
                raise ValueError(
                    f"{side.path} is not the side that was prepared with {self.path}: its dataset.json "
                    f"has SHA-256 {present}; put the right one back or prepare the data again"
                )
        counted = self._described["pairs"].keys()
        is_one_set = self.source.tokenizer_hash == self.target.tokenizer_hash
        if not is_one_set or self.splits != self.target.splits or not counted >= {*self.splits}:
            raise ValueError(f"{self.path / DESCRIPTION} does not fit the sides; {REMEDY}")

    @property
    def content_hash(self) -> str:
        """A SHA-256 that is equal if and only if all tokens are."""
        both = self.source.content_hash + self.target.content_hash
        return hashlib.sha256(both.encode()).hexdigest()

    def num_pairs(self, split: str) -> int:
        return self.source.summary(split).documents

    def counts(self, split: str) -> dict[str, int]:
        """Returns the number of pairs of a split that were kept, or left out for each reason."""
        return dict(self._described["pairs"][split])

    def verify(self) -> None:
        """Raises an error where the checksum of a file is wrong."""
        self.source.verify()
        self.target.verify()
        check_tokenizer(self.path, load_tokenizer(self.path / "tokenizer"), self.tokenizer_hash)

    def texts(self, split: str, index: int) -> tuple[str, str]:
        """Returns a pair as it was written, where the tokenizer is lossless."""
        source, target = (
            self.tokenizer.decode(side.documents(split)[index].tolist())
            for side in (self.source, self.target)
        )
        return source, target

    def sequences(
        self, split: str, *, source_length: int, target_length: int, reverse: bool = False
    ) -> PairDataset:
        """Returns the pairs that fit; reversed: from the target to the source."""
        sides = [self.source.documents(split), self.target.documents(split)]
        return fitting_pairs(
            *(reversed(sides) if reverse else sides),
            source_length=source_length,
            target_length=target_length,
        )
