"""A report on translations: one row for each system and setting, as a table, JSON and pictures."""

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cdcd.evaluation.report import environment
from cdcd.metrics.bleu import ByCount, Corpus, Scores
from cdcd.metrics.intervals import Interval

NEARLY = 0.5
"""BLEU below the best that a cheaper setting may have to be as good."""


@dataclass(frozen=True)
class Exact:
    """What the judge of the built-in task says of translations."""

    num_sentences: int
    num_right: int
    reasons: dict[str, int]
    """Why others are wrong, the most frequent first."""

    @property
    def share(self) -> float:
        return self.num_right / self.num_sentences

    def __str__(self) -> str:
        wrong = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return f"{self.share:.1%} right" + (f"; {wrong}" if wrong else "")


@dataclass(frozen=True)
class TranslationRow:
    """A system under one setting."""

    system: str
    settings: dict[str, Any]
    scores: Scores
    """Of one translation of each sentence."""
    sentences_per_second: float | None = None
    """Translations made each second, one of each sentence or several."""
    by_count: list[ByCount] = field(default_factory=list)
    """Minimum Bayes-risk decoding of more and more samples."""
    run: str | None = None
    is_warmed_up: bool = False
    """Whether the time leaves out a first batch."""
    num_too_long: int = 0
    """Lines that have more tokens than the model reads."""
    num_unread: int = 0
    """Of these, how many have a sentence that is too long by itself."""
    exact: Exact | None = None
    exact_by_count: Exact | None = None
    """Of minimum Bayes-risk decoding of the most samples."""

    @property
    def label(self) -> str:
        return _label(self.system, self.settings)

    @property
    def decoded_label(self) -> str:
        """Of minimum Bayes-risk decoding of the most samples."""
        return f"{self.label}, {self.by_count[-1].num_samples} samples"


