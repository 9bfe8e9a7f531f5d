"""A report on generated texts: one row for each system and setting, as a table, JSON and pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.evaluation.best_setting import MeasuredSetting, VarietyRule, best_settings
from cdcd.evaluation.exact import ExactScores
from cdcd.evaluation.held_out import judge_remarks
from cdcd.evaluation.report import Cell, as_json, show, table, write_files
from cdcd.evaluation.sweep import Setting, label_of
from cdcd.metrics.entropy import TextStatistics
from cdcd.metrics.intervals import Interval, interpolate_at, mean_and_error
from cdcd.metrics.matches import MatchSummary


@dataclass(frozen=True)
class Measured:
    """One set of samples, measured."""

    source: str
    """The run and the seed, or another origin of the samples."""
    nll: Interval
    """AR-NLL: nats per generated token under the judge, with a bootstrap interval."""
    nats_per_byte: float
    entropy: Interval
    """Unigram entropy pooled over the generated positions, with a jackknife interval."""
    statistics: TextStatistics
    mauve: float | None = None
    matches: MatchSummary | None = None
    exact: ExactScores | None = None
    nats_per_judge_token: float | None = None
    """The judge's nats for each of its own tokens."""

    @property
    def sample_entropy(self) -> float:
        return self.statistics.sample_entropy

    @property
    def repetition(self) -> float:
        return self.statistics.repetition

    @property
    def distinct_2(self) -> float:
        """Distinct pairs of tokens per pair."""
        return self.statistics.distinct[1]


@dataclass(frozen=True)
class Row:
    """A system under one setting, measured on samples of one or more runs."""

    system: str
    settings: Setting
    measured: list[Measured]

    def mean(self, name: str) -> tuple[float, float]:
        """Returns the mean of a value over runs, and its standard error, which is 0 if it is not known."""
        return mean_over_runs([getattr(each, name) for each in self.measured])

    @property
    def label(self) -> str:
        return label_of(self.system, self.settings)

    @property
    def first(self) -> Measured:
        return self.measured[0]


def mean_over_runs(measures: Sequence[Interval | float]) -> tuple[float, float]:
    """Returns the mean of a value over runs, and its standard error.

    The error is over runs where there are several, each with its own training seed, and over samples
    otherwise.
    """
    if len(measures) > 1:
        return mean_and_error([_interval(each).value for each in measures])
    only = _interval(measures[0])
    return only.value, (only.high - only.low) / (2 * 1.96)


def _interval(measure: Interval | float) -> Interval:
    return measure if isinstance(measure, Interval) else Interval(measure, measure, measure)


@dataclass(frozen=True)
class Frontier:
    """A system's settings as points of (entropy, NLL), and its NLL at the data's entropy."""

    system: str
    points: list[tuple[float, float]]
    nll_at_data_entropy: float | None
    """Interpolated; None if the settings do not reach from below to above it."""


