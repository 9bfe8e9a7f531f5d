"""An evaluation's report: one row for each system and setting, as a table, JSON and pictures."""

import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cdcd._version import __version__
from cdcd.evaluation.exact import ExactScores
from cdcd.evaluation.held_out import judge_remark
from cdcd.metrics.entropy import TextStatistics
from cdcd.metrics.intervals import Interval, interpolate_at, mean_and_error
from cdcd.metrics.matches import MatchSummary


@dataclass(frozen=True)
class Measured:
    """One set of samples, measured."""

    source: str
    """The run and the seed, or what else the samples are."""
    nll: Interval
    """AR-NLL: nats per generated token under the judge, with a bootstrap interval."""
    nats_per_byte: float
    entropy: Interval
    """Unigram entropy pooled over the generated positions, with a jackknife interval."""
    statistics: TextStatistics
    mauve: float | None = None
    matches: MatchSummary | None = None
    exact: ExactScores | None = None
    seconds: float | None = None
    """Time to sample."""
    run: str | None = None
    """The run that was sampled, if any."""


@dataclass(frozen=True)
class Row:
    """A system under one setting, measured on one or more sets of samples of one or more runs."""

    system: str
    settings: dict[str, Any]
    measured: list[Measured]

    def mean(self, name: str) -> tuple[float, float]:
        """Returns the mean of a value over runs, and its standard error, which is 0 if it is not known.

        The error is over runs where there are several, each with its own training seed. It is over
        samples otherwise: several sets of samples of a run share their prompts and their model, so
        that their spread is no error. The error of a single set bounds that of their mean.
        """
        by_run: dict[str | None, list[float]] = {}
        for each in self.measured:
            by_run.setdefault(each.run, []).append(_value(getattr(each, name)))
        means = [math.fsum(values) / len(values) for values in by_run.values()]
        if len(means) > 1:
            return mean_and_error(means)
        errors = [_error(getattr(each, name)) for each in self.measured]
        return means[0], math.fsum(errors) / len(errors)

    @property
    def label(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.system} ({shown})" if shown else self.system


def _value(measure: Interval | float) -> float:
    return measure.value if isinstance(measure, Interval) else measure


def _error(measure: Interval | float) -> float:
    return (measure.high - measure.low) / (2 * 1.96) if isinstance(measure, Interval) else 0.0


@dataclass(frozen=True)
class Frontier:
    """A system's settings as points of (entropy, NLL), and its NLL at the data's entropy."""

    system: str
    points: list[tuple[float, float]]
    nll_at_data_entropy: float | None
    """Interpolated; None where the settings do not reach from below to above it."""


@dataclass(frozen=True)
class Report:
    """Everything that an evaluation found."""

    rows: list[Row]
    judge: dict[str, Any]
    protocol: dict[str, Any]
    denoising: dict[str, Any] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def row(self, system: str) -> Row:
        return next(row for row in self.rows if row.system == system)

    def lines(self) -> dict[str, list[Row]]:
        """Rows by system, and within a system by all settings but the first: that is swept along."""
        lines: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.system != "data":
                rest = list(row.settings.items())[1:]
                label = ", ".join([row.system, *(f"{name} {value}" for name, value in rest)])
                lines.setdefault(label, []).append(row)
        return lines

    def frontiers(self) -> list[Frontier]:
        """Of every line with more than one setting."""
        target = self.row("data").mean("entropy")[0]
        found = []
        for system, rows in self.lines().items():
            points = [(row.mean("entropy")[0], row.mean("nll")[0]) for row in rows]
            if len(points) > 1:
                found.append(Frontier(system, points, interpolate_at(points, target)))
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "judge": self.judge,
            "protocol": self.protocol,
            "environment": environment(),
            "rows": [asdict(row) | {"mean": _means(row)} for row in self.rows],
            "frontiers": [asdict(frontier) for frontier in self.frontiers()],
            "denoising": self.denoising,
            "examples": self.examples,
        }


def _means(row: Row) -> dict[str, Any]:
    names = ("nll", "nats_per_byte", "entropy", "mauve")
    present = [name for name in names if getattr(row.measured[0], name) is not None]
    return {name: dict(zip(("value", "error"), row.mean(name), strict=True)) for name in present}


