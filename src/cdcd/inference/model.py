"""A trained network with its tokenizer, and the settings of the decoder that it is used with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import nn

from cdcd.config import BeamConfig, DecodingConfig, MaskPredictConfig, RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.networks.precision import Autocast
from cdcd.settings import override

T = TypeVar("T")

DECODERS = {
    SamplingConfig: "decoder ode",
    MaskPredictConfig: "decoder mask-predict",
    DecodingConfig: "autoregressive sampling",
    BeamConfig: "beam search",
}
"""The settings of every decoder, with the decoder's name."""


def names_of(settings: type) -> frozenset[str]:
    """Returns the names of a dataclass's fields."""
    return frozenset(field.name for field in fields(settings))


def with_changes(settings: T, changes: Mapping[str, Any]) -> T:
    """Returns a decoder's settings with changes; a setting of other decoders is refused."""
    own = names_of(type(settings))
    for name in sorted(set(changes) - own):
        if owners := [words for kind, words in DECODERS.items() if name in names_of(kind)]:
            raise ValueError(
                f"{name} is a setting of {' and '.join(owners)}, not of {DECODERS[type(settings)]}; "
                f"leave it out"
            )
    return override(settings, changes)


class Model(ABC):
    """A trained network with its tokenizer: what text models and translators share."""

    model: Any

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: nn.Module,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.device = next(model.parameters()).device
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.model = model.to(self.dtype).eval().requires_grad_(False)
        self.network = Autocast(self.model, self.device, dtype)

    @abstractmethod
    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> Any:
        """Returns the run's own settings of a decoder with changes, which may name another decoder."""


def check_counts(**counts: int) -> None:
    """Raises an error where a number is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, it must be at least 1")