@dataclass(frozen=True)
class Report:
    """The rows of an evaluation, its judge and its protocol."""

    rows: list[Row]
    judge: dict[str, Any]
    protocol: dict[str, Any]
    examples: dict[str, list[str]] = field(default_factory=dict)

    def row(self, system: str) -> Row:
        return next(row for row in self.rows if row.system == system)

    def lines(self) -> dict[str, list[Row]]:
        """Groups rows by system and by all settings but the first, which is swept along a line."""
        lines: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.system != "data":
                rest = list(row.settings.items())[1:]
                label = ", ".join([row.system, *(f"{name} {value}" for name, value in rest)])
                lines.setdefault(label, []).append(row)
        return lines

    def frontiers(self) -> list[Frontier]:
        """Returns the frontier of every line with more than one setting."""
        target = self.row("data").mean("entropy")[0]
        frontiers = []
        for system, rows in self.lines().items():
            points = [(row.mean("entropy")[0], row.mean("nll")[0]) for row in rows]
            if len(points) > 1:
                frontiers.append(Frontier(system, points, interpolate_at(points, target)))
        return frontiers

    def best(self) -> dict[str, MeasuredSetting | None]:
        """Returns the best setting of each system by the rule."""
        return best_settings(map(MeasuredSetting.of_row, self._row_dicts()))

    def _row_dicts(self) -> list[dict[str, Any]]:
        return [asdict(row) | {"mean": _means(row)} for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        best = {name: each and asdict(each) for name, each in self.best().items()}
        return {
            "judge": self.judge,
            "protocol": self.protocol,
            "rows": self._row_dicts(),
            "best": {"rule": asdict(VarietyRule()), "settings": best},
            "frontiers": [asdict(frontier) for frontier in self.frontiers()],
            "examples": self.examples,
        }

    def write(self, folder: Path) -> list[Path]:
        """Writes report.json, examples.txt, and a picture where matplotlib is installed."""
        from cdcd.evaluation.report_plots import plot_frontiers

        lines = []
        for label, texts in self.examples.items():
            lines += [f"== {label}", *(text.replace("\n", " ⏎ ") for text in texts), ""]
        texts = {"report.json": as_json(self.as_dict()), "examples.txt": "\n".join(lines) + "\n"}
        return write_files(folder, texts, {"frontier.png": partial(plot_frontiers, self)})

    def print(self, console: Console) -> None:
        """Prints the table and remarks on its numbers."""
        show(console, [table(COLUMNS, self.rows)], _remarks(self))


def _means(row: Row) -> dict[str, Any]:
    names = (
        *("nll", "nats_per_byte", "nats_per_judge_token", "entropy", "mauve"),
        *("sample_entropy", "repetition", "distinct_2"),
    )
    present = [name for name in names if getattr(row.first, name) is not None]
    return {name: dict(zip(("value", "error"), row.mean(name), strict=True)) for name in present}


def _with_error(name: str) -> Cell:
    return lambda row: "{:.3f} ± {:.3f}".format(*row.mean(name))


def _exact(name: str, shape: str) -> Cell:
    def cell(row: Row) -> str | None:
        value = getattr(row.first.exact, name, None)
        return None if value is None else f"{value:{shape}}"

    return cell


COLUMNS: dict[str, Cell] = {
    "system": lambda row: row.label,
    "AR-NLL": _with_error("nll"),
    "nats/byte": lambda row: f"{row.mean('nats_per_byte')[0]:.3f}",
    "entropy": _with_error("entropy"),
    "MAUVE": lambda row: None if row.first.mauve is None else f"{row.mean('mauve')[0]:.3f}",
    "sample H": lambda row: f"{row.mean('sample_entropy')[0]:.2f}",
    "distinct-2": lambda row: f"{row.mean('distinct_2')[0]:.3f}",
    "repeated": lambda row: f"{row.mean('repetition')[0]:.1%}",
    "duplicates": lambda row: f"{row.first.statistics.duplicate_share:.1%}",
    "longest match": lambda row: (
        row.first.matches and f"{row.first.matches.mean:.1f} (max {row.first.matches.maximum})"
    ),
    "possible": _exact("possible_share", ".1%"),
    "exact NLL": _exact("nll", ".3f"),
    "judge's error": _exact("judge_error", "+.3f"),
}


def _remarks(report: Report) -> Iterator[str]:
    protocol, judge = report.protocol, report.judge
    settings = "".join(f", {name} {value}" for name, value in protocol["settings"].items())
    yield (
        f"{protocol['num_samples']} samples of {protocol['length']} tokens, {protocol['prefix']}"
        f"{settings}; judge {judge['name']}: {judge['about']}"
    )
    yield from judge_remarks(judge)
    if protocol.get("mauve") and report.row("data").first.mauve is None:
        yield (
            "MAUVE of the data is not measured: it needs 100 samples, and other held-out text that "
            "they are compared with"
        )
    for system, best in report.best().items():
        if best is not None and best.settings:
            yield f"{label_of(system, dict(best.settings))}: best by the rule, AR-NLL {best.nll:.3f}"
    for frontier in report.frontiers():
        nll = frontier.nll_at_data_entropy
        text = "not reached by these settings" if nll is None else f"{nll:.3f}"
        yield f"{frontier.system}: AR-NLL at the data's entropy {text}"
