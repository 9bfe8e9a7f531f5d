"""Token sequences to train on: in memory, or memory-mapped from a prepared data set.

The operating system keeps in memory what is used. Documents never cross shards, and neither do
sequences.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt, UInt64
from torch import Tensor

from cdcd.data.format import DESCRIPTION, FORMAT, PROGRESS, SplitSummary
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
        """These sequences, as int64."""
        ...


@runtime_checkable
class Varied(Sequences, Protocol):
    """Sequences that look different in every epoch."""

    def varied_rows(
        self, indices: Int64[np.ndarray, " rows"], bits: UInt64[np.ndarray, " rows"]
    ) -> Int[Tensor, "rows length"]:
        """Returns these sequences, each varied by its own 64 random bits."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Sequences that are there already."""

    tokens: Int[Tensor, "sequences length"]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        return self.tokens[torch.as_tensor(indices)].long()


@dataclass(frozen=True)
class Shuffled:
    """Training sequences in an order that is a function of the seed: any step's batch, at any time."""

    sequences: Sequences
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.sequences, Tensor):
            object.__setattr__(self, "sequences", InMemory(self.sequences))
        if len(self.sequences) == 0:
            raise ValueError("there are no sequences to train on")

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Int[Tensor, "rows length"]:
        """This rank's rows of training step `step`: whole epochs, each in a new order."""
        if self.batch_size % world_size:
            raise ValueError(
                f"the batch of {self.batch_size} sequences cannot be shared by {world_size} ranks; "
                f"make it a multiple of their number"
            )
        share = self.batch_size // world_size
        first = step * self.batch_size + rank * share
        positions = np.arange(first, first + share)
        indices = self.order(positions)
        if isinstance(self.sequences, Varied):
            key = keys_for(self.seed, "variation", count=1)
            return self.sequences.varied_rows(indices, mix(mix(positions.astype(np.uint64)) ^ key))
        return self.sequences.rows(indices)

    def order(self, positions: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
        """The sequences at these positions of the endless series of epochs."""
        size = len(self.sequences)
        epochs, places = np.divmod(positions, size)
        found = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            keys = keys_for(self.seed, "epoch", epoch, count=ROUNDS)
            found[now] = permuted(places[now], size, keys)
        return found


class _Part(Protocol):
    """The sequences of one shard."""

    def __len__(self) -> int: ...
    def rows(self, indices: Int64[np.ndarray, " rows"]) -> UInt[np.ndarray, "rows length"]: ...


@dataclass(frozen=True)
class _Windows:
    """A shard cut into sequences, wherever its documents end; a rest shorter than one is left."""

    windows: UInt[np.ndarray, "sequences length"]

    def __len__(self) -> int:
        return len(self.windows)

    def rows(self, indices: Int64[np.ndarray, " rows"]) -> UInt[np.ndarray, "rows length"]:
        return self.windows[indices]


@dataclass(frozen=True)
class _Spans:
    """Sequences that start anywhere in a shard; those that end early are padded."""

    tokens: UInt[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " sequences"]
    ends: Int64[np.ndarray, " sequences"]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, indices: Int64[np.ndarray, " rows"]) -> UInt[np.ndarray, "rows length"]:
        places = self.starts[indices, None] + np.arange(self.length)
        is_padding = places >= self.ends[indices, None]
        found = self.tokens[np.minimum(places, len(self.tokens) - 1)]
        found[is_padding] = PAD
        return found


