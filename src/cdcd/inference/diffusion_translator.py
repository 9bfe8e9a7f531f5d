"""The diffusion translator in use (§6.6): the whole target at once, from noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import MaskPredictConfig
from cdcd.data.order import keys_for
from cdcd.data.sequences import InMemory
from cdcd.data.subword_sampling import SubwordSampler
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.decoder_settings import DiffusionSettings, diffusion_settings, is_guided
from cdcd.inference.diffusion_sampling import Callback, SampleDraws
from cdcd.inference.mask_predict import Condition, Predicted, mask_predict
from cdcd.inference.translator import Done, Seed, Translator
from cdcd.settings import refuse_without_effect

DRAWN_AT = 0.5
"""Temperature of mask-predict decoding for several samples of a source that is always split alike, whose most
probable tokens are nearly always the same."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over the unit interval, however many there are."""


class DiffusionTranslator(Translator):
    """A diffusion translator: the whole target at once, from noise."""

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> DiffusionSettings:
        settings = diffusion_settings(self.config, changes)
        if not isinstance(settings, MaskPredictConfig):
            return settings
        several = (num_samples > 1, "several samples", ("confidence_weight",))
        refuse_without_effect(changes, [several])
        if num_samples == 1:
            return settings
        # Samples differ in length, and in how their sources are split or in drawn tokens.
        if "num_lengths" not in changes:
            settings = replace(settings, num_lengths=1)
        if self.config.data.subword_sampling or "temperature" in changes:
            return settings
        return replace(settings, temperature=settings.temperature or DRAWN_AT)

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: DiffusionSettings,
        done: Done,
    ) -> Predicted:
        draws = self.sampler.draw(seeds)

        def callback(info: StepInfo) -> None:
            done((info.index + 1) / info.num_steps)

        if isinstance(settings, MaskPredictConfig):
            source = self._split_anew(source, seeds)
            return self._mask_predict(source, seeds, draws, settings, callback)
        estimator = self.conditioned(source, settings)(*self._nothing_given(len(seeds)))
        tokens = self.sampler.solve(estimator, draws.noise, settings, callback)
        return Predicted(tokens, torch.zeros(len(tokens)))

    def _split_anew(
        self, source: Int[Tensor, "sources source"], seeds: Sequence[Seed]
    ) -> Int[Tensor, "batch_or_sources source"]:
        """Returns a source for each seed, its words split as in training but for a text's first sample."""
        alpha = self.config.data.subword_sampling
        is_further = np.array([sample > 0 for _, _, sample in seeds])
        if not (alpha and is_further.any()):
            return source
        rows = np.arange(len(seeds)) // (len(seeds) // len(source))
        keys = np.concatenate([keys_for("pieces", *seed, count=1) for seed in seeds])
        varied = SubwordSampler(InMemory(source.cpu()), self.tokenizer, alpha).draw(rows, keys)
        chosen = torch.where(torch.from_numpy(is_further)[:, None], varied, source.cpu()[rows])
        return chosen.to(self.device)

    def _nothing_given(self, rows: int) -> tuple[Tensor, Tensor]:
        """Returns tokens that are all noisy, and their mask."""
        shape = (rows, self.config.data.length)
        is_noisy = torch.ones(shape, dtype=torch.bool, device=self.device)
        return torch.full(shape, PAD, device=self.device), is_noisy

    def conditioned(
        self, source: Int[Tensor, "sources source"], settings: DiffusionSettings
    ) -> Condition:
        """Returns the estimators of some sources for any given tokens."""
        guided = is_guided(settings)
        is_dropped = torch.zeros(len(source), dtype=torch.bool, device=self.device)
        if guided:
            source, is_dropped = source.repeat(2, 1), is_dropped.repeat(2)
            is_dropped[len(source) // 2 :] = True
        with self.network.precision():
            encoded = self.sampler.model.encode(source, is_dropped)
        return partial(self.sampler.estimator, settings=settings, guided=guided, condition=encoded)

    def _mask_predict(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        draws: SampleDraws,
        settings: MaskPredictConfig,
        callback: Callback,
    ) -> Predicted:
        """Predicts the length first, then the tokens; of several lengths keeps the most confident target."""
        tries = settings.num_lengths
        tried = draws.repeated(tries)
        condition = self.conditioned(source, settings)
        x, t = self.sampler.start(tried.noise)
        tokens, is_noisy = self._nothing_given(len(t))
        first = condition(tokens, is_noisy)(x, t, None)
        # Lengths lie in equal parts of their distribution: anywhere, or in the middle, and further
        # samples evenly around it.
        spread = [(0.5 + GOLDEN * sample) % 1 for _, _, sample in seeds]
        evenly = torch.tensor(spread, dtype=t.dtype, device=self.device).repeat_interleave(tries)
        within = tried.u_length if settings.temperature else evenly
        part = torch.arange(tries, device=self.device).repeat(len(seeds))
        end = ends_at(first.logits, (part + within) / tries, settings.temperature or 1.0)
        position = torch.arange(tokens.shape[1], device=self.device)
        predicted = mask_predict(
            condition,
            tokens.masked_fill(position == end, EOS),
            is_noisy & (position < end),
            x,
            t,
            settings,
            u=tried.u,
            never=(PAD, EOS),
            state=first.state,
            callback=callback,
        )
        best = predicted.confidence.unflatten(0, (-1, tries)).max(1)
        rows = torch.arange(len(seeds), device=self.device)
        return Predicted(
            predicted.tokens.unflatten(0, (-1, tries))[rows, best.indices], best.values
        )


def ends_at(
    logits: Float[Tensor, "batch seq vocab"],
    quantiles: Float[Tensor, " batch"],
    temperature: float = 1.0,
) -> Int[Tensor, "batch 1"]:
    """Returns the position of each target's end, at a quantile of its length by the probabilities of padding.

    The end is at or before position i if i + 1 is padding; it is at the last position at the latest. At a
    temperature T the probabilities of the lengths are p^(1/T), normalised.
    """
    p = torch.softmax(logits.to(quantiles.dtype), dim=-1)[..., PAD]
    # There is at least an end, and no text after padding.
    before = F.pad(p.cummax(1).values[:, 1:], (0, 1), value=1.0)
    if temperature != 1.0:
        likely = before.diff(dim=1, prepend=torch.zeros_like(before[:, :1]))
        before = torch.softmax(likely.log() / temperature, dim=1).cumsum(1)
    is_before_end = before[:, :-1] < quantiles[:, None]
    return is_before_end.sum(1, keepdim=True)
