"""Token sequences to train on: in memory, or memory-mapped from a prepared data set.

The operating system keeps in memory what is used. Documents never cross shards, and neither do
sequences.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt, UInt64
from torch import Tensor

from cdcd.data.dataset_files import DESCRIPTION, FORMAT, PROGRESS, SplitSummary
from cdcd.data.order import ROUNDS, keys_for, mix, permuted
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, tokenizer_hash
from cdcd.data.vocabulary import PAD
from cdcd.files import file_hash, read_json

Indices: TypeAlias = Int64[np.ndarray, " rows"] | Int[Tensor, " rows"]


@runtime_checkable
class Sequences(Protocol):
    """Sequences of tokens, all of one length, by their number."""

    @property
    def length(self) -> int: ...
    def __len__(self) -> int: ...
    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        """Returns these sequences, as int64."""
        ...


@runtime_checkable
class ResampledSequences(Sequences, Protocol):
    """Sequences that are drawn anew in every epoch."""

    def resampled_rows(
        self, indices: Int64[np.ndarray, " rows"], bits: UInt64[np.ndarray, " rows"]
    ) -> Int[Tensor, "rows length"]:
        """Returns these sequences, each drawn by its own 64 random bits."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Sequences of a tensor."""

    tokens: Int[Tensor, "sequences length"]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        return self.tokens[torch.as_tensor(indices)].long()


@dataclass(frozen=True)
class ShuffledBatches:
    """Batches of sequences in an order that is a function of the seed: any step's batch, at any time."""

    sequences: Sequences
    batch_size: int
    seed: int

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Int[Tensor, "rows length"]:
        """Returns this rank's rows of training step `step`: whole epochs, each in a new order."""
        if self.batch_size % world_size:
            raise ValueError(
                f"the batch of {self.batch_size} sequences cannot be shared by {world_size} ranks; "
                f"make it a multiple of their number"
            )
        share = self.batch_size // world_size
        first = step * self.batch_size + rank * share
        positions = np.arange(first, first + share)
        indices = self.order(positions)
        if isinstance(self.sequences, ResampledSequences):
            # The key's name is part of the draws of all runs before.
            key = keys_for(self.seed, "variation", count=1)
            bits = mix(mix(positions.astype(np.uint64)) ^ key)
            return self.sequences.resampled_rows(indices, bits)
        return self.sequences.rows(indices)

    def order(self, positions: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
        """Returns the sequences at these positions of the endless series of epochs."""
        size = len(self.sequences)
        epochs, within = np.divmod(positions, size)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            is_now = epochs == epoch
            keys = keys_for(self.seed, "epoch", epoch, count=ROUNDS)
            indices[is_now] = permuted(within[is_now], size, keys)
        return indices


@dataclass(frozen=True)
class _Shard:
    """The documents of a shard, memory-mapped."""

    tokens: UInt[np.ndarray, " tokens"]
    ends: Int64[np.ndarray, " documents"]

    @property
    def starts(self) -> Int64[np.ndarray, " documents"]:
        """The start of each document."""
        return np.concatenate([[0], self.ends[:-1]])


@dataclass(frozen=True)
class _Spans:
    """Sequences that start anywhere in a shard; those that end early are padded."""

    tokens: UInt[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " sequences"]
    ends: Int64[np.ndarray, " sequences"]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, indices: Int64[np.ndarray, " rows"]) -> UInt[np.ndarray, "rows length"]:
        positions = self.starts[indices, None] + np.arange(self.length)
        rows = self.tokens[np.minimum(positions, len(self.tokens) - 1)]
        rows[positions >= self.ends[indices, None]] = PAD
        return rows


