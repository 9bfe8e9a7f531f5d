"""The autoregressive translator in use: beam search, or tokens drawn one by one where many are wanted."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.config import BeamConfig, DecodingConfig, RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.inference.beam import beam_search
from cdcd.inference.decoding import decode_targets
from cdcd.inference.translator import (
    SETTINGS,
    Done,
    Filled,
    Place,
    Translator,
    names_of,
    refuse_others,
)
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.precision import Autocast
from cdcd.seeding import generator_for
from cdcd.settings import override


class AutoregressiveTranslator(Translator):
    """The autoregressive baseline: beam search, or tokens drawn one by one where many are wanted."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: AutoregressiveTranslationNetwork,
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
