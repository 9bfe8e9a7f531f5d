"""Evaluation of text models (§6.2, §6.5): samples of runs and a baseline beside real text, before one judge."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from rich.console import Console

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
)
from cdcd.evaluation.judge import Judge, num_bytes, split_texts
from cdcd.evaluation.judges import load_judge
from cdcd.evaluation.sweep import Setting, label_of, tracked
from cdcd.evaluation.systems import BASELINE, Job, System, jobs_of, load_systems
from cdcd.evaluation.text_report import Measured, Report, Row
from cdcd.evaluation.texts import Texts, flat_arrays, held_out_texts, sample_texts
from cdcd.inference.load import load
from cdcd.metrics.entropy import first_tokens, text_statistics
from cdcd.metrics.intervals import pooled_entropy_interval, ratio_interval
from cdcd.metrics.matches import MatchSummary, longest_matches, summarise_matches
from cdcd.metrics.mauve import mauve
from cdcd.settings import Batch, Bounds, Seed, Settings

NUM_EXAMPLES = 8
FEWEST_FOR_MAUVE = 100


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings):
    """The way in which samples are drawn and measured."""

    protocol: Literal["half", "random", "none"] = "half"
    """Given prefix: `half` the sequence (the paper's tables 1 and 2), a `random` length from nothing to
    half (its Table 3), or `none`."""
    sequences: Literal["layout", "documents"] = "layout"
    """Held-out sequences: in the run's own `layout`, or only `documents` that fill one, cropped to it; an
    autoregressive model then never ends a document (§6.5)."""
    split: str = "auto"
    """Held-out part of a prepared data set; `auto`: test where there is one, else valid."""
    num_samples: Annotated[int, Bounds(2, 1_000_000)] = 1024
    """Samples for each run and setting."""
    seed: Seed = 0
    """Seed of the noise and of the choice of held-out text."""
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


@dataclass(frozen=True, eq=False)
class Samples:
    """A set of samples of a system under one setting, or real text."""

    name: str
    settings: Setting
    source: str
    texts: Texts
    system: System
    """The system that drew them; real text is looked for in the training set of the first one."""

    @property
    def label(self) -> str:
        return label_of(self.name, self.settings)


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
        console: Console | None = None,
        device: str = "auto",
        **options: Any,
    ) -> None:
        self.config, self.console = config, console or Console()
        self.base = dict(settings or {})
        self.systems = load_systems(load, runs, baseline, data=data, device=device, **options)
        self.model, self.run = self.systems[0].model, self.systems[0].config
        self.tokenizer = self.model.tokenizer
        for each in self.systems:
            check_comparable(each, self.systems[0])
        self.judge: Judge = load_judge(
            judge, self.tokenizer, self.model.length, device=device, dtype="float32"
        )
        self.held_out = held_out_sequences(
            self.run,
            self.tokenizer,
            split=config.split,
            whole_documents=config.sequences == "documents",
        )
        known = KnownDocuments(
            documents_of(self.run, config.split),
            [each.config for each in self.systems if not each.is_baseline],
        )
        self.trained_on = {}
        for each in self.systems:
            name = "the baseline" if each.is_baseline else each.run
            self.trained_on[name] = known.shared_with(name, each.config).held_out
        self.num_held_out = known.held_out.num_documents
        self.judge_facts = about_judge(judge, self.model.config, data, known)
        self.prompts, self.reference = draw_held_out(self.held_out, config, self.run.data.layout)
        self.real = self.prompts.counted(self.run.data.layout)

    def report(
        self, settings: Sequence[Setting] = ({},), baseline_settings: Sequence[Setting] = ({},)
    ) -> Report:
        """Samples every system under every setting, and measures all at equal token counts."""
        jobs = jobs_of(self.systems, self.base, settings, baseline_settings)
        # A judge that cannot read so much text says so now.
        self.judge.nats(self.real.first(self.config.batch_size))
        samples = list(self._all_samples(jobs))
        return Report(
            rows=self._rows(samples),
            judge=self.judge_facts,
            protocol=self._protocol(),
            examples=self._examples(samples),
        )

    # Samples

    def _all_samples(self, jobs: Sequence[Job]) -> Iterator[Samples]:
        yield Samples("data", {}, "held-out text", self.real, self.systems[0])
        for job, _ in tracked(jobs, self.console, "sampling"):
            yield self._sampled(job)

    def _sampled(self, job: Job) -> Samples:
        system, changes, config = job.system, job.changes, self.config
        if system.config.model == "autoregressive" and config.sequences == "documents":
            changes = {**changes, "suppress_eos": True}
        texts = sample_texts(system.model, self.prompts, changes, config.seed, config.batch_size)
        counted = texts.counted(self.run.data.layout)
        return Samples(
            system.kind, job.reported, f"{system.run}, seed {config.seed}", counted, system
        )

    # Measurements

    def _rows(self, sets: Sequence[Samples]) -> list[Row]:
        num_tokens = min(int(each.texts.is_generated.sum()) for each in sets)
        if num_tokens == 0:
            raise ValueError("one of the sets has no generated token: nothing can be measured")
        reference = None if self.reference is None else self._features(self.reference)
        matches = self._matches(sets) if self.config.matches else {}
        rows: dict[str, Row] = {}
        for each in sets:
            row = rows.setdefault(each.label, Row(each.name, each.settings, []))
            row.measured.append(self._measured(each, num_tokens, matches.get(each), reference))
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
        is_reference = self.config.mauve_reference == "original" and samples.name == "data"
        features = None if is_reference else self._features(texts)
        similarity = None
        if reference is not None and features is not None:
            similarity = mauve(reference, features, seed=self.config.seed)
        counted = first_tokens(texts.tokens, texts.is_generated, num_tokens)
        return Measured(
            source=samples.source,
            nll=ratio_interval(nats, num_tokens_of_each, seed=self.config.seed),
            nats_per_byte=float(nats.sum()) / max(sum(num_bytes(texts, self.tokenizer)), 1),
            entropy=pooled_entropy_interval(*counted),
            statistics=text_statistics(*counted),
            mauve=similarity,
            matches=match,
            exact=exact_scores(texts, self.run.data, self.tokenizer, self.judge),
            nats_per_judge_token=float(nats.sum())
            / max(int(self.judge.num_tokens(texts).sum()), 1),
        )

    def _features(self, texts: Texts) -> torch.Tensor | None:
        if not self.config.mauve or len(texts) < FEWEST_FOR_MAUVE:
            return None
        return self.judge.features(texts)

    def _matches(self, sets: Sequence[Samples]) -> dict[Samples, MatchSummary]:
        """Looks for each system's samples in its training set, with one pass over a training set."""
        by_text: dict[Any, list[Samples]] = {}
        for each in sets:
            by_text.setdefault(training_text(each.system.config), []).append(each)
        matches = {}
        for group in by_text.values():
            training = training_sequences(group[0].system.config, self.tokenizer)
            lengths = longest_matches(
                torch.cat([each.texts.tokens for each in group]),
                torch.cat([each.texts.is_generated for each in group]),
                flat_arrays(training),
            )
            parts = lengths.split([len(each.texts) for each in group])
            for each, part in zip(group, parts, strict=True):
                matches[each] = summarise_matches(part, each.texts.is_generated)
        return matches

    # The rest of the report

    def _protocol(self) -> dict[str, Any]:
        half = self.model.length // 2
        prefix = {
            "half": f"a prefix of {half} given",
            "random": f"a prefix of 0 to {half} given",
            "none": "nothing given",
        }
        configs = {
            BASELINE if each.is_baseline else each.run: described(each.model.config)
            for each in self.systems
        }
        return asdict(self.config) | {
            "num_samples": len(self.real),
            "length": self.model.length,
            "prefix": prefix[self.config.protocol],
            "settings": self.base,
            "held_out_documents": self.num_held_out,
            "held_out_documents_trained_on": self.trained_on,
            "baseline": configs.pop(BASELINE, None),
            "runs": configs,
        }

    def _examples(self, sets: Sequence[Samples]) -> dict[str, list[str]]:
        """Returns the first few samples of each row, the given text in «»; none is chosen."""
        examples: dict[str, list[str]] = {}
        for each in sets:
            if each.label not in examples:
                pairs = split_texts(each.texts.first(NUM_EXAMPLES), self.tokenizer)
                examples[each.label] = [f"«{before}»{after}" for before, after in pairs]
        return examples
