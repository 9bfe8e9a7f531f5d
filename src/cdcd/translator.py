"""Trained translators in use (§6.6): load a run, translate sentences, alone or by many samples of each.

translator = cdcd.load_translator("runs/numerals")
print(translator.translate(["Anna gets up at half past two."], num_samples=10))
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.data.order import keys_for
from cdcd.data.pieces import Resegmented
from cdcd.data.shards import InMemory
from cdcd.data.tokenizer import EOS, PAD, Tokenizer
from cdcd.diffusion.estimator import Estimator, Guided
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.settling import Given, settle
from cdcd.diffusion.warping import TimeWarp
from cdcd.generation import (
    SampleDraws,
    check_sampling,
    draw_for_samples,
    load_parts,
    make_estimator,
)
from cdcd.networks.beam import BeamConfig, beam_search
from cdcd.networks.capture import make_recorder
from cdcd.networks.decoding import DecodingConfig, decode_targets
from cdcd.networks.precision import Autocast, with_bfloat16_weights
from cdcd.networks.seq2seq import Memory
from cdcd.networks.translation import Source, TranslationModel
from cdcd.networks.translator import AutoregressiveTranslator
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.config import RunConfig

Done = Callable[[float], None]
"""Told how much is done, from 0 to 1."""
DRAWN_AT = 0.5
"""The temperature of settling where several samples are wanted of a source that is always split alike: the
likeliest tokens are nearly always the same."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it are spread evenly over the unit interval, modulo 1, however many there are."""
SURENESS = 45.0
"""Utility for each nat a token that a settled sample is surer than another, in points of BLEU or chrF."""
Place = tuple[int, int, int]
"""The seed, the number of the sentence and that of the sample: what a sample's noise depends on."""


@dataclass(frozen=True)
class Filled:
    """Targets, and how sure the model is of each."""

    tokens: Int[Tensor, "batch seq"]
    sureness: Float[Tensor, " batch"] | None = None
    """The mean of ln p over the tokens, where it is known."""


@dataclass(frozen=True)
class Samples:
    """Translations of some texts, several of each."""

    texts: list[list[str]]
    sureness: list[list[float]]
    """The mean ln p of the tokens of each; 0 where it is not known."""

    def bonuses(self, weight: float) -> list[list[float]]:
        """What each is worth for its sureness, in points of a utility."""
        return [[weight * each for each in row] for row in self.sureness]


