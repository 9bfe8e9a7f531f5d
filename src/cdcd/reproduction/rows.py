"""The rows of the paper's tables and figures: changes of a base model, beside the paper's numbers.

They are written in `tables.txt`. A row is named TABLE/GROUP/LABEL, such as table2/nucleus/p=0.9.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from cdcd.settings import unknown

FIGURES = {
    "figure2": ("table1/base/base",),
    "figure4": ("table1/",),
    "figure5": ("table2/",),
    "figure6": ("figure6/",),
    "figure8": ("table1/base/base",),
}
"""The rows that a figure is drawn from, by the beginnings of their names."""
WITHOUT_TRAINING = ("sampling.", "decoding.", "beam.", "decoder", "num_samples")
"""Beginnings of the settings that a trained model takes."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    changes: dict[str, str] = field(hash=False)
    """Settings that differ from the base model; those of WITHOUT_TRAINING need no training."""
    paper: dict[str, float] = field(hash=False)
    """The paper's numbers by their columns."""

    @property
    def table(self) -> str:
        return self.name.split("/")[0]

    @property
    def system(self) -> str:
        """`data`, `autoregressive` or `diffusion`."""
        kind = self.name.split("/")[1].rpartition("-")[2]
        return kind if kind in ("data", "autoregressive") else "diffusion"

    @property
    def model(self) -> str:
        """The model that is trained for it: `autoregressive` or `diffusion`."""
        return "autoregressive" if self.system == "autoregressive" else "diffusion"

    @property
    def is_translation(self) -> bool:
        return self.table == "table4"

    @property
    def needs_judge(self) -> bool:
        """True where a judge measures its samples."""
        return self.table not in ("table4", "figure7")

    @property
    def sampling(self) -> dict[str, str]:
        """The changes in sampling, by their names within their section."""
        own = (each for each in self.changes.items() if each[0].startswith(WITHOUT_TRAINING))
        return {name.rpartition(".")[2]: value for name, value in own}

    @property
    def training(self) -> dict[str, str]:
        """The changes in training."""
        return {n: v for n, v in self.changes.items() if not n.startswith(WITHOUT_TRAINING)}


def _parse(text: str) -> Iterator[Row]:
    table, group, columns, shared = "", "", [], []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if line.startswith("["):
            table, columns = words[0].strip("[]"), words[1:]
        elif not line.startswith(" "):
            group, shared = words[0], words[1:]
        else:
            yield _row(f"{table}/{group}/{words[0]}", shared, words[1:], columns)


def _row(name: str, shared: Sequence[str], words: Sequence[str], columns: Sequence[str]) -> Row:
    of_group, of_label = (re.findall(r"=([\d.]+)", part) for part in name.split("/")[1:])
    own = [word for word in words if "=" in word]
    pairs = [word.format(*(of_label or of_group)).split("=") for word in (*shared, *own)]
    values = zip(columns, [word for word in words if "=" not in word], strict=False)
    return Row(name, dict(pairs), {n: float(v) for n, v in values if v != "-"})


ROWS = {
    row.name: row for row in _parse((files("cdcd.reproduction") / "tables.txt").read_text("utf-8"))
}
"""All rows by name, in the order of the paper."""
TABLES = tuple(dict.fromkeys(row.table for row in ROWS.values()))
BASE = "table1/base/base"


def base_of(name: str) -> str:
    """Returns the name of the row that a row is compared with; none for real text and Table 3."""
    table, group, label = name.split("/")
    if table == "table4":
        return f"table4/{group.partition('-')[0]}-autoregressive/{label}"
    bases = {"table1": BASE, "appendix": BASE, "table2": "table2/base/base"}
    return "" if group == "data" else bases.get(table, "")


def with_compared(rows: Sequence[Row]) -> list[Row]:
    """Returns rows, after those that they are compared with."""
    bases = [base_of(row.name) for row in rows]
    if any(row.needs_judge for row in rows):
        bases = [BASE, "table1/data/data", *bases]
    return list(dict.fromkeys([*(ROWS[name] for name in bases if name), *rows]))


def rows_of(targets: Sequence[str]) -> list[Row]:
    """Returns the rows of tables, figures, groups (TABLE/GROUP) or single rows; all for no target."""
    chosen: dict[str, Row] = {}
    for target in targets or TABLES:
        starts = FIGURES.get(target, (f"{target}/",))
        rows = {n: row for n, row in ROWS.items() if f"{n}/".startswith(starts)}
        if not rows:
            groups = {name.rsplit("/", 1)[0] for name in ROWS}
            raise unknown("table, figure or row", target, {*ROWS, *groups, *TABLES, *FIGURES})
        chosen |= rows
    return list(chosen.values())
