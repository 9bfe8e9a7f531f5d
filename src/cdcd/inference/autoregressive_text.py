"""The autoregressive language model in use: it completes prompts, token by token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.config import DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference.decoder_settings import with_changes
from cdcd.inference.decoding import decode, draw_uniform
from cdcd.inference.text_model import Canvas, TextModel
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork


class AutoregressiveTextModel(TextModel):
    """An autoregressive language model: completes prompts, token by token."""

    model: AutoregressiveTextNetwork

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> DecodingConfig:
        return with_changes(self.config.decoding, changes)

    def infill_canvas(self, text: str) -> Canvas:
        raise ValueError("an autoregressive model cannot fill gaps: use a diffusion model")

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: DecodingConfig,
        *,
        callback: Callable[[int], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        u = draw_uniform(seeds, self.length).to(self.device)
        # Padding follows the end of a document: it is never trained on, so never drawn.
        never = (PAD, EOS) if settings.suppress_eos else (PAD,)
        with self.network.precision():
            return decode(
                self.model, tokens, ~is_noisy, u, settings, suppress=never, callback=callback
            )
