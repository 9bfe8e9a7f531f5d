"""The diffusion language model in use: it fills any gaps of a sequence, all positions at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.estimator import Estimator, Guided, Replacement
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.diffusion_sampling import (
    SampleDraws,
    check_sampling,
    draw_for_samples,
    make_estimator,
)
from cdcd.inference.mask_predict import settle
from cdcd.inference.text_model import TextModel
from cdcd.networks.capture import make_recorder
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.precision import Autocast, with_bfloat16_weights
from cdcd.settings import override


class DiffusionTextModel(TextModel):
    """A diffusion language model: fills any gaps of a sequence, all positions at once.

    `compile` says how network calls are made fast (see `networks.capture`).
    """

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: DiffusionTextNetwork,
        warp: TimeWarp,
        *,
        dtype: torch.dtype = torch.float32,
        compile: str = "auto",
    ) -> None:
        super().__init__(config, tokenizer, model, dtype)
        self.model, self.warp = model, warp
        if dtype == torch.bfloat16:
            self.network = Autocast(with_bfloat16_weights(model), self.device, dtype)
        self.recorder = make_recorder(compile, self.device)
        self.table: Float[Tensor, "vocab embed"] = model.embedding.table().detach()

    def settings(self, changes: Mapping[str, Any]) -> SamplingConfig:
        return override(self.config.sampling, changes)

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        places: Sequence[tuple[int, int]],
        settings: SamplingConfig,
        *,
        callback: Callable[[StepInfo], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        drawn = draw_for_samples(places, self.length, self.table)
        noise = drawn.noise
        if settings.solver == "settle":
            return self._settle(tokens, is_noisy, drawn, settings, callback)
        estimator = self._fast_estimator(tokens, is_noisy, settings, noise)
        times = time_grid(settings, self.config.process, self.warp.schedule(), self.dtype)
        found = sample(estimator, self.table, noise, times, settings, callback=callback)
        return torch.where(is_noisy, found.tokens, tokens)

    def _settle(
        self,
        tokens: Tensor,
        is_noisy: Tensor,
        drawn: SampleDraws,
        settings: SamplingConfig,
        callback: Callable[[StepInfo], None] | None,
    ) -> Int[Tensor, "batch seq"]:
        if settings.settle_lengths != 1:
            raise ValueError("settle_lengths is for translators; leave it at 1")

        def given(tokens: Tensor, is_noisy: Tensor) -> Estimator:
            return self._fast_estimator(tokens, is_noisy, settings, drawn.noise)

        x, t = drawn.start(self.config.process, settings)
        found = settle(given, tokens, is_noisy, x, t, settings, u=drawn.u, callback=callback)
        return found.tokens

    def estimator(
        self, tokens: Tensor, is_noisy: Tensor, config: SamplingConfig, *, noise: Tensor
    ) -> Estimator:
        """The network with its conditioning, behind guidance or replacement where they are set."""
        guided = self._is_guided(config, is_noisy)
        return self._bind(tokens, is_noisy, noise, config=config, guided=guided)

    def _fast_estimator(
        self, tokens: Tensor, is_noisy: Tensor, config: SamplingConfig, noise: Tensor
    ) -> Estimator:
        """The same estimator, recorded where this model records."""
        if self.recorder is None:
            return self.estimator(tokens, is_noisy, config, noise=noise)
        guided, part = self._is_guided(config, is_noisy), config.of_evaluation
        bind = partial(self._bind, config=part, guided=guided)
        return self.recorder((part, guided), bind, (tokens, is_noisy, noise))

    def _is_guided(self, config: SamplingConfig, is_noisy: Tensor) -> bool:
        """Whether there is guidance, of settings that fit the model and the given tokens."""
        anything_given = not bool(is_noisy.all())
        self._check_sampling(config, anything_given)
        return config.guidance_scale != 1.0 and anything_given

    def _bind(
        self,
        tokens: Tensor,
        is_noisy: Tensor,
        noise: Tensor,
        *,
        config: SamplingConfig,
        guided: bool,
    ) -> Estimator:
        shown = torch.ones_like(is_noisy) if config.replacement else is_noisy
        conditional = make_estimator(self.network, self.table, tokens, shown, self.config, config)
        if config.replacement:
            given = F.embedding(tokens, self.table)
            return Replacement(conditional, given, is_noisy, noise)
        if not guided:
            return conditional
        both = replace(
            conditional,
            tokens=torch.cat([tokens, tokens]),
            is_noisy=torch.cat([is_noisy, is_noisy]),
            is_dropped=torch.arange(2 * len(tokens), device=self.device) >= len(tokens),
        )
        return Guided(both, config.guidance_scale)

    def _check_sampling(self, config: SamplingConfig, anything_given: bool) -> None:
        objective = self.config.objective
        check_sampling(config, objective)
        if config.replacement and objective.masking != "none":
            raise ValueError("replacement is for models trained with objective.masking none")
        if anything_given and objective.masking == "none" and not config.replacement:
            raise ValueError(
                "this model was trained without masks: condition it with --replacement true"
            )
