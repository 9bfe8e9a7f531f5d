"""The diffusion language model in use: it fills any gaps of a sequence, all positions at once."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import MaskPredictConfig
from cdcd.diffusion.estimator import Estimator
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.inference.decoder_settings import DiffusionSettings, diffusion_settings, is_guided
from cdcd.inference.diffusion_sampling import Callback
from cdcd.inference.mask_predict import mask_predict
from cdcd.inference.text_model import TextModel
from cdcd.settings import refuse_without_effect


class DiffusionTextModel(TextModel):
    """A diffusion language model: fills any gaps of a sequence, all positions at once."""

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> DiffusionSettings:
        settings = diffusion_settings(self.config, changes)
        if isinstance(settings, MaskPredictConfig):
            only_translators = ("num_lengths", "confidence_weight")
            refuse_without_effect(changes, [(False, "a translator", only_translators)])
        return settings

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: DiffusionSettings,
        *,
        callback: Callback | None = None,
    ) -> Int[Tensor, "batch seq"]:
        draws = self.sampler.draw(seeds)
        condition = partial(self.estimator, settings=settings, noise=draws.noise)
        if isinstance(settings, MaskPredictConfig):
            x, t = self.sampler.start(draws.noise)
            return mask_predict(
                condition, tokens, is_noisy, x, t, settings, u=draws.u, callback=callback
            ).tokens
        predicted = self.sampler.solve(condition(tokens, is_noisy), draws.noise, settings, callback)
        return torch.where(is_noisy, predicted, tokens)

    def estimator(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        settings: DiffusionSettings,
        *,
        noise: Float[Tensor, "batch seq embed"],
    ) -> Estimator:
        """Returns the network with its conditioning, under settings that can have it."""
        has_given = not bool(is_noisy.all())
        can_replace = isinstance(settings, SamplingConfig) and settings.replacement
        if has_given and self.config.objective.masking == "none" and not can_replace:
            raise ValueError(
                "this model was trained without masks: condition it with --replacement true"
            )
        guided = has_given and is_guided(settings)
        return self.sampler.estimator(tokens, is_noisy, settings, noise=noise, guided=guided)