def _label(system: str, settings: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"{system} ({shown})" if shown else system


@dataclass(frozen=True)
class Difference:
    """BLEU of the second system less that of the first, by paired bootstrap."""

    first: str
    second: str
    bleu: Interval


@dataclass(frozen=True)
class Spread:
    """A mean over runs, and their standard deviation."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of two or more."""
        return cls(statistics.fmean(values), statistics.stdev(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class OverRuns:
    """Runs of one kind under one setting: what depends on the seed of training."""

    system: str
    settings: dict[str, Any]
    runs: list[str]
    bleu: Spread
    chrf: Spread
    right: Spread | None
    """Share that the exact judge finds right, in percent."""
    bleu_by_count: dict[int, Spread]
    """Of minimum Bayes-risk decoding, by the number of samples."""

    @classmethod
    def of(cls, system: str, rows: Sequence[TranslationRow]) -> "OverRuns":
        """Of rows with equal settings."""
        shares = [100 * row.exact.share for row in rows if row.exact is not None]
        curves = zip(*(row.by_count for row in rows), strict=True)
        return cls(
            system,
            rows[0].settings,
            [str(row.run) for row in rows],
            bleu=Spread.of([row.scores.bleu.value for row in rows]),
            chrf=Spread.of([row.scores.chrf.value for row in rows]),
            right=Spread.of(shares) if shares else None,
            bleu_by_count={
                same[0].num_samples: Spread.of([each.bleu.value for each in same])
                for same in curves
            },
        )

    @property
    def label(self) -> str:
        return f"{_label(self.system, self.settings)}: mean of {len(self.runs)} runs"


@dataclass(frozen=True)
class TranslationReport:
    """Everything that is known of the translations of one test set."""

    languages: tuple[str, str]
    """Source and target."""
    num_sentences: int
    signatures: dict[str, str]
    """sacreBLEU's, by score."""
    rows: list[TranslationRow]
    differences: list[Difference] = field(default_factory=list)
    over_runs: list[OverRuns] = field(default_factory=list)
    protocol: dict[str, Any] = field(default_factory=dict)
    """What was translated, by what, and how."""
    remarks: list[str] = field(default_factory=list)
    """What a reader must know of the test set."""

    def lines(self, swept: str) -> dict[str, list[TranslationRow]]:
        """Rows that have the setting, in its order, by system and their other settings."""
        lines: dict[str, list[TranslationRow]] = {}
        for row in self.rows:
            if swept in row.settings:
                rest = {name: value for name, value in row.settings.items() if name != swept}
                lines.setdefault(_label(row.system, rest), []).append(row)
        return {
            label: sorted(rows, key=lambda row: row.settings[swept])
            for label, rows in lines.items()
        }

    def cheapest(self) -> list[tuple[TranslationRow, TranslationRow]]:
        """Of each sweep of the steps: the fewest that are nearly as good as the best, and the best."""
        found = []
        for rows in self.lines("num_steps").values():
            if len(rows) > 1:
                best = max(rows, key=lambda row: row.scores.bleu.value)
                least = best.scores.bleu.value - NEARLY
                found.append((next(row for row in rows if row.scores.bleu.value >= least), best))
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"environment": environment()}


def controls(corpus: Corpus, *, seed: int = 0) -> dict[str, list[str]]:
    """Texts of known defects, to be scored beside a system, and the references as the best to be had."""
    generator = random.Random(seed)
    split = [reference.split() for reference in corpus.references]
    return {
        "references": list(corpus.references),
        "control: source copied": list(corpus.sources),
        "control: words shuffled": [" ".join(generator.sample(each, len(each))) for each in split],
        "control: words doubled": [
            " ".join(word for word in each for _ in range(2)) for each in split
        ],
        "control: first half": [" ".join(each[: len(each) // 2]) for each in split],
    }


def write_translation_report(report: TranslationReport, folder: Path) -> list[Path]:
    """translation.json, and pictures where there is a curve to draw and matplotlib is installed."""
    from cdcd.evaluation.translation_plots import plot_bleu_by_count, plot_bleu_by_steps

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "translation.json"]
    numbers = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
    paths[0].write_text(numbers + "\n", encoding="utf-8")
    try:
        if any(row.by_count for row in report.rows):
            plot_bleu_by_count(report, folder / "bleu_by_samples.png")
            paths.append(folder / "bleu_by_samples.png")
        if report.lines("num_steps"):
            plot_bleu_by_steps(report, folder / "bleu_by_steps.png")
            paths.append(folder / "bleu_by_steps.png")
    except ValueError as error:
        # The numbers are there; only the pictures need more.
        Console(stderr=True).print(f"no pictures: {error}", markup=False)
    return paths


def print_translation_report(report: TranslationReport, console: Console) -> None:
    """The tables, the differences of systems, and what was computed."""
    console.print(_row_table(report))
    decoded = [(row.label, each) for row in report.rows for each in row.by_count]
    if decoded:
        console.print(_table(COUNT_COLUMNS, decoded))
    for line in _remarks(report):
        console.print(line, style="dim", markup=False)


def _row_table(report: TranslationReport) -> Table:
    columns = COLUMNS
    if any(row.exact for row in report.rows):
        columns = COLUMNS | {"right": lambda row: _share(row.exact and row.exact.share)}
    table = _table(columns, report.rows)
    for each in report.over_runs:
        cells = {"system": each.label, "BLEU": str(each.bleu), "chrF": str(each.chrf)}
        cells["right"] = "–" if each.right is None else f"{each.right} %"
        table.add_row(*(cells.get(name, "") for name in columns))
    return table


def _table(columns: dict[str, Any], rows: Sequence[Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def _interval(found: Interval, shape: str = ".2f") -> str:
    return f"{found.value:{shape}} [{found.low:{shape}}, {found.high:{shape}}]"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _speed(row: TranslationRow) -> str:
    return "–" if row.sentences_per_second is None else f"{row.sentences_per_second:.1f}"


COLUMNS: dict[str, Any] = {
    "system": lambda row: row.label,
    "BLEU": lambda row: _interval(row.scores.bleu),
    "chrF": lambda row: f"{row.scores.chrf.value:.1f}",
    "length": lambda row: f"{row.scores.length_ratio:.3f}",
    "repeated": lambda row: _share(row.scores.repetition),
    "missing": lambda row: _share(row.scores.missing_words),
    "sentences/s": _speed,
}
COUNT_COLUMNS: dict[str, Any] = {
    "minimum Bayes risk": lambda pair: pair[0],
    "samples": lambda pair: str(pair[1].num_samples),
    "BLEU": lambda pair: _interval(pair[1].bleu),
    "gain": lambda pair: _interval(pair[1].gain, "+.2f"),
    "oracle": lambda pair: f"{pair[1].oracle_bleu:.2f}",
    "distinct": lambda pair: _share(pair[1].distinct_share),
}


def _remarks(report: TranslationReport) -> Iterator[str]:
    yield f"{report.num_sentences} sentences, {'-'.join(report.languages)}; 95% intervals by bootstrap"
    yield from report.signatures.values()
    yield "repeated: words beyond those of the references; missing: words of the references"
    if any(row.by_count for row in report.rows):
        yield "oracle: samples chosen by the references; minimum Bayes risk chooses without them"
    yield from report.remarks
    for row in report.rows:
        if row.exact is not None and row.run is not None:
            yield f"{row.label}: {row.exact}"
        if row.exact_by_count is not None:
            yield f"{row.decoded_label}: {row.exact_by_count}"
    for each in report.over_runs:
        for count, bleu in each.bleu_by_count.items():
            if count > 1:
                yield f"{each.label}, {count} samples: {bleu} BLEU"
    for row, best in report.cheapest():
        yield (
            f"{row.label} is the cheapest within {NEARLY} BLEU of the best, {best.label}: "
            f"{row.scores.bleu.value:.2f} and {best.scores.bleu.value:.2f}"
        )
    for each in report.differences:
        yield f"{each.second} less {each.first}: {_interval(each.bleu, '+.2f')} BLEU"