def check_sureness(weight: float) -> None:
    """Refuse a weight of sureness that could choose nothing, before anything is sampled."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"sureness is {weight}, it must be a number from 0 on")


def names_of(settings: type) -> frozenset[str]:
    """The settings of a dataclass."""
    return frozenset(field.name for field in fields(settings))


SETTINGS = names_of(SamplingConfig) | names_of(DecodingConfig) | names_of(BeamConfig)
"""Settings of some translator."""


def refuse_others(changes: Mapping[str, Any], others: frozenset[str], model: str) -> None:
    """A setting of another kind of model is a mistake, not a thing to ignore."""
    if wrong := sorted(others & set(changes)):
        raise ValueError(f"{wrong[0]} is no setting of {model} translators; leave it out")


class Translator(ABC):
    """A trained translator with its tokenizer."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer, device: torch.device) -> None:
        self.config, self.tokenizer, self.device = config, tokenizer, device

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.config.data.direction

    @abstractmethod
    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> Any:
        """The run's own settings with changes."""

    @abstractmethod
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        places: Sequence[Place],
        settings: Any,
        done: Done,
    ) -> Filled:
        """A target for each place; there can be several a source, which follow one another."""

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_samples: int = 1,
        utility: str = "bleu",
        sureness: float = SURENESS,
        seed: int = 0,
        batch_size: int = 64,
        callback: Done | None = None,
        **settings: Any,
    ) -> list[str]:
        """Translate each text: with several samples, the one most like the others (`evaluation.mbr`).

        `sureness` weighs what the model says of its own settled samples; 0: only what they say of
        each other counts.
        """
        from cdcd.evaluation.mbr import mbr_batch
        from cdcd.evaluation.translation import utility_for

        check_sureness(sureness)
        chosen_by = utility_for(utility, self.languages[1]) if num_samples > 1 else None
        samples = self.scored_samples(
            texts,
            num_samples=num_samples,
            seed=seed,
            batch_size=batch_size,
            callback=callback,
            **settings,
        )
        if chosen_by is None:
            return [each[0] for each in samples.texts]
        chosen = mbr_batch(samples.texts, chosen_by, bonuses=samples.bonuses(sureness))[:, 0]
        return [each[int(choice)] for each, choice in zip(samples.texts, chosen, strict=True)]

    def samples(self, texts: Sequence[str], **options: Any) -> list[list[str]]:
        """Several translations of each text; the options are those of `scored_samples`."""
        return self.scored_samples(texts, **options).texts

    def scored_samples(
        self,
        texts: Sequence[str],
        *,
        num_samples: int = 1,
        seed: int = 0,
        batch_size: int = 64,
        callback: Done | None = None,
        **settings: Any,
    ) -> Samples:
        """Several translations of each text; of an empty one, empty ones.

        Sample j of text i depends on (seed, i, j) alone. `batch_size` counts translations.
        """
        for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        chosen = self.settings(settings, num_samples)
        found = [[""] * num_samples for _ in texts]
        sureness = [[0.0] * num_samples for _ in texts]
        sources = {i: self.encode(text) for i, text in enumerate(texts) if text.strip()}
        # Texts of like length are ready at the same time.
        by_length = sorted(sources, key=lambda i: sources[i].count(PAD), reverse=True)
        batches = _batches(by_length, num_samples, batch_size)
        for number, (rows, columns) in enumerate(batches):

            def done(share: float, number: int = number) -> None:
                if callback is not None:
                    callback((number + share) / len(batches))

            filled = self.fill(
                torch.tensor([sources[i] for i in rows], device=self.device),
                [(seed, i, j) for i in rows for j in columns],
                chosen,
                done,
            )
            done(1.0)
            sure = (
                [0.0] * len(filled.tokens) if filled.sureness is None else filled.sureness.tolist()
            )
            shown = zip(map(self.decode, filled.tokens.tolist()), sure, strict=True)
            for i in rows:
                for j in columns:
                    found[i][j], sureness[i][j] = next(shown)
        return Samples(found, sureness)

    def num_tokens(self, text: str) -> int:
        """Tokens of a text to translate, its end included."""
        return len(self.tokenizer.encode(text)) + 1

    def encode(self, text: str) -> list[int]:
        """A text as the model reads it."""
        tokens, room = [*self.tokenizer.encode(text), EOS], self.config.data.source_length
        if len(tokens) > room:
            raise ValueError(
                f"the text {text[:40]!r}… has {len(tokens)} tokens, this model reads at most {room}; "
                f"split it into sentences"
            )
        return [*tokens, *[PAD] * (room - len(tokens))]

    def decode(self, target: list[int]) -> str:
        """A target as text: what follows its first end is discarded."""
        end = target.index(EOS) if EOS in target else len(target)
        return self.tokenizer.decode([token for token in target[:end] if token != PAD])


def _batches(
    numbers: list[int], num_samples: int, batch_size: int
) -> list[tuple[list[int], range]]:
    """Texts and samples that are made together, as many samples of each."""
    at_once = min(num_samples, batch_size)
    texts = batch_size // at_once
    return [
        (numbers[first : first + texts], range(start, min(start + at_once, num_samples)))
        for start in range(0, num_samples, at_once)
        for first in range(0, len(numbers), texts)
    ]


