"""Rows of a translation report that are finished: kept as they come, for an evaluation that is stopped.

Each line of rows.jsonl is {"key": …, "row": …, "first": […], "decoded": […]}. The key holds all that
the row depends on, so that a row is found again if and only if it would be made again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdcd.evaluation.translation_report import Exact, TranslationRow
from cdcd.files import write_atomically
from cdcd.metrics.bleu import ByCount, Scores
from cdcd.settings import from_dict


@dataclass(frozen=True)
class FinishedRow:
    """A row and the translations that it is of."""

    row: TranslationRow
    first: list[str]
    """One translation of each sentence."""
    decoded: list[str] | None = None
    """By minimum Bayes risk from the most samples."""


class FinishedRows:
    """The file of the rows that are finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, dict[str, Any]] = {}
        lines = path.read_text(encoding="utf-8").splitlines(True) if path.is_file() else []
        whole = [line for line in lines if self._read(line)]
        if len(whole) < len(lines):
            # What was being written when the machine stopped.
            write_atomically(path, "".join(whole).encode())

    def _read(self, line: str) -> bool:
        try:
            found = json.loads(line)
            self._found[_text(found["key"])] = found
        except (ValueError, KeyError, TypeError):
            return False
        return line.endswith("\n")

    def find(self, key: Mapping[str, Any]) -> FinishedRow | None:
        """The row with this key."""
        found = self._found.get(_text(key))
        return None if found is None else _finished(found)

    def add(self, key: Mapping[str, Any], finished: FinishedRow) -> None:
        """Write a row and wait until the disk has it."""
        line = json.dumps({"key": dict(key)} | asdict(finished))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._read(line + "\n")


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _finished(found: Mapping[str, Any]) -> FinishedRow:
    row = dict(found["row"])
    row["scores"] = from_dict(Scores, row["scores"])
    row["by_count"] = [from_dict(ByCount, each) for each in row["by_count"]]
    for name in ("exact", "exact_by_count"):
        row[name] = row[name] and Exact(**row[name])
    return FinishedRow(TranslationRow(**row), found["first"], found["decoded"])
