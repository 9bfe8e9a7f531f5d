"""Evaluation of text models (§6.2, §6.5): samples of runs and a baseline beside real text, before one judge."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from rich.console import Console

from cdcd.config import RunConfig
from cdcd.data.sequences import Sequences
from cdcd.evaluation.exact import exact_scores
from cdcd.evaluation.held_out import (
    KnownDocuments,
    about_judge,
    check_comparable,
    described,
    documents_of,
    held_out_sequences,
    training_sequences,
    training_text,
    with_source,
)
from cdcd.evaluation.judge import Judge, load_judge, num_bytes, split_texts
from cdcd.evaluation.report_plots import CONTROL
from cdcd.evaluation.sweep import Setting, label_of, tracked
from cdcd.evaluation.text_report import Measured, Report, Row
from cdcd.evaluation.texts import (
    Texts,
    flat_arrays,
    held_out_texts,
    sample_texts,
    shuffled,
    spliced,
)
from cdcd.inference.load import load
from cdcd.inference.text_model import AutoregressiveTextModel, DiffusionTextModel, TextModel
from cdcd.metrics.entropy import first_tokens, text_statistics
from cdcd.metrics.intervals import pooled_entropy_interval, ratio_interval
from cdcd.metrics.matches import MatchSummary, longest_matches, summarise_matches
from cdcd.metrics.mauve import mauve
from cdcd.settings import Batch, Bounds, Repeats, Seed, Settings
from cdcd.training.validation import validate

NUM_EXAMPLES = 8
FEWEST_FOR_MAUVE = 100


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings):
    """The way in which samples are drawn and measured."""

    protocol: Literal["half", "random"] = "half"
    """Given prefix: `half` the sequence (the paper's tables 1 and 2), or a `random` length from nothing to
    half (its Table 3)."""
    sequences: Literal["layout", "documents"] = "layout"
    """Held-out sequences: in the run's own `layout`, or only `documents` that fill one, cropped to it; an
    autoregressive model then never ends a document (§6.5)."""
    split: str = "auto"
    """Held-out part of a prepared data set; `auto`: test where there is one, else valid."""
    num_samples: Annotated[int, Bounds(2, 1_000_000)] = 1024
    """Samples for each setting and seed."""
    num_seeds: Repeats = 1
    """Sets of samples for each run and setting."""
    seed: Seed = 0
    """First seed."""
    batch_size: Batch = 256
    """Sequences at a time."""
    mauve: bool = True
    """Measure MAUVE from the judge's features."""
    mauve_reference: Literal["other", "original"] = "other"
    """Text that MAUVE compares with: `other` held-out text, whose prompts no row shares, so that held-out text
    is what a perfect sampler would score; or, as the paper, the `original` text of the prompts, which favours
    every system and leaves the data without a value."""
    matches: bool = True
    """Find the longest match of each sample with the training set."""
    controls: bool = False
    """Also measure shuffled text and pieces of the training set."""


@dataclass(frozen=True)
class Job:
    """A system under one setting."""

    system: str
    run: str
    model: TextModel
    settings: Setting
    """The settings that the report names."""
    changes: Setting
    """All changes of the model's own settings."""


@dataclass(frozen=True)
class Samples:
    """A set of samples of a system under one setting."""

    system: str
    settings: Setting
    source: str
    texts: Texts
    run: str | None = None
    trained: RunConfig | None = None
    """The run whose training set they may be copied from; None: the first one."""


def draw_held_out(
    sequences: Sequences, config: EvaluationConfig, layout: str
) -> tuple[Texts, Texts | None]:
    """Returns real text whose beginnings are the prompts, and the text that MAUVE compares with.

    Real text and the samples of all systems begin with the same prompts. Text that shares these is
    nearer to every system than other real text is, so it would make a sampler better than the data.
    Against other text, held-out text and a perfect sampler have the same expected MAUVE. The second
    text is None where too little is left.
    """

    def drawn(count: int, skip: int = 0) -> Texts:
        texts = held_out_texts(sequences, count, config.protocol, seed=config.seed, skip=skip)
        # A document that ends in what is given leaves nothing to generate or to measure.
        return texts.where(texts.counted(layout).is_generated.any(1))

    prompts = drawn(config.num_samples)
    if len(prompts) < 2:
        raise ValueError("the held-out text has no token to generate: its documents are too short")
    if config.mauve_reference == "original":
        return prompts, prompts.counted(layout)
    others = min(config.num_samples, len(sequences) - config.num_samples)
    if others < FEWEST_FOR_MAUVE:
        return prompts, None
    return prompts, drawn(others, config.num_samples).counted(layout)


class Evaluation:
    """The models, the held-out text and the judge of one evaluation."""

    def __init__(
        self,
        runs: Sequence[Path],
        judge: str,
        config: EvaluationConfig,
        *,
        baseline: Path | None = None,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        compile: str = "auto",
        console: Console | None = None,
    ) -> None:
        self.config, self.console = config, console or Console()
        self.data = data
        self.base = dict(settings or {})
        self.models = {
            str(run): load(run, device=device, dtype=dtype, compile=compile) for run in runs
        }
        self.model = next(iter(self.models.values()))
        self.tokenizer = self.model.tokenizer
        self.run = with_source(self.model.config, data)
        self.baseline = load(baseline, device=device, dtype=dtype) if baseline else None
        others = [*self.models.values(), *([self.baseline] if self.baseline else [])]
        for model in others:
            check_comparable(model, self.model)
        self.judge: Judge = load_judge(
            judge, self.tokenizer, self.model.length, device=device, dtype="float32"
        )
        self.held_out = held_out_sequences(
            self.run,
            self.tokenizer,
            split=config.split,
            whole_documents=config.sequences == "documents",
        )
        trained = {run: with_source(model.config, data) for run, model in self.models.items()}
        known = KnownDocuments(documents_of(self.run, config.split), trained.values())
        if self.baseline is not None:
            trained["the baseline"] = with_source(self.baseline.config, data)
        self.trained_on = {run: known.shared_with(run, of) for run, of in trained.items()}
        self.num_held_out = known.held_out.num_documents
        self.judge_facts = about_judge(judge, self.model.config, data, known)
        self.prompts, self.reference = draw_held_out(self.held_out, config, self.run.data.layout)
        self.real = self.prompts.counted(self.run.data.layout)

    def report(
        self, settings: Sequence[Setting] = ({},), baseline_settings: Sequence[Setting] = ({},)
    ) -> Report:
        """Samples every system under every setting, and measures all at equal token counts."""
        jobs = self._jobs(settings, baseline_settings)
        # A judge that cannot read so much text says so now.
        self.judge.nats(self.real.first(self.config.batch_size))
        samples = list(self._all_samples(jobs))
        return Report(
            rows=self._rows(samples),
            judge=self.judge_facts,
            protocol=self._protocol(),
            denoising=denoising_quality(self.model, self.held_out),
            examples=self._examples(samples),
        )

    # Samples

    def _jobs(self, settings: Sequence[Setting], baseline_settings: Sequence[Setting]) -> list[Job]:
        """Returns every system under every setting; refuses a bad setting before an hour of sampling."""
        jobs = [
            Job(_name(model), run, model, changes, {**self.base, **changes})
            for run, model in self.models.items()
            for changes in settings
        ]
        if self.baseline is not None:
            jobs += [Job("baseline", "baseline", self.baseline, c, c) for c in baseline_settings]
        one = self.prompts.first(1)
        for job in jobs:
            chosen = job.model.settings(job.changes)
            if isinstance(job.model, DiffusionTextModel):
                device, noise = job.model.device, job.model.sampler.draw([(0,)]).noise
                tokens, is_generated = one.tokens.to(device), one.is_generated.to(device)
                job.model.sampler.estimator(tokens, is_generated, chosen, noise=noise)
        return jobs

    def _all_samples(self, jobs: Sequence[Job]) -> Iterator[Samples]:
        yield Samples("data", {}, "held-out text", self.real)
        if self.config.controls:
            yield from self._controls()
        seeds = range(self.config.seed, self.config.seed + self.config.num_seeds)
        sets = list(itertools.product(jobs, seeds))
        for (job, seed), _ in tracked(sets, self.console, "sampling"):
            yield self._sampled(job, seed)

    def _controls(self) -> Iterator[Samples]:
        training = training_sequences(self.run, self.tokenizer)
        for name, texts in (
            ("shuffled", shuffled(self.real)),
            ("spliced", spliced(self.real, training)),
        ):
            yield Samples(CONTROL + name, {}, "control", texts)

    def _sampled(self, job: Job, seed: int) -> Samples:
        changes = job.changes
        if isinstance(job.model, AutoregressiveTextModel) and self.config.sequences == "documents":
            changes = {**changes, "suppress_eos": True}
        texts = sample_texts(job.model, self.prompts, changes, seed, self.config.batch_size)
        return Samples(
            system=job.system,
            settings=job.settings,
            source=f"{job.run}, seed {seed}",
            texts=texts.counted(self.run.data.layout),
            run=job.run,
            trained=with_source(job.model.config, self.data),
        )

    # Measurements

    def _rows(self, sets: Sequence[Samples]) -> list[Row]:
        num_tokens = min(int(each.texts.is_generated.sum()) for each in sets)
        if num_tokens == 0:
            raise ValueError("one of the sets has no generated token: nothing can be measured")
        reference = None if self.reference is None else self._features(self.reference)
        rows: dict[str, Row] = {}
        for each, match in zip(sets, self._matches(sets), strict=True):
            label = label_of(each.system, each.settings)
            row = rows.setdefault(label, Row(each.system, each.settings, []))
            row.measured.append(self._measured(each, num_tokens, match, reference))
        return list(rows.values())

    def _measured(
        self,
        samples: Samples,
        num_tokens: int,
        match: MatchSummary | None,
        reference: torch.Tensor | None,
    ) -> Measured:
        texts = samples.texts
        nats, num_tokens_of_each = self.judge.nats(texts), texts.is_generated.sum(1)
        # Text compared with itself would have a MAUVE of 1.
        is_reference = self.config.mauve_reference == "original" and samples.system == "data"
        features = None if is_reference else self._features(texts)
        similarity = None
        if reference is not None and features is not None:
            similarity = mauve(reference, features, seed=self.config.seed).score
        return Measured(
            source=samples.source,
            nll=ratio_interval(nats, num_tokens_of_each, seed=self.config.seed),
            nats_per_byte=float(nats.sum()) / max(sum(num_bytes(texts, self.tokenizer)), 1),
            entropy=pooled_entropy_interval(
                *first_tokens(texts.tokens, texts.is_generated, num_tokens)
            ),
            statistics=text_statistics(texts.tokens, texts.is_generated, num_tokens=num_tokens),
            mauve=similarity,
            matches=match,
            exact=exact_scores(texts, self.run.data, self.tokenizer, self.judge),
            run=samples.run,
        )

    def _features(self, texts: Texts) -> torch.Tensor | None:
        if not self.config.mauve or len(texts) < FEWEST_FOR_MAUVE:
            return None
        return self.judge.features(texts)

    def _matches(self, sets: Sequence[Samples]) -> list[MatchSummary | None]:
        """Looks for each system's samples in its training set, with one pass over a training set."""
        summaries: list[MatchSummary | None] = [None] * len(sets)
        by_text: dict[Any, list[int]] = {}
        for i, each in enumerate(sets if self.config.matches else ()):
            by_text.setdefault(training_text(each.trained or self.run), []).append(i)
        for indices in by_text.values():
            texts = [sets[i].texts for i in indices]
            training = training_sequences(sets[indices[0]].trained or self.run, self.tokenizer)
            lengths = longest_matches(
                torch.cat([each.tokens for each in texts]),
                torch.cat([each.is_generated for each in texts]),
                flat_arrays(training),
            )
            parts = lengths.split([len(each) for each in texts])
            for i, part, each in zip(indices, parts, texts, strict=True):
                summaries[i] = summarise_matches(part, each.is_generated)
        return summaries

    # The rest of the report

    def _protocol(self) -> dict[str, Any]:
        prefixes = {
            "half": f"a prefix of {self.model.length // 2} given",
            "random": f"a prefix of 0 to {self.model.length // 2} given",
        }
        config = asdict(self.config)
        return config | {
            "num_samples": len(self.real),
            "length": self.model.length,
            "prefix": prefixes[self.config.protocol],
            "settings": self.base,
            "runs": {run: described(model.config) for run, model in self.models.items()},
            "held_out_documents": self.num_held_out,
            "held_out_documents_trained_on": {
                run: shared.held_out for run, shared in self.trained_on.items()
            },
            "baseline": described(self.baseline.config) if self.baseline is not None else None,
        }

    def _examples(self, sets: Sequence[Samples]) -> dict[str, list[str]]:
        """Returns the first few samples of each row, the given text in «»; none is chosen."""
        examples: dict[str, list[str]] = {}
        for each in sets:
            label = label_of(each.system, each.settings)
            if label not in examples:
                pairs = split_texts(each.texts.first(NUM_EXAMPLES), self.tokenizer)
                examples[label] = [f"«{before}»{after}" for before, after in pairs]
        return examples


def _name(model: TextModel) -> str:
    return "cdcd" if isinstance(model, DiffusionTextModel) else "autoregressive"


def denoising_quality(model: TextModel, held_out: Sequences) -> dict[str, Any]:
    """Measures cross-entropy and accuracy by noise level, with and without self-conditioning."""
    if not isinstance(model, DiffusionTextModel):
        return {}
    rows = torch.arange(min(len(held_out), model.config.training.valid_sequences))
    tokens = held_out.rows(rows).to(model.device)
    shares = {"without self-conditioning": 0.0}
    if model.config.objective.self_conditioning:
        shares["with self-conditioning"] = 1.0
    levels = {}
    for name, share in shares.items():
        objective = replace(model.config.objective, self_conditioned_share=share)
        config = replace(model.config, objective=objective)
        report = validate(
            model.network, model.sampler.table, tokens, model.sampler.warp.schedule(), config
        )
        levels[name] = [asdict(level) for level in report.levels]
    return levels
