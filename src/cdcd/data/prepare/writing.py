"""Writing the shards of a data set, so that a killed process can go on where it was.

Tokens are appended to one open shard of each split. Now and then the files are flushed to disk and
their sizes noted (`SplitWriter.state`); going on cuts the files back to these sizes. Where a shard
ends depends on the documents alone, so an interrupted data set comes out the same to the byte.
"""

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Bool, Int64

from cdcd._version import __version__
from cdcd.data.format import DESCRIPTION, FORMAT, SPLITS, SplitSummary
from cdcd.data.prepare.encoding import Encoded
from cdcd.data.tokenizers import Tokenizer, token_dtype, tokenizer_hash
from cdcd.files import file_hash, write_json


@dataclass(frozen=True)
class _Open:
    """The files of the shard that is being written."""

    tokens: BinaryIO
    ends: BinaryIO

    def sync(self) -> None:
        for file in (self.tokens, self.ends):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self.sync()
        self.tokens.close()
        self.ends.close()


class SplitWriter:
    """Writes one split, shard after shard."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.name, self.dtype, self.shard_tokens = folder, name, dtype, shard_tokens
        state = state or {"summary": {}, "shards": [], "tokens": 0, "documents": 0}
        self.summary = SplitSummary(**state["summary"])
        self.shards: list[dict[str, Any]] = list(state["shards"])
        self.tokens: int = state["tokens"]
        self.documents: int = state["documents"]
        self._remove_later_shards()
        self._open: _Open | None = None
        if self.documents:
            self._open = self._reopen()

    @property
    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here, once flushed."""
        return {
            "summary": asdict(self.summary),
            "shards": self.shards,
            "tokens": self.tokens,
            "documents": self.documents,
        }

    def append(self, encoded: Encoded, is_mine: Bool[np.ndarray, " documents"]) -> None:
        """Write those of the documents that belong to this split."""
        if not is_mine.any():
            return
        tokens = encoded.tokens[np.repeat(is_mine, encoded.lengths)]
        lengths = encoded.lengths[is_mine]
        counts = {
            "documents": len(lengths),
            "tokens": len(tokens),
            "bytes": int(encoded.bytes[is_mine].sum()),
            "unknown": int(encoded.unknown[is_mine].sum()),
            "undecodable": int(encoded.undecodable[is_mine].sum()),
        }
        self.summary = SplitSummary(
            **{f.name: getattr(self.summary, f.name) + counts[f.name] for f in fields(SplitSummary)}
        )
        while len(lengths):
            count = self._fill(tokens, lengths)
            tokens, lengths = tokens[lengths[:count].sum() :], lengths[count:]

    def _fill(self, tokens: np.ndarray, lengths: np.ndarray) -> int:
        """Write documents until the shard has its tokens; how many."""
        ends = self.tokens + np.cumsum(lengths)
        count = min(int(np.searchsorted(ends, self.shard_tokens)) + 1, len(ends))
        files = self._open = self._open or self._reopen()
        files.tokens.write(tokens[: int(ends[count - 1]) - self.tokens].astype(self.dtype).data)
        files.ends.write(ends[:count].astype("<u8").data)
        self.tokens = int(ends[count - 1])
        self.documents += count
        if self.tokens >= self.shard_tokens:
            self._close_shard()
        return count

    def flush(self) -> None:
        """Wait until the disk has everything."""
        if self._open is not None:
            self._open.sync()

    def finish(self) -> dict[str, Any]:
        """Close the last shard and describe the split."""
        if self.documents:
            self._close_shard()
        return {**asdict(self.summary), "shards": self.shards}

    def abandon(self) -> None:
        """Leave the files as they are."""
        if self._open is not None:
            self._open.tokens.close()
            self._open.ends.close()
            self._open = None

    def _close_shard(self) -> None:
        assert self._open is not None
        self._open.close()
        sums = {kind: file_hash(self._path(kind)) for kind in ("tokens", "ends")}
        self.shards.append(
            {
                "name": self._shard_name,
                "tokens": self.tokens,
                "documents": self.documents,
                "sha256": sums,
            }
        )
        self.tokens, self.documents, self._open = 0, 0, None

    @property
    def _shard_name(self) -> str:
        return f"{self.name}-{len(self.shards):05d}"

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self._shard_name}.{kind}"

    def _reopen(self) -> _Open:
        sizes = {"tokens": self.tokens * self.dtype.itemsize, "ends": self.documents * 8}
        return _Open(**{kind: _open_at(self._path(kind), size) for kind, size in sizes.items()})

    def _remove_later_shards(self) -> None:
        """Delete what was written after the state was noted."""
        for file in self.folder.glob(f"{self.name}-*.*"):
            number = int(file.stem.removeprefix(f"{self.name}-"))
            if number > len(self.shards) or (number == len(self.shards) and not self.documents):
                file.unlink()


def _open_at(path: Path, size: int) -> BinaryIO:
    """A file to append to, cut back to this size."""
    file = path.open("ab")
    if file.tell() < size:
        file.close()
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, {size:,} had been written: it was changed since; "
            f"delete the folder and prepare the data again"
        )
    file.truncate(size)
    return file


class DatasetWriter:
    """Writes all splits of a data set."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        *,
        shard_tokens: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.splits = {
            name: SplitWriter(
                folder,
                name,
                dtype=self.dtype,
                shard_tokens=shard_tokens,
                state=(state or {}).get(name),
            )
            for name in SPLITS
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of text written so far."""
        return sum(split.summary.bytes for split in self.splits.values())

    @property
    def summaries(self) -> dict[str, SplitSummary]:
        """What is in the splits that hold documents."""
        found = {name: split.summary for name, split in self.splits.items()}
        return {name: summary for name, summary in found.items() if summary.documents}

    def append(
        self,
        encoded: Encoded,
        splits: Int64[np.ndarray, " documents"],
        is_kept: Bool[np.ndarray, " documents"],
    ) -> None:
        """Write documents, each to its split (a place in `SPLITS`)."""
        for place, split in enumerate(self.splits.values()):
            split.append(encoded, (splits == place) & is_kept)

    def note(self) -> dict[str, Any]:
        """Wait until the disk has everything; all that is needed to go on from here."""
        for split in self.splits.values():
            split.flush()
        return {name: split.state for name, split in self.splits.items()}

    def abandon(self) -> None:
        for split in self.splits.values():
            split.abandon()

    def finish(self, **described: Any) -> None:
        """Close the shards and describe the data set, which makes it whole."""
        splits = {name: self.splits[name].finish() for name in self.summaries}
        about = description(self.tokenizer) | {"dtype": self.dtype.name, **described}
        write_json(self.folder / DESCRIPTION, about | {"splits": splits})


def description(tokenizer: Tokenizer) -> dict[str, Any]:
    """What every description of a data set says."""
    return {
        "format": FORMAT,
        "cdcd_version": __version__,
        "tokenizer": {
            "kind": tokenizer.kind,
            "hash": tokenizer_hash(tokenizer),
            "vocab_size": tokenizer.vocab_size,
        },
    }
