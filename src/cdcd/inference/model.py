"""A trained network with its tokenizer."""

from abc import ABC
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cdcd.config import RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.decoder_settings import decoder_settings
from cdcd.inference.diffusion_sampling import DiffusionSampler
from cdcd.networks.precision import Autocast


class Model(ABC):
    """A trained network with its tokenizer: what text models and translators share.

    A diffusion model has a time warp and so a sampler.
    """

    model: Any

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: nn.Module,
        warp: TimeWarp | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        compile: str = "auto",
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.device = next(model.parameters()).device
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.model = model.to(self.dtype).eval().requires_grad_(False)
        self.network = Autocast(self.model, self.device, dtype)
        if warp is not None:
            self.sampler = DiffusionSampler(config, self.model, warp, dtype, compile)
            self.network = self.sampler.network

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> Any:
        """Returns the settings of the run's decoder, or of the one that `changes` names, with changes."""
        return decoder_settings(self.config, changes, num_samples)


def check_counts(**counts: int) -> None:
    """Raises an error where a number is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, it must be at least 1")
