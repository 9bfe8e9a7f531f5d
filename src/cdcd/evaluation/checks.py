"""Evaluation by exact judges: whole documents and filled gaps, of systems beside held-out documents.

What is measured: the share of documents that keep each rule of the judge; of those that keep all, the
share of different ones; of these, the share that is no training document. See `languages.gallery`.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.held_out import check_comparable, documents_of
from cdcd.evaluation.report import Cell, as_json, show, table, write_files
from cdcd.evaluation.sweep import Setting, label_of, tracked
from cdcd.evaluation.systems import Job, jobs_of, load_systems
from cdcd.inference.load import load
from cdcd.inference.text_model import AutoregressiveTextModel, Canvas
from cdcd.languages.gallery import CATEGORIES
from cdcd.metrics.intervals import Interval, share_interval
from cdcd.settings import Batch, Bounds, Seed, Settings, unknown

WHOLE, GAPS = "whole", "gaps"


@dataclass(frozen=True, kw_only=True)
class CheckConfig(Settings):
    """The number of samples, and their seed."""

    split: str = "auto"
    num_samples: Annotated[int, Bounds(2, 1_000_000)] = 1024
    seed: Seed = 0
    batch_size: Batch = 256


@dataclass(frozen=True)
class CheckRow:
    """The shares of a system's documents under one setting, or of held-out documents."""

    system: str
    settings: Setting
    task: str
    """`whole` documents, or the `gaps` of held-out ones, filled."""
    num_documents: int
    measures: dict[str, Interval]


@dataclass(frozen=True)
class CheckReport:
    """The rows of an evaluation by an exact judge."""

    rows: list[CheckRow]
    protocol: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        # The card of a model shows the settings of a row: the task is one of them.
        rows = [asdict(row) | {"settings": {"task": row.task, **row.settings}} for row in self.rows]
        return {"protocol": self.protocol, "rows": rows}

    def write(self, folder: Path) -> list[Path]:
        """Writes checks.json."""
        return write_files(folder, {"checks.json": as_json(self.as_dict())}, {})

    def print(self, console: Console) -> None:
        """Prints the table."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.measures))
        columns: dict[str, Cell] = {
            "documents": lambda row: label_of(row.system, row.settings),
            "task": lambda row: row.task,
            "number": lambda row: f"{row.num_documents:,}",
        }
        columns |= {name.replace("_", " "): _cell(name) for name in names}
        remarks = [f"judge: {self.protocol['category']}; in brackets: 95% intervals"]
        show(console, [table(columns, self.rows)], remarks)


def _cell(name: str) -> Cell:
    def cell(row: CheckRow) -> str | None:
        share = row.measures.get(name)
        return share and f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"

    return cell


class CheckedEvaluation:
    """The systems and the judge of one evaluation."""

    def __init__(
        self,
        runs: Sequence[Path],
        category: str,
        config: CheckConfig,
        *,
        baseline: Path | None = None,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        console: Console | None = None,
        **options: Any,
    ) -> None:
        if category not in CATEGORIES:
            raise unknown("judge", category, CATEGORIES)
        self.name, self.category, self.config = category, CATEGORIES[category], config
        self.console, self.base = console or Console(), dict(settings or {})
        self.systems = load_systems(load, runs, baseline, data=data, **options)
        for each in self.systems:
            check_comparable(each, self.systems[0])
        first = self.systems[0]
        self.tokenizer, self.length = first.model.tokenizer, first.model.length
        training = list(documents_of(first.config))
        self.check = self.category.judge(training)
        self.known = {self.category.normal(text) for text in training}
        # Data sets keep the order of their corpus.
        held_out = list(documents_of(first.config, config.split))
        random.Random(config.seed).shuffle(held_out)
        self.held_out = held_out[: config.num_samples]
        self.canvases = list(islice(self._canvases(), config.num_samples))

    def _canvases(self) -> Any:
        """Yields the canvases of held-out documents, their gaps empty."""
        for text in self.held_out:
            tokens = self.tokenizer.encode(text)
            hidden = self.category.hide([self.tokenizer.piece(token) for token in tokens])
            if hidden is None or len(tokens) >= self.length:
                continue
            row = [None if gap else token for token, gap in zip(tokens, hidden, strict=True)]
            yield Canvas((*row, EOS, *[PAD] * (self.length - len(row) - 1)))

    def report(
        self, settings: Sequence[Setting] = ({},), baseline_settings: Sequence[Setting] = ({},)
    ) -> CheckReport:
        """Draws and judges the documents of every system under every setting."""
        jobs = jobs_of(self.systems, self.base, settings, baseline_settings)
        rows = [self._row("data", {}, WHOLE, self.held_out, is_new=False)]
        for job, _ in tracked(jobs, self.console, "sampling"):
            rows += self._rows(job)
        protocol = asdict(self.config) | {
            "category": self.name,
            "runs": {each.name: each.checkpoint for each in self.systems},
            "settings": self.base,
        }
        return CheckReport(rows, protocol)

    def _rows(self, job: Job) -> list[CheckRow]:
        system, changes, config = job.system, job.changes, self.config
        drawn = {"seed": config.seed, "batch_size": config.batch_size, **changes}
        nothing = Canvas((None,) * self.length)
        generated = system.model.generate(nothing, num_samples=config.num_samples, **drawn)
        texts = [each.text for each in generated]
        rows = [self._row(system.name, job.reported, WHOLE, texts)]
        if self.canvases and not isinstance(system.model, AutoregressiveTextModel):
            filled = [each.text for each in system.model.generate(self.canvases, **drawn)]
            rows.append(self._row(system.name, job.reported, GAPS, filled, is_new=False))
        return rows

    def _row(
        self,
        system: str,
        settings: Setting,
        task: str,
        texts: Sequence[str],
        *,
        is_new: bool = True,
    ) -> CheckRow:
        verdicts = [self.check(text) for text in texts]
        measures = {
            name: share_interval(sum(verdict[name] for verdict in verdicts), len(verdicts))
            for name in verdicts[0]
        }
        right = [t for t, verdict in zip(texts, verdicts, strict=True) if all(verdict.values())]
        if right and is_new:
            different = {self.category.normal(text) for text in right}
            measures["unique"] = share_interval(len(different), len(right))
            measures["novel"] = share_interval(len(different - self.known), len(different))
        return CheckRow(system, dict(settings), task, len(texts), measures)
