"""The diffusion translator in use (§6.6): the whole target at once, from noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import RunConfig
from cdcd.data.order import keys_for
from cdcd.data.sequences import InMemory
from cdcd.data.subword_sampling import SubwordSampler
from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.estimator import Estimator, Guided
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.diffusion_sampling import (
    SampleDraws,
    check_sampling,
    draw_for_samples,
    make_estimator,
)
from cdcd.inference.mask_predict import Given, settle
from cdcd.inference.translator import (
    SETTINGS,
    Done,
    Filled,
    Place,
    Translator,
    names_of,
    refuse_others,
)
from cdcd.networks.capture import make_recorder
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.encoder_decoder import EncodedSource
from cdcd.networks.precision import Autocast, with_bfloat16_weights
from cdcd.settings import override

DRAWN_AT = 0.5
"""The temperature of settling where several samples are wanted of a source that is always split alike: the
likeliest tokens are nearly always the same."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it are spread evenly over the unit interval, modulo 1, however many there are."""


class DiffusionTranslator(Translator):
    """A diffusion model: the whole target at once, from noise."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: DiffusionTranslationNetwork,
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
        varied = SubwordSampler(InMemory(source.cpu()), self.tokenizer, alpha).draw(rows, keys)
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
        sources = (encoded.keys, encoded.values, encoded.is_visible, encoded.lengths)
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
        is_visible: Tensor,
        lengths: Tensor,
        *,
        config: SamplingConfig,
        guided: bool,
        num_predicted: int | None = None,
    ) -> Estimator:
        network = Autocast(self.model, self.device, self.network_dtype)
        if guided:
            tokens, is_noisy = tokens.repeat(2, 1), is_noisy.repeat(2, 1)
        estimator = make_estimator(network, self.table, tokens, is_noisy, self.config, config)
        condition = EncodedSource(keys, values, is_visible, lengths)
        estimator = replace(estimator, num_predicted=num_predicted, condition=condition)
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
