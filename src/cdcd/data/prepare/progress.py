"""What is said while a data set is prepared, and in the end."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cdcd.data.format import SPLITS, SplitSummary
from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.filtering import fates_in_words
from cdcd.data.prepare.reading import Documents
from cdcd.data.prepare.reading_pairs import Pairs

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class PreparedSummary:
    """What has been prepared."""

    path: Path
    vocab_size: int
    fates: dict[str, dict[str, int]]
    """For each split, how many documents or pairs were kept, and left out why."""
    splits: dict[str, SplitSummary]
    """Of pairs: their sources."""
    targets: dict[str, SplitSummary] = field(default_factory=dict)

    @property
    def num_empty(self) -> int:
        """Documents without text, which were left out."""
        return sum(counts["empty"] for counts in self.fates.values())


def tell(summary: PreparedSummary, config: PrepareConfig, console: Console) -> None:
    """Say what was prepared, and what was left out and why."""
    for name, split in summary.splits.items():
        sides = [split, *([summary.targets[name]] if summary.targets else [])]
        noun = "pairs" if summary.targets else "documents"
        tokens = " + ".join(f"{side.tokens:,}" for side in sides)
        size = " + ".join(f"{side.bytes / 1e6:,.1f}" for side in sides)
        odd = "".join(map(_oddities, sides))
        console.print(
            f"{name}: {split.documents:,} {noun}, {tokens} tokens, {size} MB{odd}", highlight=False
        )
    if config.is_pairs:
        _tell_fates(summary, console)
    elif summary.num_empty:
        console.print(f"{summary.num_empty:,} empty documents were left out")
    for name, share in zip(SPLITS[1:], config.shares, strict=True):
        if share and name not in summary.splits:
            console.print(f"the split {name} is empty: raise {name}_share ({share})")


def _tell_fates(summary: PreparedSummary, console: Console) -> None:
    for name, counts in summary.fates.items():
        console.print(f"{name}: {fates_in_words(counts)}", highlight=False)


def _oddities(split: SplitSummary) -> str:
    unknown = f", {split.unknown:,} of them unknown" if split.unknown else ""
    kept = f", {split.undecodable:,} bytes not UTF-8" if split.undecodable else ""
    return unknown + kept


class Meter:
    """The live line: share done, MB of text a second, time left. Plain lines without a terminal."""

    def __init__(self, console: Console, num_bytes: int) -> None:
        self.console, self.first = console, num_bytes
        self.started = self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("preparing", total=None, shown="")

    def __enter__(self) -> "Meter":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, num_bytes: int, documents: Documents | Pairs) -> None:
        now = time.monotonic()
        speed = (num_bytes - self.first) / 1e6 / max(now - self.started, 1e-9)
        shown = f"{num_bytes / 1e6:,.0f} MB of text, {speed:.1f} MB/s"
        self.bar.update(self.task, total=documents.size, completed=documents.position, shown=shown)
        if not self.console.is_terminal and now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = now
            share = f"{documents.position / documents.size:.0%}  " if documents.size else ""
            self.console.print(f"{share}{shown}", highlight=False)
