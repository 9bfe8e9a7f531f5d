"""A report on translations: one row for each system and setting, as a table, JSON and pictures."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cdcd.evaluation.report import environment
from cdcd.evaluation.translation import ByCount, Corpus, Scores
from cdcd.evaluation.uncertainty import Interval


@dataclass(frozen=True)
class TranslationRow:
    """A system under one setting."""

    system: str
    settings: dict[str, Any]
    scores: Scores
    sentences_per_second: float | None = None
    by_count: list[ByCount] = field(default_factory=list)
    """Minimum Bayes-risk decoding of more and more samples."""

    @property
    def label(self) -> str:
        return _label(self.system, self.settings)


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
class TranslationReport:
    """Everything that is known of the translations of one test set."""

    languages: tuple[str, str]
    """Source and target."""
    num_sentences: int
    signatures: dict[str, str]
    """sacreBLEU's, by score."""
    rows: list[TranslationRow]
    differences: list[Difference] = field(default_factory=list)

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

    def as_dict(self) -> dict[str, Any]:
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
    console.print(_table(COLUMNS, report.rows))
    decoded = [(row.label, each) for row in report.rows for each in row.by_count]
    if decoded:
        console.print(_table(COUNT_COLUMNS, decoded))
    for line in _remarks(report):
        console.print(line, style="dim", markup=False)


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
    "copies": lambda row: _share(row.scores.missing_copies),
    "numbers": lambda row: _share(row.scores.missing_numbers),
    "language": lambda row: _share(row.scores.wrong_language),
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
    yield "repeated: beyond the references; missing, copies, numbers, language: missing or wrong"
    if any(row.by_count for row in report.rows):
        yield "oracle: samples chosen by the references; minimum Bayes risk chooses without them"
    for each in report.differences:
        yield f"{each.second} less {each.first}: {_interval(each.bleu, '+.2f')} BLEU"
