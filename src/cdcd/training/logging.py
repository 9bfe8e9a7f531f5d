"""The records of a run in training: metrics.jsonl, which a tracker may show, and a live display."""

import json
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdcd.files import parse_json, read_bounded, warn, write_atomically
from cdcd.training.trackers import Tracker

LOG_LIMIT = 1_000_000_000
"""Bytes of the largest metrics file that is read."""
NUMBERS = ("loss", "valid_loss", "learning_rate", "tokens_per_second")
LEVEL_NUMBERS = ("t", "share", "loss", "entropy", "accuracy")
"""Numbers of a row, and of each noise level or share of masked tokens of a validation."""


def check_log(path: Path) -> None:
    """Raises an error where a metrics file is too large or no regular file."""
    if path.exists():
        read_bounded(path, LOG_LIMIT)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads the whole lines of a metrics file, without a last line cut short by a crash.

    It is only a log: lines that are damaged are left out, with a warning.
    """
    if not path.exists():
        return []
    rows, damaged = [], []
    for number, line in enumerate(read_bounded(path, LOG_LIMIT).split(b"\n")[:-1], start=1):
        try:
            rows += [_checked(parse_json(line))] if line else []
        except (ValueError, LookupError, TypeError, AttributeError):
            damaged.append(number)
    if damaged:
        others = f" (and {len(damaged) - 1} others)" if len(damaged) > 1 else ""
        warn(f"{path}, line {damaged[0]}{others}: damaged, and left out")
    return rows


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row, after converting that of an earlier version, whose numbers are numbers."""
    row = _at_fixed_levels(row)
    losses, validation = row.get("losses", {"t": [], "loss": []}), row.get("validation", {})
    numbers = [row["step"], *(row[name] for name in NUMBERS if name in row)]
    numbers += [*losses["t"], *losses["loss"]]
    numbers += [
        level[name]
        for level in [*validation.get("levels", []), *validation.get("shares", [])]
        for name in LEVEL_NUMBERS
        if name in level
    ]
    is_whole = type(row["step"]) is int and len(losses["t"]) == len(losses["loss"])
    if not is_whole or not all(type(number) in (int, float) for number in numbers):
        raise ValueError("a row of metrics without its numbers")
    return row


def _at_fixed_levels(row: dict[str, Any]) -> dict[str, Any]:
    """Converts a row of an earlier version, whose `valid_loss` moved with the time warp."""
    validation = row.get("validation", {})
    if "levels" not in validation or "loss_at_warp" in validation:
        return row
    levels = [level.get("text_loss", level["loss"]) for level in validation["levels"]]
    at_warp = {f"{name}_at_warp": validation[name] for name in validation if name != "levels"}
    loss = row.get("compared", fmean(levels))
    converted = {name: value for name, value in row.items() if name != "compared"}
    return converted | {
        "valid_loss": loss,
        "validation": {"loss": loss, "levels": validation["levels"], **at_warp},
    }


class MetricsLog:
    """Appends to metrics.jsonl, dropping what lies beyond the step that a run resumes from."""

    def __init__(self, folder: Path, *, first_step: int, tracker: Tracker | None = None) -> None:
        self.path, self.tracker = folder / "metrics.jsonl", tracker
        kept = [row for row in read_metrics(self.path) if row["step"] <= first_step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file = self.path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.tracker is not None:
            numbers = {n: v for n, v in row.items() if isinstance(v, int | float) and n != "step"}
            self.tracker.log(numbers, step=row["step"])

    def close(self) -> None:
        self.file.close()
        if self.tracker is not None:
            self.tracker.finish()


class Display:
    """The live line: step, loss, tokens a second, time left. Plain lines where there is no terminal."""

    def __init__(self, console: Console, total: int, start: int) -> None:
        self.console, self.total = console, total
        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(
            "train", total=total, completed=start, loss="–", speed="–"
        )
        self.next_line = start

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        loss_text, speed_text = f"{loss:.3f}", f"{tokens_per_second:,.0f}"
        self.progress.update(self.task, completed=step, loss=loss_text, speed=speed_text)
        if not self.console.is_terminal and step >= self.next_line:
            self.next_line += max(self.total // 10, 1)
            left = self.progress.tasks[self.task].time_remaining
            left_text = f"  {timedelta(seconds=round(left))} left" if left else ""
            self.console.print(
                f"step {step}/{self.total}  loss {loss_text}  {speed_text} tokens/s{left_text}"
            )
