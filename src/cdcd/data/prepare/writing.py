"""Writing the shards of a split, so that a killed process can go on where it was.

Tokens are appended to one open shard, the last. Now and then the disk is waited for and the progress
is saved; going on cuts the files back to the sizes that were saved. The end of a shard depends on the
documents alone, so an interrupted data set comes out the same to the byte.
"""

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from cdcd.data.dataset_files import (
    COUNTS,
    PROGRESS,
    REMEDY,
    SHARD,
    SPLITS,
    SplitContent,
    check_types,
    file_sizes,
    split_content,
)
from cdcd.data.prepare.encoding import Encoded
from cdcd.files import file_hash, read_json, write_json

SUFFIXES = ("tokens", "ends")
PATTERN = {
    "begun": {},
    "sides": [{name: {**COUNTS, "shards": [SHARD]} for name in SPLITS}],
    "source": int,
    "documents": int,
    "empty": dict.fromkeys(SPLITS, int),
}
"""The pattern of the record of a preparation."""


@dataclass
class Progress:
    """The part of a preparation that is done, as the data set's folder holds it until the end."""

    begun: dict[str, Any]
    """Settings that the result depends on, and bytes of the sources."""
    sides: list[dict[str, SplitContent]]
    """The written part of each split, for each side."""
    source: int = 0
    """Index of the source that is being read."""
    documents: int = 0
    """Documents of it that are done."""
    empty: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    """Empty documents of each split, or pairs with an empty side, which are left out."""

    def save(self, folder: Path) -> None:
        """Replaces the record in a data set's folder."""
        write_json(folder / PROGRESS, asdict(self))

    @classmethod
    def load(cls, folder: Path, begun: dict[str, Any], num_sides: int) -> "Progress":
        """Reads the record in a data set's folder, which must have been begun in the same way."""
        file = folder / PROGRESS
        content = read_json(file)
        if content.keys() != {each.name for each in fields(cls)}:
            raise ValueError(
                f"{folder} was begun by another version of cdcd; delete it and prepare the data again"
            )
        check_types(content, PATTERN, file)
        for name, value in begun.items():
            if (before := content["begun"].get(name)) != value:
                raise ValueError(
                    f"{folder} was begun with {name} {before!r}, not {value!r}; go on with the same "
                    f"settings and text, or choose another --out"
                )
        if len(content["sides"]) != num_sides:
            raise ValueError(f"{file} is damaged: it has {len(content['sides'])} sides; {REMEDY}")
        content["sides"] = [
            {name: split_content(name, split, file) for name, split in side.items()}
            for side in content["sides"]
        ]
        return cls(**content)

    @property
    def num_bytes(self) -> int:
        """Bytes of text that have been written."""
        return sum(split.bytes for side in self.sides for split in side.values())


class SplitWriter:
    """Writes one split, shard after shard, behind the given content, which it keeps up to date."""

    def __init__(
        self,
        folder: Path,
        name: str,
        content: SplitContent,
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
    ) -> None:
        self.folder, self.name, self.content = folder, name, content
        self.token_bytes, self.shard_tokens = dtype.itemsize, shard_tokens
        self._cut_back()

    def append(self, encoded: Encoded, is_mine: Bool[np.ndarray, " documents"]) -> None:
        """Writes those of the documents that belong to this split."""
        counts, content = encoded.counts[is_mine], self.content
        num_tokens, num_bytes, unknown, undecodable = counts.sum(0).tolist()
        content.documents += len(counts)
        content.tokens += num_tokens
        content.bytes += num_bytes
        content.unknown += unknown
        content.undecodable += undecodable
        tokens, lengths = encoded.tokens[np.repeat(is_mine, encoded.lengths)], counts[:, 0]
        while len(lengths):
            written = self._fill(tokens, lengths)
            tokens, lengths = tokens[lengths[:written].sum() :], lengths[written:]

    def _fill(self, tokens: np.ndarray, lengths: np.ndarray) -> int:
        """Writes documents until the shard has its tokens; returns their number."""
        shard = self._open_shard()
        ends = shard["tokens"] + np.cumsum(lengths)
        count = min(int(np.searchsorted(ends, self.shard_tokens)) + 1, len(ends))
        arrays = {
            "tokens": tokens[: int(ends[count - 1]) - shard["tokens"]],
            "ends": ends[:count].astype("<u8"),
        }
        for suffix, array in arrays.items():
            with self._path(suffix).open("ab") as file:
                file.write(array.data)
        shard["tokens"] = int(ends[count - 1])
        shard["documents"] += count
        if shard["tokens"] >= self.shard_tokens:
            self.close_shard()
        return count

    def sync(self) -> None:
        """Waits until the disk has everything."""
        for suffix in SUFFIXES if self._is_open else ():
            with self._path(suffix).open("ab") as file:
                os.fsync(file.fileno())

    def close_shard(self) -> None:
        """Completes the open shard, if there is one; the next document begins another."""
        if self._is_open:
            self.sync()
            hashes = {suffix: file_hash(self._path(suffix)) for suffix in SUFFIXES}
            self.content.shards[-1]["sha256"] = hashes

    @property
    def _is_open(self) -> bool:
        shards = self.content.shards
        return bool(shards) and "sha256" not in shards[-1]

    def _open_shard(self) -> dict[str, Any]:
        shards = self.content.shards
        if not self._is_open:
            shards.append({"name": f"{self.name}-{len(shards):05d}", "tokens": 0, "documents": 0})
        return shards[-1]

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.content.shards[-1]['name']}.{suffix}"

    def _cut_back(self) -> None:
        """Removes what was written after the progress was saved."""
        sizes = {
            self.folder / f"{shard['name']}.{suffix}": size
            for shard in self.content.shards
            for suffix, size in file_sizes(shard, self.token_bytes).items()
        }
        for file in self.folder.glob(f"{self.name}-*.*"):
            if file not in sizes:
                file.unlink()
        for file, size in sizes.items():
            _cut(file, size)


def _cut(file: Path, size: int) -> None:
    present = file.stat().st_size if file.is_file() else 0
    if present < size:
        raise ValueError(
            f"{file} has {present:,} bytes, {size:,} had been written: it was changed since; "
            f"delete the folder and prepare the data again"
        )
    os.truncate(file, size)
