"""The autoregressive language model in use: it completes prompts, token by token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.config import DecodingConfig, RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference.decoding import decode
from cdcd.inference.text_model import Canvas, TextModel
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.seeding import generator_for
from cdcd.settings import override


class AutoregressiveTextModel(TextModel):
    """An autoregressive language model: completes prompts, token by token."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: AutoregressiveTextNetwork,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, tokenizer, model, dtype)
        self.model = model

    def settings(self, changes: Mapping[str, Any]) -> DecodingConfig:
        return override(self.config.decoding, changes)

    def infill_canvas(self, text: str) -> Canvas:
        raise ValueError("an autoregressive model cannot fill gaps: use a diffusion model")

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        places: Sequence[tuple[int, int]],
        settings: DecodingConfig,
        *,
        callback: Callable[[int], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        u = torch.stack([torch.rand(self.length, generator=generator_for(*p)) for p in places])
        # Padding follows the end of a document: it is never trained on, so never drawn.
        never = (PAD, EOS) if settings.suppress_eos else (PAD,)
        with self.network.precision():
            return decode(
                self.model,
                tokens,
                ~is_noisy,
                u.to(self.device),
                settings,
                suppress=never,
                callback=callback,
            )
