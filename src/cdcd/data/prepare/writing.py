"""Writing the shards of a split, so that a killed process can go on where it was.

Tokens are appended to one open shard. Now and then the disk is waited for and the sizes are saved
(`SplitProgress`); going on cuts the files back to these sizes. The end of a shard depends on the
documents alone, so an interrupted data set comes out the same to the byte.
"""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from cdcd.data.dataset_files import SplitSummary
from cdcd.data.prepare.encoding import Encoded
from cdcd.files import file_hash


@dataclass
class SplitProgress:
    """The part of a split that has been written."""

    summary: SplitSummary = field(default_factory=SplitSummary)
    shards: list[dict[str, Any]] = field(default_factory=list)
    """Descriptions of the shards that are closed."""
    tokens: int = 0
    """Tokens of the open shard."""
    documents: int = 0
    """Documents of the open shard."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "SplitProgress":
        """Returns the progress that `asdict` made JSON of."""
        return cls(**{**content, "summary": SplitSummary(**content["summary"])})


class SplitWriter:
    """Writes one split, shard after shard, from the given progress on."""

    def __init__(
        self,
        folder: Path,
        name: str,
        progress: SplitProgress,
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
    ) -> None:
        self.folder, self.name, self.progress = folder, name, progress
        self.shard_tokens = shard_tokens
        self._item_sizes = {"tokens": dtype.itemsize, "ends": 8}
        self._cut_back()

    def append(self, encoded: Encoded, is_mine: Bool[np.ndarray, " documents"]) -> None:
        """Writes those of the documents that belong to this split."""
        counts = encoded.counts[is_mine]
        before = asdict(self.progress.summary).values()
        added = (len(counts), *counts.sum(0).tolist())
        self.progress.summary = SplitSummary(*map(sum, zip(before, added, strict=True)))
        tokens, lengths = encoded.tokens[np.repeat(is_mine, encoded.lengths)], counts[:, 0]
        while len(lengths):
            written = self._fill(tokens, lengths)
            tokens, lengths = tokens[lengths[:written].sum() :], lengths[written:]

    def _fill(self, tokens: np.ndarray, lengths: np.ndarray) -> int:
        """Writes documents until the shard has its tokens; returns their number."""
        progress = self.progress
        ends = progress.tokens + np.cumsum(lengths)
        count = min(int(np.searchsorted(ends, self.shard_tokens)) + 1, len(ends))
        arrays = {
            "tokens": tokens[: int(ends[count - 1]) - progress.tokens],
            "ends": ends[:count].astype("<u8"),
        }
        for suffix, array in arrays.items():
            with self._path(suffix).open("ab") as file:
                file.write(array.data)
        progress.tokens = int(ends[count - 1])
        progress.documents += count
        if progress.tokens >= self.shard_tokens:
            self.close_shard()
        return count

    def sync(self) -> None:
        """Waits until the disk has everything."""
        for suffix in self._item_sizes if self.progress.documents else ():
            with self._path(suffix).open("ab") as file:
                os.fsync(file.fileno())

    def close_shard(self) -> None:
        """Describes the open shard, if there is one; the next document begins another."""
        progress = self.progress
        if not progress.documents:
            return
        self.sync()
        progress.shards.append(
            {
                "name": self._shard_name,
                "tokens": progress.tokens,
                "documents": progress.documents,
                "sha256": {suffix: file_hash(self._path(suffix)) for suffix in self._item_sizes},
            }
        )
        progress.tokens = progress.documents = 0

    @property
    def _shard_name(self) -> str:
        return f"{self.name}-{len(self.progress.shards):05d}"

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self._shard_name}.{suffix}"

    def _cut_back(self) -> None:
        """Removes what was written after the progress was saved."""
        for file in self.folder.glob(f"{self.name}-*.*"):
            number = int(file.stem.removeprefix(f"{self.name}-"))
            if number >= len(self.progress.shards) + bool(self.progress.documents):
                file.unlink()
        counts = {"tokens": self.progress.tokens, "ends": self.progress.documents}
        for suffix, item_size in self._item_sizes.items():
            if self.progress.documents:
                _cut(self._path(suffix), counts[suffix] * item_size)


def _cut(path: Path, size: int) -> None:
    present = path.stat().st_size if path.is_file() else 0
    if present < size:
        raise ValueError(
            f"{path} has {present:,} bytes, {size:,} had been written: it was changed since; "
            f"delete the folder and prepare the data again"
        )
    os.truncate(path, size)
