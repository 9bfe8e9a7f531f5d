"""A report on translations: one row for each system and setting, as tables, JSON, pictures and texts."""

import random
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.evaluation.report import Cell, as_json, show, table, write_files
from cdcd.evaluation.sweep import Setting, label_of
from cdcd.metrics.bleu import ByCount, Corpus, Scores
from cdcd.metrics.intervals import Interval
from cdcd.settings import from_dict

NUM_EXAMPLES = 20


@dataclass(frozen=True)
class Exact:
    """The verdicts of the built-in task's exact judge."""

    num_sentences: int
    num_right: int
    reasons: dict[str, int]
    """Numbers of wrong translations by reason, the most frequent first."""

    @property
    def share(self) -> float:
        return self.num_right / self.num_sentences

    def __str__(self) -> str:
        wrong = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return f"{self.share:.1%} right" + (f"; {wrong}" if wrong else "")


@dataclass(frozen=True, kw_only=True)
class TranslationRow:
    """A system under one setting, with its translations."""

    system: str
    settings: Setting = field(default_factory=dict)
    run: str | None = None
    model: str | None = None
    """The system without its run: runs of one model are averaged."""
    scores: Scores
    """The scores of one translation of each sentence."""
    exact: Exact | None = None
    by_count: list[ByCount] = field(default_factory=list)
    """Minimum Bayes-risk decoding of more and more samples."""
    exact_by_count: Exact | None = None
    """The verdicts on minimum Bayes-risk decoding of the most samples."""
    sentences_per_second: float | None = None
    """Translations finished in a second, one of each sentence or several."""
    num_too_long: int = 0
    """Lines that have more tokens than the model reads."""
    num_unread: int = 0
    """Those of them with a sentence that is too long by itself."""
    first: list[str]
    """One translation of each sentence."""
    decoded: list[str] | None = None
    """The choice by minimum Bayes risk from the most samples."""

    @property
    def label(self) -> str:
        return label_of(self.system, self.settings)

    @property
    def decoded_label(self) -> str:
        return f"{self.label}, {self.by_count[-1].num_samples} samples"

    @property
    def texts(self) -> dict[str, list[str]]:
        """The translations by their labels."""
        decoded = {} if self.decoded is None else {self.decoded_label: self.decoded}
        return {self.label: self.first} | decoded

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TranslationRow":
        """Returns the row that `dataclasses.asdict` turned into a dictionary."""
        exact = {n: values[n] and Exact(**values[n]) for n in ("exact", "exact_by_count")}
        by_count = [from_dict(ByCount, each) for each in values["by_count"]]
        scores = from_dict(Scores, values["scores"])
        return cls(**{**values, **exact, "scores": scores, "by_count": by_count})


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
        """Computes both of two or more values."""
        return cls(statistics.fmean(values), statistics.stdev(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class OverRuns:
    """Runs of one model under one setting, which differ in their training seeds."""

    system: str
    settings: Setting
    runs: list[str]
    bleu: Spread
    chrf: Spread
    right: Spread | None
    """Share that the exact judge calls right, in percent."""
    bleu_by_count: dict[int, Spread]
    """BLEU of minimum Bayes-risk decoding, by the number of samples."""

    @classmethod
    def of(cls, system: str, rows: Sequence[TranslationRow]) -> "OverRuns":
        """Summarises rows with equal settings."""
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
        return f"{label_of(self.system, self.settings)}: mean of {len(self.runs)} runs"


@dataclass(frozen=True)
class TranslationReport:
    """The translations of one test set."""

    corpus: Corpus
    rows: list[TranslationRow]
    signatures: dict[str, str]
    """The signatures of sacreBLEU, by score."""
    differences: list[Difference]
    over_runs: list[OverRuns]
    protocol: dict[str, Any]
    remarks: list[str]
    """Facts of the test set that a reader must know."""
    compared: list[str]
    """Labels of the translations that are shown side by side."""

    @property
    def languages(self) -> str:
        return f"{self.corpus.source_language}-{self.corpus.target_language}"

    @property
    def num_sentences(self) -> int:
        return len(self.corpus.sources)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report without the translations, which have files of their own."""
        report = asdict(self)
        del report["corpus"], report["compared"]
        for row in report["rows"]:
            del row["first"], row["decoded"]
        languages = [self.corpus.source_language, self.corpus.target_language]
        return {"languages": languages, "num_sentences": self.num_sentences} | report

    def lines(self, swept: str) -> dict[str, list[TranslationRow]]:
        """Groups the rows that have a setting, in its order, by system and their other settings."""
        lines: dict[str, list[TranslationRow]] = {}
        rows = [row for row in self.rows if swept in row.settings]
        for row in sorted(rows, key=lambda row: row.settings[swept]):
            rest = {name: value for name, value in row.settings.items() if name != swept}
            lines.setdefault(label_of(row.system, rest), []).append(row)
        return lines

    def write(self, folder: Path) -> list[Path]:
        """Writes translation.json, examples, every translation with sentence n in line n, and pictures."""
        from cdcd.evaluation.report_plots import plot_bleu_by_count, plot_bleu_by_steps

        texts = {"source": self.corpus.sources, "reference": self.corpus.references}
        for row in self.rows:
            texts |= row.texts if row.run is not None else {}
        files = {"translation.json": as_json(self.as_dict())}
        files["examples.md"] = "\n".join(_example_lines(texts, self.compared)) + "\n"
        for label, lines in texts.items():
            name = re.sub(r"[^\w.=-]+", "-", label).strip("-.")
            files[f"hypotheses/{name}.txt"] = "".join(f"{_one_line(line)}\n" for line in lines)
        pictures = {}
        if any(row.by_count for row in self.rows):
            pictures["bleu_by_samples.png"] = partial(plot_bleu_by_count, self)
        if self.lines("num_steps"):
            pictures["bleu_by_steps.png"] = partial(plot_bleu_by_steps, self)
        return write_files(folder, files, pictures)

    def print(self, console: Console) -> None:
        """Prints the tables, the differences of systems, and remarks on the numbers."""
        rows = table(COLUMNS, self.rows)
        for each in self.over_runs:
            cells = {"system": each.label, "BLEU": str(each.bleu), "chrF": str(each.chrf)}
            cells["right"] = "" if each.right is None else f"{each.right} %"
            rows.add_row(*(cells.get(str(column.header), "") for column in rows.columns))
        decoded = [(row.label, each) for row in self.rows for each in row.by_count]
        tables = [rows, *([table(COUNT_COLUMNS, decoded)] if decoded else [])]
        show(console, tables, _remarks(self))


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _example_lines(texts: Mapping[str, Sequence[str]], compared: Sequence[str]) -> Iterator[str]:
    """Yields some sentences under the compared labels, drawn by a seed and not chosen."""
    count = len(texts["source"])
    drawn = sorted(random.Random(0).sample(range(count), min(NUM_EXAMPLES, count)))
    yield f"# {len(drawn)} of {count} sentences, drawn by seed 0"
    for number in drawn:
        yield f"\n## Sentence {number + 1}\n"
        for label in ("source", "reference", *compared):
            yield f"- {label}: {_one_line(texts[label][number]) or '(nothing)'}"


def _interval(interval: Interval, shape: str = ".2f") -> str:
    return f"{interval.value:{shape}} [{interval.low:{shape}}, {interval.high:{shape}}]"


COLUMNS: dict[str, Cell] = {
    "system": lambda row: row.label,
    "BLEU": lambda row: _interval(row.scores.bleu),
    "chrF": lambda row: f"{row.scores.chrf.value:.1f}",
    "length": lambda row: f"{row.scores.length_ratio:.3f}",
    "repeated": lambda row: f"{row.scores.repetition:.1%}",
    "missing": lambda row: f"{row.scores.missing_words:.1%}",
    "sentences/s": lambda row: row.sentences_per_second and f"{row.sentences_per_second:.1f}",
    "right": lambda row: row.exact and f"{row.exact.share:.1%}",
}
COUNT_COLUMNS: dict[str, Cell] = {
    "minimum Bayes risk": lambda pair: pair[0],
    "samples": lambda pair: str(pair[1].num_samples),
    "BLEU": lambda pair: _interval(pair[1].bleu),
    "gain": lambda pair: _interval(pair[1].gain, "+.2f"),
    "oracle": lambda pair: f"{pair[1].oracle_bleu:.2f}",
    "distinct": lambda pair: f"{pair[1].distinct_share:.1%}",
}


def _remarks(report: TranslationReport) -> Iterator[str]:
    yield f"{report.num_sentences} sentences, {report.languages}; 95% intervals by bootstrap"
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
    for each in report.differences:
        yield f"{each.second} less {each.first}: {_interval(each.bleu, '+.2f')} BLEU"