class MappedSequences:
    """The sequences of several shards, one shard after another: arrays of rows, or spans."""

    def __init__(self, parts: Sequence[np.ndarray | _Spans], length: int) -> None:
        self.parts, self.length = parts, length
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        indices = np.asarray(indices, dtype=np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"there are {len(self)} sequences")
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        rows = np.empty((len(indices), self.length), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            is_here = shards == shard
            rows[is_here] = self.parts[shard][indices[is_here] - self._starts[shard]]
        return torch.from_numpy(rows)


def is_dataset(path: str | Path) -> bool:
    """Returns whether this is the folder of a prepared data set, finished or not."""
    folder = Path(path).expanduser()
    return any((folder / name).is_file() for name in (DESCRIPTION, PROGRESS))


class TokenDataset:
    """A prepared data set; opening it checks the size of every file and the tokenizer."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._described = _describe(self.path)
        self.tokenizer_hash: str = self._described["tokenizer"]["hash"]
        self.vocab_size: int = self._described["tokenizer"]["vocab_size"]
        self.dtype = np.dtype(self._described["dtype"]).newbyteorder("<")
        self.tokenizer: Tokenizer = load_tokenizer(self.path / "tokenizer")
        self._opened: dict[str, list[_Shard]] = {}
        self._check()

    def _check(self) -> None:
        if tokenizer_hash(self.tokenizer) != self.tokenizer_hash:
            raise ValueError(
                f"{self.path} has the tokens of another tokenizer than the one in its folder; put the "
                f"right one back or prepare the data again"
            )
        for file, size, _ in self._files():
            present = file.stat().st_size if file.is_file() else 0
            if present != size:
                raise ValueError(
                    f"{file} has {present:,} bytes, it should have {size:,}: it is damaged or cut "
                    f"short; copy it again or prepare the data again"
                )

    def verify(self) -> None:
        """Raises an error where the checksum of a file is wrong."""
        for file, _, expected in self._files():
            if (present := file_hash(file)) != expected:
                raise ValueError(
                    f"{file} is damaged: its SHA-256 is {present}, dataset.json says {expected}; "
                    f"copy it again or prepare the data again"
                )

    def _files(self) -> Iterator[tuple[Path, int, str]]:
        """Yields each file of each shard with its size in bytes and its SHA-256."""
        for split in self._described["splits"].values():
            for shard in split["shards"]:
                sizes = {
                    "tokens": shard["tokens"] * self.dtype.itemsize,
                    "ends": shard["documents"] * 8,
                }
                for suffix, size in sizes.items():
                    yield self.path / f"{shard['name']}.{suffix}", size, shard["sha256"][suffix]

    @property
    def content_hash(self) -> str:
        """A SHA-256 that is equal if and only if all tokens are."""
        return hashlib.sha256(
            json.dumps([sha256 for *_, sha256 in self._files()]).encode()
        ).hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that hold documents."""
        return tuple(name for name, split in self._described["splits"].items() if split["shards"])

    def summary(self, split: str) -> SplitSummary:
        """Returns the contents of a split, in numbers."""
        content = self._split(split)
        return SplitSummary(**{field.name: content[field.name] for field in fields(SplitSummary)})

    def num_documents(self, split: str) -> int:
        return self.summary(split).documents

    def _split(self, split: str) -> dict[str, Any]:
        if split not in self.splits:
            raise ValueError(
                f"{self.path} has no documents in a split {split!r}; it has {', '.join(self.splits)}"
            )
        return self._described["splits"][split]

    def _shards(self, split: str) -> list[_Shard]:
        if split not in self._opened:
            files = [self.path / shard["name"] for shard in self._split(split)["shards"]]
            self._opened[split] = [
                _Shard(
                    np.memmap(file.with_name(f"{file.name}.tokens"), dtype=self.dtype, mode="r"),
                    np.memmap(file.with_name(f"{file.name}.ends"), dtype="<i8", mode="r"),
                )
                for file in files
            ]
        return self._opened[split]

    def document(self, split: str, index: int) -> UInt[np.ndarray, " tokens"]:
        """Returns the tokens of a document, its EOS included."""
        for shard in self._shards(split):
            if index < len(shard.ends):
                start = int(shard.ends[index - 1]) if index else 0
                return np.array(shard.tokens[start : int(shard.ends[index])])
            index -= len(shard.ends)
        raise IndexError(f"{split} has {self.num_documents(split)} documents")

    def lengths(self, split: str) -> Int64[np.ndarray, " documents"]:
        """Returns the number of tokens of each document, its EOS included."""
        return np.concatenate([shard.ends - shard.starts for shard in self._shards(split)])

    def stream(self, split: str, length: int) -> Sequences:
        """Returns the documents one after another, cut into sequences; a rest is left out."""
        counts = [len(shard.tokens) // length for shard in self._shards(split)]
        parts = [
            shard.tokens[: count * length].reshape(count, length)
            for shard, count in zip(self._shards(split), counts, strict=True)
        ]
        return self._sequences(parts, split, length, "tokens for one sequence")

    def one_each(self, split: str, length: int) -> Sequences:
        """Returns sequences that each start a document or go on with a long one; the rest is padding."""
        parts = [_one_each(shard, length) for shard in self._shards(split)]
        return self._sequences(parts, split, length, "documents")

    def full_documents(self, split: str, length: int) -> Sequences:
        """Returns the first `length` tokens of the documents that have so many before their EOS."""
        parts = []
        for shard in self._shards(split):
            starts = shard.starts[shard.ends - 1 - shard.starts >= length]
            parts.append(_Spans(shard.tokens, starts, starts + length, length))
        return self._sequences(parts, split, length, "documents of that length")

    def whole_documents(
        self, split: str, length: int, is_wanted: Bool[np.ndarray, " documents"]
    ) -> Sequences:
        """Returns the wanted documents, none of which may be longer, each in a padded sequence."""
        parts = []
        for shard in self._shards(split):
            here, is_wanted = is_wanted[: len(shard.ends)], is_wanted[len(shard.ends) :]
            parts.append(_Spans(shard.tokens, shard.starts[here], shard.ends[here], length))
        return self._sequences(parts, split, length, "documents of at most")

    def _sequences(
        self, parts: Sequence[np.ndarray | _Spans], split: str, length: int, wanted: str
    ) -> Sequences:
        sequences = MappedSequences(parts, length)
        if len(sequences) == 0:
            raise ValueError(
                f"the split {split} of {self.path} has too few {wanted} of {length} tokens; add text or "
                f"lower the length"
            )
        return sequences


def _one_each(shard: _Shard, length: int) -> _Spans:
    starts, ends = shard.starts, shard.ends
    counts = -((starts - ends) // length)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    chunk = np.arange(len(first)) - first
    starts = np.repeat(starts, counts) + chunk * length
    return _Spans(shard.tokens, starts, np.repeat(ends, counts), length)


def _describe(path: Path) -> dict[str, Any]:
    file = path / DESCRIPTION
    if not file.is_file():
        problem = "does not exist"
        if (path / PROGRESS).is_file():
            problem = "is not finished; go on with the command that began it"
        elif path.exists():
            problem = "is not a prepared data set (no dataset.json in it)"
        command = f"cdcd data prepare --source PATH --out {shlex.quote(str(path))}"
        raise ValueError(f"{path} {problem}; prepare one with: {command}")
    described = read_json(file)
    if "sides" in described:
        raise ValueError(
            f"{path} holds pairs, for models that translate; a data set of single texts is each of its "
            f"sides: {', '.join(str(path / side) for side in described['sides'])}"
        )
    if (present := described.get("format")) != FORMAT:
        raise ValueError(f"{file} is of format {present}, this version of cdcd reads {FORMAT}")
    return described