class Mapped:
    """The sequences of several shards, one shard after another."""

    def __init__(self, parts: Sequence[_Part], length: int, dtype: np.dtype[Any]) -> None:
        self.parts, self.dtype = parts, dtype
        self._length = length
        self._starts = np.cumsum([0, *map(len, parts)])

    @property
    def length(self) -> int:
        return self._length

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, indices: Indices) -> Int[Tensor, "rows length"]:
        indices = np.asarray(indices, dtype=np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"there are {len(self)} sequences")
        is_one = len(self.parts) == 1
        found = self.parts[0].rows(indices) if is_one else self._gather(indices)
        return torch.from_numpy(found.astype(np.int64))

    def _gather(self, indices: Int64[np.ndarray, " rows"]) -> UInt[np.ndarray, "rows length"]:
        places = np.searchsorted(self._starts, indices, side="right") - 1
        found = np.empty((len(indices), self.length), dtype=self.dtype)
        for place in np.unique(places).tolist():
            here = places == place
            found[here] = self.parts[place].rows(indices[here] - self._starts[place])
        return found


@dataclass(frozen=True)
class _Shard:
    tokens: UInt[np.ndarray, " tokens"]
    ends: UInt64[np.ndarray, " documents"]

    def spans(self) -> tuple[Int64[np.ndarray, " documents"], Int64[np.ndarray, " documents"]]:
        """Where each document starts and ends."""
        ends = self.ends.astype(np.int64)
        return np.concatenate([[0], ends[:-1]]), ends


