"""Progress of a preparation: the record that a killed process goes on from, and reports to the user."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64
from rich.console import Console

from cdcd.data.dataset_files import PROGRESS, SPLITS
from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.writing import SplitProgress
from cdcd.files import read_json, write_json

OUTCOMES = ("kept", "empty", "too_long", "bad_ratio")
"""Outcomes of documents and pairs: kept, or left out for a reason, which is counted."""


@dataclass
class Progress:
    """The part of a preparation that is done, as the data set's folder holds it until the end."""

    config: dict[str, Any]
    """Settings that the result depends on."""
    sizes: list[int | None]
    """Bytes of each source."""
    sides: list[dict[str, SplitProgress]]
    """The written part of each split, for each side."""
    source: int = 0
    """Index of the source that is being read."""
    documents: int = 0
    """Documents of it that are done."""
    outcomes: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: dict.fromkeys(OUTCOMES, 0) for name in SPLITS}
    )
    """For each split, the number of documents that were kept, or left out for each reason."""

    def save(self, folder: Path) -> None:
        """Replaces the record in a data set's folder."""
        write_json(folder / PROGRESS, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Progress":
        """Reads the record in a data set's folder."""
        content = read_json(folder / PROGRESS)
        if content.keys() != {each.name for each in fields(cls)}:
            raise ValueError(
                f"{folder} was begun by another version of cdcd; delete it and prepare the data again"
            )
        sides = [
            {name: SplitProgress.from_json(split) for name, split in side.items()}
            for side in content["sides"]
        ]
        return cls(**{**content, "sides": sides})

    @property
    def num_bytes(self) -> int:
        """Bytes of text that have been written."""
        return sum(split.summary.bytes for side in self.sides for split in side.values())

    @property
    def splits(self) -> list[str]:
        """The splits that hold documents."""
        return [name for name in SPLITS if self.outcomes[name]["kept"]]


def outcomes_of(
    lengths: Sequence[Int64[np.ndarray, " documents"]],
    is_limited: Bool[np.ndarray, " documents"],
    config: PrepareConfig,
) -> Int64[np.ndarray, " documents"]:
    """Returns indices into `OUTCOMES`, by the tokens of each side, ends included.

    The limits hold for documents where `is_limited`; the first reason to leave one out counts.
    """
    limits = (config.max_source_length, config.max_target_length)
    is_too_long = np.any(
        [side > (limit or np.inf) for side, limit in zip(lengths, limits, strict=False)], axis=0
    )
    longer = np.max(lengths, axis=0) - 1
    shorter = np.maximum(np.min(lengths, axis=0) - 1, 1)
    is_bad_ratio = longer > (config.max_ratio or np.inf) * shorter
    is_empty = np.min(lengths, axis=0) == 0
    return np.select([is_empty, is_limited & is_too_long, is_limited & is_bad_ratio], [1, 2, 3], 0)


def in_words(counts: Mapping[str, int]) -> str:
    """Returns the number of documents of each outcome, as text."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def report(progress: Progress, config: PrepareConfig, console: Console) -> None:
    """Prints what was prepared, and what was left out and why."""
    for name, counts in progress.outcomes.items():
        sides = [side[name].summary for side in progress.sides]
        tokens = " + ".join(f"{side.tokens:,}" for side in sides)
        size = " + ".join(f"{side.bytes / 1e6:,.1f}" for side in sides)
        if any(counts.values()):
            line = f"{name}: {in_words(counts)}; {tokens} tokens, {size} MB"
            console.print(line, highlight=False)
        unknown, undecodable = sum(s.unknown for s in sides), sum(s.undecodable for s in sides)
        if unknown or undecodable:
            console.print(f"  {unknown:,} of them unknown, {undecodable:,} bytes not UTF-8")
    for name, share in zip(SPLITS[1:], config.shares, strict=True):
        if share and name not in progress.splits:
            console.print(f"the split {name} is empty: raise {name}_share ({share})")
