"""Reports: tables and remarks on a console; JSON, texts and pictures in a folder."""

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cdcd._version import __version__
from cdcd.evaluation.sweep import hardware

Cell = Callable[[Any], str | None]
"""The cell of a row in a column of a table."""


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


def show(console: Console, tables: Iterable[Table], remarks: Iterable[str]) -> None:
    """Prints tables, and remarks on their numbers below them."""
    for each in tables:
        console.print(each)
    for line in remarks:
        console.print(line, style="dim", markup=False)


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
    """Writes files by their names, and draws pictures where matplotlib is installed.

    Returns their paths; of files in a folder of their own, that of the folder.
    """
    written = {}
    for name, content in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        written[folder / Path(name).parts[0]] = None
    try:
        for name, draw in pictures.items():
            draw(folder / name)
            written[folder / name] = None
    except ValueError as error:
        # The numbers are written; only the pictures need more.
        Console(stderr=True).print(f"no pictures: {error}", markup=False)
    return list(written)
