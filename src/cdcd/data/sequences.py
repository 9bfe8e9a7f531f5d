"""Token sequences to train on: in memory, or memory-mapped from a prepared data set.

The operating system keeps in memory what is used. Documents never cross shards, and neither do
sequences. Texts in memory are one shard.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt, UInt64
from torch import Tensor

from cdcd.data.dataset_files import (
    DESCRIPTION,
    PROGRESS,
    REMEDY,
    SplitContent,
    file_sizes,
    read_description,
    split_content,
)
from cdcd.data.order import ROUNDS, keys_for, mix, permuted
from cdcd.data.remote import dataset_folder, is_remote
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, token_dtype, tokenizer_hash
from cdcd.data.vocabulary import EOS, PAD
from cdcd.files import expanded, file_hash

Layout = Literal["documents", "stream"]
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
class _Spans:
    """Sequences that start anywhere in a shard; those that end early are padded."""

    tokens: UInt[np.ndarray, " tokens"] | Int[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " sequences"]
    ends: Int64[np.ndarray, " sequences"]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, indices: Int64[np.ndarray, " rows"]) -> np.ndarray:
        positions = self.starts[indices, None] + np.arange(self.length)
        rows = self.tokens[np.minimum(positions, len(self.tokens) - 1)]
        rows[positions >= self.ends[indices, None]] = PAD
        return rows


class DamagedDataError(ValueError):
    """A data set whose files are not what was written."""


@dataclass(frozen=True)
class Shard:
    """Documents one after another, each ended by EOS."""

    tokens: UInt[np.ndarray, " tokens"] | Int[np.ndarray, " tokens"]
    ends: Int64[np.ndarray, " documents"]
    vocab_size: int
    path: Path | None = None
    """The file of the tokens, where they are not in memory."""

    @property
    def starts(self) -> Int64[np.ndarray, " documents"]:
        """The start of each document; raises an error where the ends are damaged."""
        starts = np.concatenate([[0], self.ends[:-1]])
        if (self.ends <= starts).any() or self.ends[-1] != len(self.tokens):
            raise self._damaged("the ends of its documents do not fit its tokens")
        return starts

    def document(self, index: int) -> np.ndarray:
        """Returns the tokens of a document, its EOS included."""
        start, end = int(self.ends[index - 1]) if index else 0, int(self.ends[index])
        if not 0 <= start < end <= len(self.tokens):
            raise self._damaged("the ends of its documents do not fit its tokens")
        tokens = np.array(self.tokens[start:end])
        self.check(tokens)
        return tokens

    def check(self, tokens: Int[np.ndarray, "..."] | UInt[np.ndarray, "..."]) -> None:
        """Raises an error where tokens that were read from this shard are not in the vocabulary."""
        if tokens.size and (largest := int(tokens.max())) >= self.vocab_size:
            raise self._damaged(
                f"it holds the token {largest}, of a vocabulary of {self.vocab_size}"
            )

    def _damaged(self, problem: str) -> "DamagedDataError":
        assert self.path is not None  # What is in memory was made by the tokenizer.
        return DamagedDataError(
            f"{self.path} or the file of its ends is damaged: {problem}; find what is, with: cdcd data "
            f"verify {shlex.quote(str(self.path.parent))}"
        )


class MappedSequences:
    """The sequences of several shards, one shard after another: arrays of rows, or spans."""

    def __init__(
        self, parts: Sequence[np.ndarray | _Spans], shards: Sequence[Shard], length: int
    ) -> None:
        self.parts, self.shards, self.length = parts, shards, length
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
            here = self.parts[shard][indices[is_here] - self._starts[shard]]
            self.shards[shard].check(here)
            rows[is_here] = here
        return torch.from_numpy(rows)


class TokenDocuments:
    """Documents of tokens in shards, and the sequences that they are cut into."""

    def __init__(self, shards: Sequence[Shard], name: str) -> None:
        self.shards, self.name = shards, name

    @classmethod
    def of_texts(cls, texts: Iterable[str], tokenizer: Tokenizer, name: str) -> "TokenDocuments":
        """Tokenises texts, which stay in memory."""
        documents = [[*tokenizer.encode(text), EOS] for text in texts]
        ends = np.cumsum([len(tokens) for tokens in documents], dtype=np.int64)
        tokens = np.fromiter(chain.from_iterable(documents), np.int32)
        return cls([Shard(tokens, ends, tokenizer.vocab_size)], name)

    def __len__(self) -> int:
        return sum(len(shard.ends) for shard in self.shards)

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns the tokens of a document, its EOS included."""
        for shard in self.shards:
            if index < len(shard.ends):
                return shard.document(index)
            index -= len(shard.ends)
        raise IndexError(f"{self.name} has {len(self)} documents")

    def lengths(self) -> Int64[np.ndarray, " documents"]:
        """Returns the number of tokens of each document, its EOS included."""
        return np.concatenate([shard.ends - shard.starts for shard in self.shards])

    def sequences(self, length: int, layout: Layout) -> Sequences:
        """Returns sequences that each start a document, or a stream of documents cut into sequences."""
        return self.one_each(length) if layout == "documents" else self.stream(length)

    def stream(self, length: int) -> Sequences:
        """Returns the documents one after another, cut into sequences; a rest is left out."""
        parts = [
            shard.tokens[: len(shard.tokens) // length * length].reshape(-1, length)
            for shard in self.shards
        ]
        return self._mapped(parts, length, "tokens for one sequence")

    def one_each(self, length: int) -> Sequences:
        """Returns sequences that each start a document or go on with a long one; the rest is padding."""
        parts = []
        for shard in self.shards:
            starts = shard.starts
            counts = -((starts - shard.ends) // length)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            chunk = np.arange(len(first)) - first
            starts = np.repeat(starts, counts) + chunk * length
            parts.append(_Spans(shard.tokens, starts, np.repeat(shard.ends, counts), length))
        return self._mapped(parts, length, "documents")

    def full(self, length: int) -> Sequences:
        """Returns the first `length` tokens of the documents that have so many before their EOS."""
        return self.beginnings(length, self.lengths() > length)

    def beginnings(self, length: int, is_wanted: Bool[np.ndarray, " documents"]) -> Sequences:
        """Returns the first `length` tokens of the wanted documents; shorter ones are padded."""
        parts = []
        for shard in self.shards:
            here, is_wanted = is_wanted[: len(shard.ends)], is_wanted[len(shard.ends) :]
            parts.append(_Spans(shard.tokens, shard.starts[here], shard.ends[here], length))
        return self._mapped(parts, length, "documents of that length")

    def _mapped(self, parts: Sequence[np.ndarray | _Spans], length: int, wanted: str) -> Sequences:
        sequences = MappedSequences(parts, self.shards, length)
        if len(sequences) == 0:
            raise ValueError(
                f"{self.name} has too few {wanted} of {length} tokens; add text or lower data.length"
            )
        return sequences


def is_dataset(path: str | Path) -> bool:
    """Returns whether this is the folder of a prepared data set, finished or not, or the address of one."""
    if is_remote(path):
        return True  # Nothing else can be at an address.
    folder = expanded(path)
    return any((folder / name).is_file() for name in (DESCRIPTION, PROGRESS))


def check_tokenizer(path: Path, tokenizer: Tokenizer, expected: str) -> None:
    """Raises an error where the tokenizer in the folder of a data set is not the one of its tokens."""
    if tokenizer_hash(tokenizer) != expected:
        raise ValueError(
            f"{path} has the tokens of another tokenizer than the one in its folder; put the right one "
            f"back or prepare the data again"
        )


class TokenDataset:
    """A prepared data set; opening it checks the size of every file and the tokenizer."""

    def __init__(self, path: str | Path) -> None:
        self.path = dataset_folder(path)
        described = read_description(self.path)
        if "sides" in described:
            raise ValueError(
                f"{self.path} holds pairs, for models that translate; a data set of single texts is each "
                f"of its sides: {', '.join(str(self.path / side) for side in described['sides'])}"
            )
        self.tokenizer: Tokenizer = load_tokenizer(self.path / "tokenizer")
        self.tokenizer_hash: str = described["tokenizer"]["hash"]
        self.dtype = token_dtype(self.tokenizer.vocab_size)
        self._contents = {
            name: split_content(name, split, self.path / DESCRIPTION)
            for name, split in described["splits"].items()
        }
        self.splits = tuple(self._contents)
        """The splits that hold documents."""
        self._opened: dict[str, TokenDocuments] = {}
        self._check(described["dtype"])

    def _check(self, dtype: str) -> None:
        check_tokenizer(self.path, self.tokenizer, self.tokenizer_hash)
        if dtype != self.dtype.name:
            raise ValueError(
                f"{self.path / DESCRIPTION} is damaged: dtype is {dtype[:40]!r}, not {self.dtype.name}; "
                f"{REMEDY}"
            )
        for file, size, _ in self._files():
            present = file.stat().st_size if file.is_file() else 0
            if present != size:
                raise ValueError(
                    f"{file} has {present:,} bytes, it should have {size:,}: it is damaged or cut "
                    f"short; {REMEDY}"
                )

    def verify(self) -> None:
        """Raises an error where the checksum of a file is wrong."""
        for file, _, expected in self._files():
            if (present := file_hash(file)) != expected:
                raise ValueError(
                    f"{file} is damaged: its SHA-256 is {present}, dataset.json says {expected}; "
                    f"{REMEDY}"
                )

    def _files(self) -> Iterator[tuple[Path, int, str]]:
        """Yields each file of each shard with its size in bytes and its SHA-256."""
        for shard in (shard for content in self._contents.values() for shard in content.shards):
            for suffix, size in file_sizes(shard, self.dtype.itemsize).items():
                yield self.path / f"{shard['name']}.{suffix}", size, shard["sha256"][suffix]

    @property
    def content_hash(self) -> str:
        """A SHA-256 that is equal if and only if all tokens are."""
        return hashlib.sha256(
            json.dumps([sha256 for *_, sha256 in self._files()]).encode()
        ).hexdigest()

    def summary(self, split: str) -> SplitContent:
        """Returns the contents of a split, in numbers."""
        if split not in self._contents:
            raise ValueError(
                f"{self.path} has no documents in a split {split!r}; it has {', '.join(self.splits)}"
            )
        return self._contents[split]

    def documents(self, split: str) -> TokenDocuments:
        """Returns the documents of a split, memory-mapped."""
        if split not in self._opened:
            shards = [self._shard(shard["name"]) for shard in self.summary(split).shards]
            self._opened[split] = TokenDocuments(shards, f"the split {split} of {self.path}")
        return self._opened[split]

    def _shard(self, name: str) -> Shard:
        """Opens a shard, memory-mapped."""
        tokens, ends = (self.path / f"{name}.{suffix}" for suffix in ("tokens", "ends"))
        return Shard(
            np.memmap(tokens, dtype=self.dtype, mode="r"),
            np.memmap(ends, dtype="<i8", mode="r"),
            self.tokenizer.vocab_size,
            tokens,
        )
