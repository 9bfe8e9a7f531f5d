"""Sweeps over settings and the rows that they give: progress, finished rows, tables, files and pictures."""

import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cdcd._version import __version__
from cdcd.files import write_atomically

Setting = dict[str, Any]
Cell = Callable[[Any], str | None]
"""The cell of a row in a column of a table."""


def sweep_settings(sweeps: Sequence[str]) -> list[Setting]:
    """Returns every combination of `name=value,value` sweeps; without one, the setting of no changes."""
    names, values = [], []
    for text in sweeps:
        name, _, listed = text.partition("=")
        names.append(name.strip().lstrip("-").replace("-", "_"))
        values.append([value.strip() for value in listed.split(",")])
        if not names[-1] or not all(values[-1]):
            raise ValueError(f"a sweep is written name=value,value, not {text!r}")
        # Samples that are drawn twice would look like certain ones.
        if len(set(values[-1])) < len(values[-1]) or names[-1] in names[:-1]:
            raise ValueError(f"the sweep {text!r} repeats a value or a name; give each once")
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def label_of(system: str, settings: Setting) -> str:
    """Returns the name of a row."""
    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"{system} ({text})" if text else system


def tracked(
    jobs: Sequence[Any], console: Console, description: str
) -> Iterator[tuple[Any, Callable[[float], None]]]:
    """Yields jobs, each with a function that shows the finished share of it, under a bar of progress."""
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=len(jobs))
        for number, job in enumerate(jobs):
            yield job, lambda share, number=number: progress.update(task, completed=number + share)
            progress.update(task, completed=number + 1)


class FinishedRows:
    """A file of finished rows, so that an evaluation that was stopped goes on.

    Each line is a JSON object with a key, which holds all that the row depends on: a row is used again
    if and only if it would be computed again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, dict[str, Any]] = {}
        lines = path.read_text(encoding="utf-8").splitlines(True) if path.is_file() else []
        whole = [line for line in lines if self._read(line)]
        if len(whole) < len(lines):
            # The machine stopped while it wrote the last line.
            write_atomically(path, "".join(whole).encode())

    def _read(self, line: str) -> bool:
        try:
            row = json.loads(line)
            self._rows[_text(row["key"])] = row
        except (ValueError, KeyError, TypeError):
            return False
        return line.endswith("\n")

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the row with this key, if there is one."""
        return self._rows.get(_text(key))

    def add(self, key: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Writes a row and waits until the disk has it."""
        line = json.dumps({"key": key} | dict(row)) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._read(line)


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def table(columns: Mapping[str, Cell], rows: Sequence[Any]) -> Table:
    """Returns a table without the columns that are empty in all rows; the first is on the left."""
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if any(column)}
    result = Table(box=None, pad_edge=False)
    for number, name in enumerate(cells):
        result.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for row in zip(*cells.values(), strict=True):
        result.add_row(*(cell or "–" for cell in row))
    return result


def print_dimmed(lines: Iterator[str], console: Console) -> None:
    """Prints the remarks below a table."""
    for line in lines:
        console.print(line, style="dim", markup=False)


def hardware(device: torch.device) -> str:
    """Returns the name of a processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def as_json(report: Mapping[str, Any]) -> str:
    """Returns a report as JSON, with what the numbers depend on besides the configuration."""
    environment = {
        "cdcd": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": hardware(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
    }
    content = {**report, "environment": environment}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_files(
    folder: Path, texts: Mapping[str, str], pictures: Mapping[str, Callable[[Path], None]]
) -> list[Path]:
    """Writes files by their names, and draws pictures where matplotlib is installed; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in texts.items():
        paths.append(folder / name)
        paths[-1].write_text(content, encoding="utf-8")
    try:
        for name, draw in pictures.items():
            draw(folder / name)
            paths.append(folder / name)
    except ValueError as error:
        # The numbers are written; only the pictures need more.
        Console(stderr=True).print(f"no pictures: {error}", markup=False)
    return paths