class DiffusionTranslator(Translator):
    """A diffusion model: the whole target at once, from noise."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: TranslationModel,
        warp: TimeWarp,
        *,
        dtype: torch.dtype = torch.float32,
        compile: str = "auto",
    ) -> None:
        device = model.positions.device
        super().__init__(config, tokenizer, device)
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.network_dtype = dtype
        model.to(self.dtype).eval().requires_grad_(False)
        self.warp = warp
        self.table: Float[Tensor, "vocab embed"] = model.embedding.table().detach()
        self.model = with_bfloat16_weights(model) if dtype == torch.bfloat16 else model
        self.recorder = make_recorder(compile, device)

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> SamplingConfig:
        refuse_others(changes, SETTINGS - names_of(SamplingConfig), "diffusion")
        config = override(self.config.sampling, changes)
        if config.solver == "settle" and num_samples > 1:
            # Samples differ in length, and in how their sources are split or in drawn tokens.
            if "settle_lengths" not in changes:
                config = replace(config, settle_lengths=1)
            if not (self.config.data.subword_sampling or "settle_temperature" in changes):
                config = replace(config, settle_temperature=config.settle_temperature or DRAWN_AT)
        check_sampling(config, self.config.objective)
        if config.replacement:
            raise ValueError("replacement is for given tokens; a translation has none")
        return config

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        places: Sequence[Place],
        settings: SamplingConfig,
        done: Done,
    ) -> Filled:
        drawn = draw_for_samples(places, self.config.data.length, self.table)

        def told(info: StepInfo) -> None:
            done((info.index + 1) / info.num_steps)

        if settings.solver == "settle":
            source = self._split_anew(source, places)
            return self._settle(source, places, drawn, settings, told)
        given = self.estimators(source, settings)
        estimator = given(*self._nothing_given(len(places)))
        times = time_grid(settings, self.config.process, self.warp.schedule(), self.dtype)
        found = sample(estimator, self.table, drawn.noise, times, settings, callback=told)
        return Filled(found.tokens)

    def _split_anew(
        self, source: Int[Tensor, "sources source"], places: Sequence[Place]
    ) -> Int[Tensor, "batch_or_sources source"]:
        """A source for each place, with words split as in training but for the first sample of a text."""
        alpha = self.config.data.subword_sampling
        is_further = np.array([sample > 0 for _, _, sample in places])
        if not (alpha and is_further.any()):
            return source
        rows = np.arange(len(places)) // (len(places) // len(source))
        keys = np.concatenate([keys_for("pieces", *place, count=1) for place in places])
        varied = Resegmented(InMemory(source.cpu()), self.tokenizer, alpha).varied(rows, keys)
        found = torch.where(torch.from_numpy(is_further)[:, None], varied, source.cpu()[rows])
        return found.to(self.device)

    def _nothing_given(self, rows: int) -> tuple[Tensor, Tensor]:
        """Tokens of which all are noisy."""
        shape = (rows, self.config.data.length)
        noisy = torch.ones(shape, dtype=torch.bool, device=self.device)
        return torch.full(shape, PAD, device=self.device), noisy

    def _settle(
        self,
        source: Int[Tensor, "sources source"],
        places: Sequence[Place],
        drawn: SampleDraws,
        settings: SamplingConfig,
        told: Callable[[StepInfo], None],
    ) -> Filled:
        """The length first, then one token after another; of several lengths the one that is surest."""
        tries = settings.settle_lengths
        tried = drawn.repeated(tries)
        given = self.estimators(source, settings)
        x, t = tried.start(self.config.process, settings)
        tokens, is_noisy = self._nothing_given(len(t))
        first = given(tokens, is_noisy)(x, t, None)
        # Lengths lie in equal parts of their distribution: anywhere, or in the middle, and further
        # samples evenly around it.
        spread = [(0.5 + GOLDEN * sample) % 1 for _, _, sample in places]
        evenly = torch.tensor(spread, dtype=t.dtype, device=self.device).repeat_interleave(tries)
        within = tried.v if settings.settle_temperature else evenly
        part = torch.arange(tries, device=self.device).repeat(len(drawn.v))
        end = ends_at(first.logits, (part + within) / tries, settings.settle_temperature or 1.0)
        position = torch.arange(tokens.shape[1], device=self.device)
        tokens = tokens.masked_fill(position == end, EOS)
        found = settle(
            given,
            tokens,
            is_noisy & (position < end),
            x,
            t,
            settings,
            u=tried.u,
            never=(PAD, EOS),
            state=first.state,
            callback=told,
        )
        surest = found.log_probability.unflatten(0, (-1, tries)).max(1)
        rows = torch.arange(len(places), device=self.device)
        tokens = found.tokens.unflatten(0, (-1, tries))[rows, surest.indices]
        return Filled(tokens, surest.values)

    def estimators(self, source: Int[Tensor, "sources source"], config: SamplingConfig) -> Given:
        """The network with its sources, behind guidance where it is set, recorded where this model
        records: an estimator for any given tokens."""
        guided = config.guidance_scale != 1.0
        is_dropped = torch.zeros(len(source), dtype=torch.bool, device=self.device)
        if guided:
            source, is_dropped = source.repeat(2, 1), is_dropped.repeat(2)
            is_dropped[len(source) // 2 :] = True
        with Autocast(self.model, self.device, self.network_dtype).precision():
            encoded = self.model.encode(source, is_dropped)
        memory = encoded.memory
        sources = (memory.keys, memory.values, memory.is_real, encoded.condition)
        part = config.of_evaluation
        bind = partial(self._bind, config=part, guided=guided)

        def given(tokens: Tensor, is_noisy: Tensor) -> Estimator:
            conditioning = (tokens, is_noisy, *sources)
            if self.recorder is not None:
                return self.recorder((part, guided), bind, conditioning)
            # A recording needs fixed shapes. Without one, settled places are not asked for again.
            num_noisy = None if is_noisy.all() else int(is_noisy.sum())
            return bind(*conditioning, num_predicted=num_noisy)

        return given

    def _bind(
        self,
        tokens: Tensor,
        is_noisy: Tensor,
        keys: Tensor,
        values: Tensor,
        is_real: Tensor,
        condition: Tensor,
        *,
        config: SamplingConfig,
        guided: bool,
        num_predicted: int | None = None,
    ) -> Estimator:
        bound = self.model.bind(Source(Memory(keys, values, is_real), condition))
        network = Autocast(bound, self.device, self.network_dtype)
        if guided:
            tokens, is_noisy = tokens.repeat(2, 1), is_noisy.repeat(2, 1)
        estimator = make_estimator(network, self.table, tokens, is_noisy, self.config, config)
        estimator = replace(estimator, num_predicted=num_predicted)
        return Guided(estimator, config.guidance_scale) if guided else estimator


def ends_at(
    logits: Float[Tensor, "batch seq vocab"],
    quantiles: Float[Tensor, " batch"],
    temperature: float = 1.0,
) -> Int[Tensor, "batch 1"]:
    """Where a target ends, at a quantile of its length, which the probabilities of padding tell.

    The end is at or before place i if i + 1 is padding; it is at the last place at the latest. At a
    temperature T the probabilities of the lengths are p^(1/T), brought to sum to one.
    """
    p = torch.softmax(logits.to(quantiles.dtype), dim=-1)[..., PAD]
    # There is at least an end, and no text after padding.
    before = F.pad(p.cummax(1).values[:, 1:], (0, 1), value=1.0)
    if temperature != 1.0:
        likely = before.diff(dim=1, prepend=torch.zeros_like(before[:, :1]))
        before = torch.softmax(likely.log() / temperature, dim=1).cumsum(1)
    is_before_end = before[:, :-1] < quantiles[:, None]
    return is_before_end.sum(1, keepdim=True)


class BeamTranslator(Translator):
    """The autoregressive baseline: beam search, or tokens drawn one by one where many are wanted."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: AutoregressiveTranslator,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, tokenizer, model.embedding.weight.device)
        model.to(torch.float64 if dtype == torch.float64 else torch.float32)
        self.model = model.eval().requires_grad_(False)
        self.precision = Autocast(model, self.device, dtype).precision

    def settings(
        self, changes: Mapping[str, Any], num_samples: int = 1
    ) -> BeamConfig | DecodingConfig:
        """Beam search; drawing where its settings are given, or several samples are wanted."""
        searched, drawn = names_of(BeamConfig), names_of(DecodingConfig)
        refuse_others(changes, SETTINGS - searched - drawn, "autoregressive")
        if num_samples == 1 and not drawn & set(changes):
            return override(self.config.beam, changes)
        if of_search := searched & set(changes):
            why = "several samples" if num_samples > 1 else min(drawn & set(changes))
            raise ValueError(
                f"{min(of_search)} is of beam search, but {why} asks for drawing: choose one"
            )
        return override(self.config.decoding, changes)

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        places: Sequence[Place],
        settings: BeamConfig | DecodingConfig,
        done: Done,
    ) -> Filled:
        with self.precision():
            if isinstance(settings, BeamConfig):
                return Filled(beam_search(self.model, source, settings).best())
            u = torch.stack(
                [torch.rand(self.model.length, generator=generator_for(*p)) for p in places]
            )
            return Filled(decode_targets(self.model, source, u.to(self.device), settings))


def load_translator(
    run: str | Path,
    *,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> Translator:
    """Load a run's last checkpoint for translating; see `cdcd.load` for the options."""
    loaded = load_parts(run, checkpoint=checkpoint, device=device, dtype=dtype)
    match loaded.model:
        case TranslationModel():
            return DiffusionTranslator(
                loaded.config,
                loaded.tokenizer,
                loaded.model,
                loaded.warp(),
                dtype=loaded.dtype,
                compile=compile,
            )
        case AutoregressiveTranslator():
            return BeamTranslator(loaded.config, loaded.tokenizer, loaded.model, dtype=loaded.dtype)
    raise ValueError(f"{run} is a language model, no translator: use cdcd sample")
