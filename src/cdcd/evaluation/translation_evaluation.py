"""Evaluation of translators (§6.6): runs and a baseline translate one test set, one row for each setting.

A diffusion model translates each sentence once, and many times for minimum Bayes-risk decoding. The
autoregressive baseline searches with a beam, takes the likeliest token each time (greedy), and draws
samples where they are asked for. Rows are kept as they finish, so that the same evaluation goes on
where it was stopped.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

from rich.console import Console

from cdcd._version import __version__
from cdcd.data.sentences import Pieces, split_long
from cdcd.evaluation.held_out import described, training_text
from cdcd.evaluation.held_out_pairs import HeldOutPairs, Overlap, overlap
from cdcd.evaluation.sweep import Setting, finished_row, tracked
from cdcd.evaluation.systems import MODELS, Job, System, jobs_of
from cdcd.evaluation.translation_report import (
    Difference,
    Exact,
    OverRuns,
    TranslationReport,
    TranslationRow,
)
from cdcd.inference.translator import Done, Samples
from cdcd.languages import numerals
from cdcd.metrics.bleu import (
    bleu_difference,
    chosen_samples,
    mbr_curve,
    score,
    signatures,
    utility_for,
)
from cdcd.metrics.mbr import mbr_batch
from cdcd.settings import Batch, Bounds, Processes, Seed, Settings, Weight

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(Settings):
    """The way in which translations are drawn and measured."""

    split: str = "test"
    """Held-out part of the runs' pairs: `test`, or `valid` to choose settings by."""
    num_sentences: Annotated[int, Bounds(2, 1_000_000_000)] | None = None
    """Sentences of the test set, the first ones; default: all, of `numerals` 500."""
    counts: tuple[int, ...] = (1,)
    """Numbers of samples for each sentence that minimum Bayes-risk decoding chooses from."""
    utility: Literal["bleu", "chrf"] = "bleu"
    """Similarity by which minimum Bayes-risk decoding compares samples."""
    score_weight: Weight = 0.0
    """Points of the utility for each nat of a diffusion model's denoising score a token."""
    processes: Processes = 1
    """Processes that compare samples."""
    seed: Seed = 0
    """Seed of the noise."""
    batch_size: Batch = 64
    """Translations at a time."""
    num_resamples: Annotated[int, Bounds(100, 1_000_000)] = 1000
    """Resamples of each bootstrap interval."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.counts or not 1 <= min(self.counts) <= max(self.counts) <= 1_000_000:
            raise ValueError(
                f"counts are {list(self.counts)}; give numbers of samples from 1 on, at most 1,000,000"
            )
        if self.score_weight and max(self.counts) == 1:
            raise ValueError(
                f"score_weight is {self.score_weight}, but counts are 1: there is nothing to choose among"
            )


class TranslationEvaluation:
    """Runs, a baseline and the test set that they translate."""

    def __init__(
        self,
        systems: Sequence[System],
        held_out: HeldOutPairs,
        config: TranslationConfig,
        *,
        settings: Mapping[str, Any] | None = None,
        console: Console | None = None,
    ) -> None:
        self.systems, self.held_out, self.config = systems, held_out, config
        self.corpus, self.base = held_out.corpus, dict(settings or {})
        self.console = console or Console(stderr=True)
        self.counts = sorted({1, *config.counts})
        for each in systems:
            if each.model.languages != held_out.languages:
                ours, other = map("-".join, (held_out.languages, each.model.languages))
                raise ValueError(f"{each.run} translates {other}, the test set is {ours}")
            if each.is_baseline and each.config.model != "autoregressive":
                raise ValueError(
                    f"the baseline {each.run} is a diffusion model; give an autoregressive translator"
                )

    def report(
        self,
        out: Path,
        settings: Sequence[Setting] = ({},),
        baseline_settings: Sequence[Setting] = ({},),
    ) -> TranslationReport:
        """Computes every row that is not in the folder `out` yet."""
        count = self.counts[-1]
        jobs = jobs_of(self.systems, self.base, settings, baseline_settings, count)
        how_scored = signatures(self.corpus)
        overlaps = self._overlaps()
        rows: list[TranslationRow] = []
        try:
            for job, done in tracked(jobs, self.console, "translating"):
                rows.append(self._row(job, done, out / "rows", f"{len(rows) + 1} of {len(jobs)}"))
        except KeyboardInterrupt:
            self._say(f"finished rows are in {out / 'rows'}; the same command goes on from there")
            raise
        baselines = [each.run for each in self.systems if each.is_baseline]
        of_baseline = [row for row in rows if row.run in baselines]
        return TranslationReport(
            corpus=self.corpus,
            rows=[self._scored(list(self.corpus.references), system="references"), *rows],
            signatures=how_scored,
            differences=list(self._differences(rows, of_baseline)),
            over_runs=self._over_runs(rows),
            protocol=self._protocol(overlaps),
            remarks=list(self._remarks(rows, overlaps)),
            compared=[*rows[0].texts, *(row.label for row in of_baseline[:1])],
        )

    def _overlaps(self) -> dict[str, Overlap | None]:
        """Counts the test set's sentences that each run trained on, once for each training set."""
        known: dict[Any, Overlap | None] = {}
        for each in self.systems:
            text = training_text(each.config)
            if text not in known:
                known[text] = overlap(self.corpus, each.config, each.model.tokenizer)
        return {each.run: known[training_text(each.config)] for each in self.systems}

    def _row(self, job: Job, done: Done, kept: Path, number: str) -> TranslationRow:
        values, was_there = finished_row(
            kept, self._key(job), lambda: asdict(self._translated(job, done))
        )
        # Names depend on the other runs of this evaluation.
        row = replace(TranslationRow.from_dict(values), **job.names)
        self._say(
            f"{number}, {row.label}: {row.scores.bleu.value:.2f} BLEU, "
            f"{row.sentences_per_second:.3g} sentences/s{' (was there)' if was_there else ''}"
        )
        return row

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _key(self, job: Job) -> dict[str, Any]:
        """Returns all that a row depends on."""
        config = self.config
        return {
            "run": str(Path(job.system.run).resolve()),
            "checkpoint": job.system.checkpoint,
            "how": f"{job.system.how}, {job.system.hardware}",
            "settings": {"of": type(job.settings).__name__} | asdict(job.settings),
            "counts": self.counts if job.num_samples > 1 else [1],
            "utility": config.utility if job.num_samples > 1 else None,
            "seed": config.seed,
            "num_resamples": config.num_resamples,
            "batch_size": config.batch_size,
            "test_set": self.held_out.hash,
            "cdcd": __version__,
        } | self._scoring(job)

    def _scoring(self, job: Job) -> dict[str, float]:
        """Returns the weight of the denoising score for rows of several samples of diffusion models."""
        weight, model = self.config.score_weight, job.system.config.model
        is_scored = weight and job.num_samples > 1 and model == "diffusion"
        return {"score_weight": weight} if is_scored else {}

    def _translated(self, job: Job, done: Done) -> TranslationRow:
        translator, count = job.system.model, job.num_samples
        pieces = split_long(self.corpus.sources, translator.fits)
        started = time.perf_counter()
        drawn = translator.scored_samples(
            pieces.texts,
            num_samples=count,
            seed=self.config.seed,
            batch_size=self.config.batch_size,
            callback=done,
            **self._scoring(job),
            **job.changes,
        )
        seconds = time.perf_counter() - started
        samples = Samples(
            [[" ".join(filter(None, s)) for s in each] for each in _by_sample(pieces, drawn.texts)],
            [[fmean(s) for s in each] for each in _by_sample(pieces, drawn.confidence)],
            drawn.confidence_weight,
            [[fmean(s) for s in each] for each in _by_sample(pieces, drawn.scores)],
            drawn.score_weight,
        )
        row = self._scored(
            [each[0] for each in samples.texts],
            **job.names,
            sentences_per_second=len(pieces.texts) * count / seconds,
            num_too_long=len(pieces.too_long),
            num_unread=len(pieces.unread),
        )
        return row if count == 1 else self._decoded(row, samples)

    def _scored(self, texts: list[str], **fields: Any) -> TranslationRow:
        scores = score(texts, self.corpus, num_resamples=self.config.num_resamples)
        return TranslationRow(scores=scores, exact=self._exact(texts), first=texts, **fields)

    def _decoded(self, row: TranslationRow, samples: Samples) -> TranslationRow:
        """Adds minimum Bayes-risk decoding to a row."""
        choices = mbr_batch(
            samples.texts,
            utility_for(self.config.utility, self.corpus.target_language),
            counts=self.counts,
            bonuses=samples.bonuses,
            processes=self.config.processes,
        )
        curve = mbr_curve(
            samples.texts,
            self.corpus,
            counts=self.counts,
            choices=choices,
            num_resamples=self.config.num_resamples,
        )
        decoded = chosen_samples(samples.texts, choices[:, -1])
        return replace(row, by_count=curve, decoded=decoded, exact_by_count=self._exact(decoded))

    def _exact(self, texts: Sequence[str]) -> Exact | None:
        direction = self.held_out.direction
        if direction is None:
            return None
        pairs = zip(self.corpus.sources, texts, strict=True)
        reasons = Counter(numerals.check(*pair, direction) for pair in pairs)
        num_right = reasons.pop("right", 0)
        return Exact(len(texts), num_right, dict(reasons.most_common()))

    # The report

    def _differences(
        self, rows: Sequence[TranslationRow], of_baseline: Sequence[TranslationRow]
    ) -> Iterator[Difference]:
        """Compares each diffusion row with the baseline's beam search, and decoded samples with its samples."""
        beam = [pair for row in of_baseline[:1] for pair in row.texts.items()]
        sampled = [(row.decoded_label, row.decoded) for row in of_baseline if row.decoded]
        for row in rows:
            if row.model != MODELS["diffusion"]:
                continue
            for label, texts in row.texts.items():
                others = beam if texts is row.first else [*beam, *sampled[:1]]
                for other, theirs in others:
                    resamples = self.config.num_resamples
                    bleu = bleu_difference(theirs, texts, self.corpus, num_resamples=resamples)
                    yield Difference(other, label, bleu)

    def _over_runs(self, rows: Sequence[TranslationRow]) -> list[OverRuns]:
        """Averages over runs of one model under one setting."""
        groups: dict[tuple[str, str], list[TranslationRow]] = {}
        for row in rows:
            groups.setdefault((str(row.model), repr(row.settings)), []).append(row)
        return [OverRuns.of(name, same) for (name, _), same in groups.items() if len(same) > 1]

    def _protocol(self, overlaps: dict[str, Overlap | None]) -> dict[str, Any]:
        return asdict(self.config) | {
            "test_set": self.held_out.name,
            "test_set_hash": self.held_out.hash,
            "settings": self.base,
            "hardware": self.systems[0].hardware,
            "runs": {
                each.run: {"name": each.name, "checkpoint": each.checkpoint, "how": each.how}
                | {"config": described(each.config)}
                for each in self.systems
            },
            "trained_on": {run: known and asdict(known) for run, known in overlaps.items()},
        }

    def _remarks(
        self, rows: Sequence[TranslationRow], overlaps: dict[str, Overlap | None]
    ) -> Iterator[str]:
        changes = "".join(f", {name} {value}" for name, value in self.base.items())
        yield f"test set: {self.held_out.name}{changes}"
        yield from self.held_out.remarks
        known = [each for each in overlaps.values() if each is not None]
        if known:
            pairs, sources = (max(getattr(e, n) for e in known) for n in ("pairs", "sources"))
            yield f"trained on: at most {pairs} of the test set's pairs, {sources} of its sources"
        if unknown := [run for run, each in overlaps.items() if each is None]:
            yield f"the training pairs of {', '.join(unknown)} are not there: not compared"
        if num_too_long := max(row.num_too_long for row in rows):
            num_unread = max(row.num_unread for row in rows)
            yield (
                f"{num_too_long} sentences are too long for a model: translated in pieces; of "
                f"{num_unread} a piece is too long even so, and left out"
            )
        yield (
            f"sentences/s: translations in batches of {self.config.batch_size} on "
            f"{self.systems[0].hardware}; n samples take n times as long"
        )


def _by_sample(pieces: Pieces, values: Sequence[list[T]]) -> Iterator[Iterator[tuple[T, ...]]]:
    """Yields, for each text, the values of its pieces in its first sample, in the second, and so on."""
    for of_pieces in pieces.by_text(values):
        yield zip(*of_pieces, strict=True)
