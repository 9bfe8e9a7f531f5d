"""The autoregressive translator in use: beam search, or tokens drawn one by one where many are wanted."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.config import BeamConfig, DecodingConfig
from cdcd.inference.beam import beam_search
from cdcd.inference.decoder_settings import names_of, with_changes
from cdcd.inference.decoding import decode_targets, draw_uniform
from cdcd.inference.mask_predict import Predicted
from cdcd.inference.translator import Done, Seed, Translator
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork


class AutoregressiveTranslator(Translator):
    """An autoregressive translator: beam search, or tokens drawn one by one where many are wanted."""

    model: AutoregressiveTranslationNetwork

    def settings(
        self, changes: Mapping[str, Any], num_samples: int = 1
    ) -> BeamConfig | DecodingConfig:
        """Returns the settings of beam search; of drawing for several samples, or where its own are given."""
        of_drawing = sorted(names_of(DecodingConfig) & set(changes))
        if num_samples == 1 and not of_drawing:
            return with_changes(self.config.beam, changes)
        if of_search := sorted(names_of(BeamConfig) & set(changes)):
            reason = "several samples" if num_samples > 1 else of_drawing[0]
            raise ValueError(
                f"{of_search[0]} is of beam search, but {reason} asks for drawing: choose one"
            )
        return with_changes(self.config.decoding, changes)

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: BeamConfig | DecodingConfig,
        done: Done,
    ) -> Predicted:
        with self.network.precision():
            if isinstance(settings, BeamConfig):
                targets = beam_search(self.model, source, settings).best()
            else:
                u = draw_uniform(seeds, self.model.length).to(self.device)
                targets = decode_targets(self.model, source, u, settings)
        return Predicted(targets, torch.zeros(len(targets)))