def is_dataset(path: str | Path) -> bool:
    """Whether this is the folder of a prepared data set, finished or not."""
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
        self._check_tokenizer()
        self._check_sizes()
        self._opened: dict[str, list[_Shard]] = {}

    def _check_tokenizer(self) -> None:
        found = tokenizer_hash(self.tokenizer)
        if found != self.tokenizer_hash:
            raise ValueError(
                f"{self.path} has the tokens of another tokenizer: its tokenizer folder has hash "
                f"{found}, dataset.json says {self.tokenizer_hash}; put the right one back or prepare "
                f"the data again"
            )

    def _check_sizes(self) -> None:
        for shard in self._shards():
            for kind, size in (
                ("tokens", shard["tokens"] * self.dtype.itemsize),
                ("ends", shard["documents"] * 8),
            ):
                file = self.path / f"{shard['name']}.{kind}"
                found = file.stat().st_size if file.is_file() else 0
                if found != size:
                    raise ValueError(
                        f"{file} has {found:,} bytes, it should have {size:,}: it is damaged or cut "
                        f"short; copy it again or prepare the data again"
                    )

    def _shards(self) -> list[dict[str, Any]]:
        return [shard for split in self._described["splits"].values() for shard in split["shards"]]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that hold documents."""
        return tuple(name for name, split in self._described["splits"].items() if split["shards"])

    def summary(self, split: str) -> SplitSummary:
        """What a split holds."""
        found = self._split(split)
        return SplitSummary(**{field.name: found[field.name] for field in fields(SplitSummary)})

    def num_documents(self, split: str) -> int:
        return self.summary(split).documents

    def verify(self) -> None:
        """Compare every file with its checksum."""
        for shard in self._shards():
            for kind, expected in shard["sha256"].items():
                file = self.path / f"{shard['name']}.{kind}"
                if (found := file_hash(file)) != expected:
                    raise ValueError(
                        f"{file} is damaged: its SHA-256 is {found}, dataset.json says {expected}; "
                        f"copy it again or prepare the data again"
                    )

    def _split(self, split: str) -> dict[str, Any]:
        if split not in self.splits:
            raise ValueError(
                f"{self.path} has no documents in a split {split!r}; it has {', '.join(self.splits)}"
            )
        return self._described["splits"][split]

    def _open(self, split: str) -> list[_Shard]:
        if split not in self._opened:
            self._opened[split] = [
                _Shard(
                    np.memmap(self.path / f"{shard['name']}.tokens", dtype=self.dtype, mode="r"),
                    np.memmap(self.path / f"{shard['name']}.ends", dtype="<u8", mode="r"),
                )
                for shard in self._split(split)["shards"]
            ]
        return self._opened[split]

    def document(self, split: str, index: int) -> UInt[np.ndarray, " tokens"]:
        """The tokens of a document, its EOS included."""
        if not 0 <= index < self.num_documents(split):
            raise IndexError(f"{split} has {self.num_documents(split)} documents")
        for shard in self._open(split):
            if index < len(shard.ends):
                start = int(shard.ends[index - 1]) if index else 0
                return np.array(shard.tokens[start : int(shard.ends[index])])
            index -= len(shard.ends)
        raise AssertionError("the shards hold fewer documents than dataset.json says")

    def stream(self, split: str, length: int) -> Sequences:
        """The documents one after another, cut into sequences."""
        parts = []
        for shard in self._open(split):
            count = len(shard.tokens) // length
            parts.append(_Windows(shard.tokens[: count * length].reshape(count, length)))
        return self._sequences(parts, split, length, "tokens for one sequence")

    def one_each(self, split: str, length: int) -> Sequences:
        """Each document starts a sequence; a long one fills several; the rest is padding."""
        parts = [_one_each(shard, length) for shard in self._open(split)]
        return self._sequences(parts, split, length, "documents")

    def full_documents(self, split: str, length: int) -> Sequences:
        """The first `length` tokens of the documents that have so many before their EOS."""
        parts = []
        for shard in self._open(split):
            starts, ends = shard.spans()
            starts = starts[ends - 1 - starts >= length]
            parts.append(_Spans(shard.tokens, starts, starts + length, length))
        return self._sequences(parts, split, length, "documents of that length")

    def lengths(self, split: str) -> Int64[np.ndarray, " documents"]:
        """The tokens of each document, its EOS included."""
        spans = (shard.spans() for shard in self._open(split))
        return np.concatenate([ends - starts for starts, ends in spans])

    def whole_documents(
        self, split: str, length: int, is_wanted: Bool[np.ndarray, " documents"]
    ) -> Sequences:
        """The wanted documents, each in one sequence, which must be long enough, and padded."""
        assert int(self.lengths(split)[is_wanted].max(initial=0)) <= length
        parts, first = [], 0
        for shard in self._open(split):
            starts, ends = shard.spans()
            here = is_wanted[first : first + len(ends)]
            parts.append(_Spans(shard.tokens, starts[here], ends[here], length))
            first += len(ends)
        return self._sequences(parts, split, length, "documents of at most")

    def _sequences(self, parts: list[Any], split: str, length: int, what: str) -> Sequences:
        found = Mapped([part for part in parts if len(part)], length, self.dtype)
        if len(found) == 0:
            raise ValueError(
                f"the split {split} of {self.path} has too few {what} of {length} tokens; add text or "
                f"lower the length"
            )
        return found


def _one_each(shard: _Shard, length: int) -> _Spans:
    starts, ends = shard.spans()
    counts = -((starts - ends) // length)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    chunk = np.arange(len(first)) - first
    return _Spans(
        shard.tokens, np.repeat(starts, counts) + chunk * length, np.repeat(ends, counts), length
    )


def _describe(path: Path) -> dict[str, Any]:
    file = path / DESCRIPTION
    if not file.is_file():
        command = f"cdcd data prepare --source PATH --out {shlex.quote(str(path))}"
        if (path / PROGRESS).is_file():
            raise ValueError(
                f"{path} is not finished; go on with the command that began it: {command}"
            )
        what = (
            "is not a prepared data set (no dataset.json in it)"
            if path.exists()
            else "does not exist"
        )
        raise ValueError(f"{path} {what}; prepare one with: {command}")
    described = read_json(file)
    if "sides" in described:
        raise ValueError(
            f"{path} holds pairs, for models that translate; a data set of single texts is each of its "
            f"sides: {', '.join(str(path / side) for side in described['sides'])}"
        )
    missing = [name for name in ("format", "dtype", "tokenizer", "splits") if name not in described]
    if missing:
        raise ValueError(f"{file} is damaged: it has no {missing[0]}")
    if described["format"] != FORMAT:
        raise ValueError(
            f"{file} is of format {described['format']}, this version of cdcd reads {FORMAT}"
        )
    return described