def environment() -> dict[str, str]:
    """What the numbers depend on besides the configuration."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "cdcd": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device or platform.machine(),
    }


def write_report(report: Report, folder: Path) -> list[Path]:
    """report.json, examples.txt, and pictures where matplotlib is installed."""
    from cdcd.evaluation.report_plots import plot_denoising_quality, plot_frontiers

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "report.json", folder / "examples.txt"]
    numbers = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
    paths[0].write_text(numbers + "\n", encoding="utf-8")
    paths[1].write_text("\n".join(_example_lines(report)) + "\n", encoding="utf-8")
    try:
        plot_frontiers(report, folder / "frontier.png")
        paths.append(folder / "frontier.png")
        if report.denoising:
            plot_denoising_quality(report.denoising, folder / "denoising_quality.png")
            paths.append(folder / "denoising_quality.png")
    except ValueError as error:
        # The numbers are there; only the pictures need more.
        Console(stderr=True).print(f"no pictures: {error}", markup=False)
    return paths


def _example_lines(report: Report) -> Iterator[str]:
    for label, texts in report.examples.items():
        yield f"== {label}"
        yield from (text.replace("\n", " ⏎ ") for text in texts)
        yield ""


def print_report(report: Report, console: Console) -> None:
    """The table, and what the numbers mean."""
    table = Table(box=None, pad_edge=False)
    columns = _columns(report.rows)
    for name in columns:
        first = name == "system"
        table.add_column(name, justify="left" if first else "right", no_wrap=not first)
    for row in report.rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    console.print(table)
    for line in _remarks(report):
        console.print(line, style="dim", markup=False)


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    first = {"system": lambda row: row.label, "AR-NLL": lambda row: _pair(row.mean("nll"))}
    rest: dict[str, Any] = {"nats/byte": lambda row: f"{row.mean('nats_per_byte')[0]:.3f}"}
    rest["entropy"] = lambda row: _pair(row.mean("entropy"))
    if any(row.measured[0].mauve is not None for row in rows):
        rest["MAUVE"] = lambda row: _optional(row, "mauve")
    rest["sample H"] = lambda row: f"{row.measured[0].statistics.sample_entropy:.2f}"
    rest["distinct-2"] = lambda row: f"{row.measured[0].statistics.distinct[1]:.3f}"
    rest["repeated"] = lambda row: f"{row.measured[0].statistics.repetition:.1%}"
    rest["duplicates"] = lambda row: f"{row.measured[0].statistics.duplicate_share:.1%}"
    if any(row.measured[0].matches is not None for row in rows):
        rest["longest match"] = _matches
    if any(row.measured[0].exact is not None for row in rows):
        rest["possible"] = lambda row: _exact(row, "possible_share", ".1%")
        rest["exact NLL"] = lambda row: _exact(row, "nll", ".3f")
        rest["judge's error"] = lambda row: _exact(row, "judge_error", "+.3f")
    return first | rest


def _pair(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} ± {pair[1]:.3f}"


def _optional(row: Row, name: str) -> str:
    return f"{row.mean(name)[0]:.3f}" if getattr(row.measured[0], name) is not None else "–"


def _matches(row: Row) -> str:
    found = row.measured[0].matches
    return f"{found.mean:.1f} (max {found.maximum})" if found is not None else "–"


def _exact(row: Row, name: str, shape: str) -> str:
    found = getattr(row.measured[0].exact, name) if row.measured[0].exact is not None else None
    return f"{found:{shape}}" if found is not None else "–"


def _remarks(report: Report) -> Iterator[str]:
    protocol, judge = report.protocol, report.judge
    yield (
        f"{protocol['num_samples']} samples of {protocol['length']} tokens, {protocol['prefix']}"
        + "".join(f", {name} {value}" for name, value in protocol["settings"].items())
        + "; "
        f"judge {judge['name']}: {judge['about']}"
    )
    yield from filter(None, [judge_remark(judge)])
    if protocol.get("mauve") and report.row("data").measured[0].mauve is None:
        yield (
            "MAUVE of the data is not measured: it needs 100 samples, and other held-out text that "
            "they are compared with"
        )
    for frontier in report.frontiers():
        at = frontier.nll_at_data_entropy
        shown = "not reached by these settings" if at is None else f"{at:.3f}"
        yield f"{frontier.system}: AR-NLL at the data's entropy {shown}"
