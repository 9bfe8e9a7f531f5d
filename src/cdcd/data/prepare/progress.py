"""Progress of a preparation: the record that a killed process goes on from, and reports to the user."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.data.dataset_files import PROGRESS, SPLITS
from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.filtering import OUTCOMES, outcomes_in_words
from cdcd.data.prepare.writing import SplitProgress
from cdcd.files import read_json, write_json


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
    def num_empty(self) -> int:
        """Documents without text, which were left out."""
        return sum(counts["empty"] for counts in self.outcomes.values())

    @property
    def splits(self) -> list[str]:
        """The splits that hold documents."""
        return [name for name in SPLITS if self.outcomes[name]["kept"]]


def report(progress: Progress, config: PrepareConfig, console: Console) -> None:
    """Prints what was prepared, and what was left out and why."""
    noun = "pairs" if config.is_pairs else "documents"
    for name in progress.splits:
        sides = [side[name].summary for side in progress.sides]
        tokens = " + ".join(f"{side.tokens:,}" for side in sides)
        size = " + ".join(f"{side.bytes / 1e6:,.1f}" for side in sides)
        console.print(
            f"{name}: {sides[0].documents:,} {noun}, {tokens} tokens, {size} MB", highlight=False
        )
        if any(side.unknown or side.undecodable for side in sides):
            unknown, undecodable = sum(s.unknown for s in sides), sum(s.undecodable for s in sides)
            console.print(f"  {unknown:,} of them unknown, {undecodable:,} bytes not UTF-8")
    for name, counts in progress.outcomes.items():
        if config.is_pairs and any(counts.values()):
            console.print(f"{name}: {outcomes_in_words(counts)}", highlight=False)
    if progress.num_empty and not config.is_pairs:
        console.print(f"{progress.num_empty:,} empty documents were left out")
    for name, share in zip(SPLITS[1:], config.shares, strict=True):
        if share and name not in progress.splits:
            console.print(f"the split {name} is empty: raise {name}_share ({share})")
