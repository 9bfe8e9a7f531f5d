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
from typing import Annotated, Any, Literal

from rich.console import Console

from cdcd._version import __version__
from cdcd.data.sentences import split_long
from cdcd.evaluation.held_out import described, training_text
from cdcd.evaluation.held_out_pairs import (
    HeldOutPairs,
    Overlap,
    held_out_pairs,
    languages_of,
    overlap,
)
from cdcd.evaluation.sweep import FinishedRows, Setting, tracked
from cdcd.evaluation.translation_report import (
    Difference,
    Exact,
    OverRuns,
    TranslationReport,
    TranslationRow,
    controls,
    write_translation_report,
    write_translations,
)
from cdcd.evaluation.translators import (
    BASELINE,
    MODELS,
    Job,
    System,
    jobs_of,
    load_system,
    load_systems,
)
from cdcd.inference.translator import Done, Samples
from cdcd.languages import numerals
from cdcd.metrics.bleu import (
    Corpus,
    bleu_difference,
    chosen_samples,
    mbr_curve,
    score,
    signatures,
    utility_for,
)
from cdcd.metrics.mbr import mbr_batch
from cdcd.settings import Batch, Bounds, Seed, Settings


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
    processes: Annotated[int, Bounds(1, 4_096)] = 1
    """Processes that compare samples."""
    seed: Seed = 0
    """Seed of the noise."""
    batch_size: Batch = 64
    """Translations at a time."""
    num_resamples: Annotated[int, Bounds(100, 1_000_000)] = 1000
    """Resamples of each bootstrap interval."""
    controls: bool = False
    """Also score texts with known defects: copies of the source, shuffled, doubled and missing words."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.counts or not 1 <= min(self.counts) <= max(self.counts) <= 1_000_000:
            raise ValueError(
                f"counts are {list(self.counts)}; give numbers of samples from 1 on, at most 1,000,000"
            )


class TranslationEvaluation:
    """Runs, a baseline and the test set that they translate."""

    def __init__(
        self,
        systems: Sequence[System],
        held_out: HeldOutPairs,
        config: TranslationConfig,
        *,
        baseline: System | None = None,
        settings: Mapping[str, Any] | None = None,
        console: Console | None = None,
    ) -> None:
        self.systems, self.held_out, self.config = list(systems), held_out, config
        self.corpus: Corpus = held_out.corpus
        self.baseline, self.base = baseline, dict(settings or {})
        self.console = console or Console(stderr=True)
        self.counts = sorted({1, *config.counts})
        self.all_systems = [*self.systems, *([baseline] if baseline is not None else [])]
        for each in self.all_systems:
            if each.translator.languages != languages_of(self.corpus):
                ours, other = map("-".join, (languages_of(self.corpus), each.translator.languages))
                raise ValueError(f"{each.run} translates {other}, the test set is {ours}")
        if baseline is not None and baseline.config.model != "autoregressive":
            raise ValueError(
                f"the baseline {baseline.run} is a diffusion model; give an autoregressive translator"
            )

    def run(
        self,
        out: Path,
        settings: Sequence[Setting] = ({},),
        baseline_settings: Sequence[Setting] = ({},),
    ) -> tuple[TranslationReport, list[Path]]:
        """Computes every row that is not there yet; writes the report, the translations and examples."""
        jobs = self._jobs(settings, baseline_settings)
        how_scored = signatures(self.corpus)
        overlaps = self._overlaps()
        kept = FinishedRows(out / "rows.jsonl")
        rows: list[TranslationRow] = []
        try:
            for job, done in tracked(jobs, self.console, "translating"):
                rows.append(self._row(job, done, kept, f"{len(rows) + 1} of {len(jobs)}"))
        except KeyboardInterrupt:
            self._say(f"finished rows are in {kept.path}; the same command goes on from there")
            raise
        report = self._report(rows, how_scored, overlaps)
        paths = write_translation_report(report, out)
        compared = [*rows[0].texts, *(row.label for row in self._of_baseline(rows)[:1])]
        return report, [*paths, *write_translations(rows, self.corpus, compared, out)]

    def _jobs(self, settings: Sequence[Setting], baseline_settings: Sequence[Setting]) -> list[Job]:
        """Returns all rows, with their settings checked before the first is computed."""
        count = max(self.config.counts)
        jobs = [j for each in self.systems for j in jobs_of(each, self.base, settings, count)]
        if self.baseline is not None:
            jobs += jobs_of(self.baseline, {}, baseline_settings, count)
        # A sweep may hold a setting that is a row anyway.
        different: dict[tuple[str, str], Job] = {}
        for job in jobs:
            different.setdefault((job.label, repr(job.settings)), job)
        return list(different.values())

    def _overlaps(self) -> dict[str, Overlap | None]:
        """Counts the test set's sentences that each run trained on, once for each training set."""
        known: dict[Any, Overlap | None] = {}
        for each in self.all_systems:
            text = training_text(each.config)
            if text not in known:
                known[text] = overlap(self.corpus, each.config, each.translator.tokenizer)
        return {each.run: known[training_text(each.config)] for each in self.all_systems}

    def _row(self, job: Job, done: Done, kept: FinishedRows, number: str) -> TranslationRow:
        known = kept.find(self._key(job))
        if known is None:
            row = self._translated(job, done)
            kept.add(self._key(job), asdict(row))
        else:
            row = TranslationRow.from_dict({n: v for n, v in known.items() if n != "key"})
            # Names depend on the other runs of this evaluation.
            row = replace(row, **job.names)
        was_there = "" if known is None else " (was there)"
        self._say(
            f"{number}, {row.label}: {row.scores.bleu.value:.2f} BLEU, "
            f"{row.sentences_per_second:.3g} sentences/s{was_there}"
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
        }

    def _translated(self, job: Job, done: Done) -> TranslationRow:
        translator, count = job.system.translator, job.num_samples
        pieces = split_long(self.corpus.sources, translator.fits)
        started = time.perf_counter()
        drawn = translator.scored_samples(
            pieces.texts,
            num_samples=count,
            seed=self.config.seed,
            batch_size=self.config.batch_size,
            callback=done,
            **job.changes,
        )
        seconds = time.perf_counter() - started
        samples = Samples(
            [
                [" ".join(filter(None, sample)) for sample in zip(*each, strict=True)]
                for each in pieces.by_text(drawn.texts)
            ],
            [
                [fmean(sample) for sample in zip(*each, strict=True)]
                for each in pieces.by_text(drawn.confidence)
            ],
        )
        row = replace(
            self._scored(job.label, [each[0] for each in samples.texts]),
            **job.names,
            sentences_per_second=len(pieces.texts) * count / seconds,
            num_too_long=len(pieces.too_long),
            num_unread=len(pieces.unread),
        )
        return row if count == 1 else self._decoded(row, samples, job.settings)

    def _scored(self, system: str, texts: list[str]) -> TranslationRow:
        scores = score(texts, self.corpus, num_resamples=self.config.num_resamples)
        return TranslationRow(system=system, scores=scores, exact=self._exact(texts), first=texts)

    def _decoded(self, row: TranslationRow, samples: Samples, settings: Any) -> TranslationRow:
        """Adds minimum Bayes-risk decoding to a row."""
        choices = mbr_batch(
            samples.texts,
            utility_for(self.config.utility, self.corpus.target_language),
            counts=self.counts,
            bonuses=samples.bonuses(settings),
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
        reasons = Counter(numerals.check(*pair, direction).reason for pair in pairs)
        num_right = reasons.pop("right", 0)
        return Exact(len(texts), num_right, dict(reasons.most_common()))

    # The report

    def _report(
        self,
        rows: Sequence[TranslationRow],
        how_scored: dict[str, str],
        overlaps: dict[str, Overlap | None],
    ) -> TranslationReport:
        known = controls(self.corpus)
        if not self.config.controls:
            known = {"references": known["references"]}
        all_rows = [*(self._scored(*each) for each in known.items()), *rows]
        return TranslationReport(
            languages=languages_of(self.corpus),
            num_sentences=len(self.corpus.sources),
            signatures=how_scored,
            rows=all_rows,
            differences=list(self._differences(rows)),
            over_runs=self._over_runs(rows),
            protocol=self._protocol(overlaps),
            remarks=list(self._remarks(all_rows, overlaps)),
        )

    def _of_baseline(self, rows: Sequence[TranslationRow]) -> list[TranslationRow]:
        return [row for row in rows if self.baseline is not None and row.run == self.baseline.run]

    def _differences(self, rows: Sequence[TranslationRow]) -> Iterator[Difference]:
        """Compares each diffusion row with the baseline's beam search, and decoded samples with its samples."""
        theirs = self._of_baseline(rows)
        if not theirs:
            return
        beam = (theirs[0].label, theirs[0].first)
        sampled = [(row.decoded_label, row.decoded) for row in theirs if row.decoded is not None]
        for row in rows:
            if row.model == MODELS["diffusion"]:
                yield self._difference(beam, (row.label, row.first))
                if row.decoded is not None:
                    for other in (beam, *sampled[:1]):
                        yield self._difference(other, (row.decoded_label, row.decoded))

    def _difference(
        self, first: tuple[str, Sequence[str]], second: tuple[str, Sequence[str]]
    ) -> Difference:
        resamples = self.config.num_resamples
        bleu = bleu_difference(first[1], second[1], self.corpus, num_resamples=resamples)
        return Difference(first[0], second[0], bleu)

    def _over_runs(self, rows: Sequence[TranslationRow]) -> list[OverRuns]:
        """Averages over runs of one model under one setting."""
        theirs = self._of_baseline(rows)
        groups: dict[tuple[str, str], list[TranslationRow]] = {}
        for row in rows:
            if row not in theirs:
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
                for each in self.all_systems
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
            yield (
                f"of the test set's pairs {pairs} were trained on, of its sources {sources}"
                + (", by the run that knows most" if len(known) > 1 else "")
            )
        if unknown := [run for run, each in overlaps.items() if each is None]:
            yield f"the training pairs of {', '.join(unknown)} are not there: not compared"
        num_too_long = max(row.num_too_long for row in rows)
        if num_too_long:
            num_unread = max(row.num_unread for row in rows)
            yield (
                f"{num_too_long} sentences are too long for a model: translated in pieces; of "
                f"{num_unread} a piece is too long even so, and left out"
            )
        yield (
            f"sentences/s: translations in batches of {self.config.batch_size} on "
            f"{self.systems[0].hardware}; n samples take n times as long"
        )


def load_evaluation(
    runs: Sequence[Path],
    config: TranslationConfig,
    *,
    baseline: Path | None = None,
    data: str | None = None,
    files: tuple[Path, Path] | None = None,
    settings: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **options: Any,
) -> TranslationEvaluation:
    """Loads runs and the pairs that the first of them holds out, or those of two files."""
    systems = load_systems(runs, data=data, **options)
    other = None if baseline is None else load_system(baseline, BASELINE, data=data, **options)
    configs = [each.config for each in [*systems, *([other] if other is not None else [])]]
    held_out = held_out_pairs(
        configs[0],
        split=config.split,
        files=files,
        num_sentences=config.num_sentences,
        trained_on={each.data.split for each in configs},
    )
    return TranslationEvaluation(
        systems, held_out, config, baseline=other, settings=settings, console=console
    )
