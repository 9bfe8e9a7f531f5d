"""Small translation models in double precision, with nothing left at zero, and inputs for them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.encoder_decoder import (
    Seq2SeqConfig,
)
from cdcd.seeding import generator_for

BATCH, SOURCE, LENGTH, DIM, VOCAB = 4, 5, 6, 8, 11
SMALL = Seq2SeqConfig(
    num_encoder_blocks=2,
    num_decoder_blocks=2,
    width=16,
    hidden=24,
    num_heads=2,
    dropout=0.0,
    time_units=8,
)
RELATIVE = replace(SMALL, relative_positions=True)
SOURCE_LENGTHS = (5, 3, 1, 4)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator_for(seed, *shape), dtype=torch.float64)


def perturbed(model: Any) -> Any:
    """A model in double precision with nothing left at zero."""
    with torch.no_grad():
        for place, parameter in enumerate(model.double().parameters()):
            parameter.add_(0.2 * normal(*parameter.shape, seed=place))
    return model


def diffusion_model(config: Seq2SeqConfig = SMALL) -> DiffusionTranslationNetwork:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "source_length": SOURCE + 3, "length": LENGTH}
    process = ProcessConfig(t_min=0.5, t_max=50.0)
    return perturbed(
        DiffusionTranslationNetwork(config, EmbeddingConfig(dim=DIM), process, **sizes)
    )


def baseline(config: Seq2SeqConfig = SMALL) -> AutoregressiveTranslationNetwork:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "source_length": SOURCE + 3, "length": LENGTH}
    return perturbed(AutoregressiveTranslationNetwork(config, **sizes))


def sources(seed: int = 0) -> Tensor:
    """Of different lengths, each with its end."""
    tokens = torch.randint(3, VOCAB, (BATCH, SOURCE), generator=generator_for(seed, "source"))
    lengths = torch.tensor(SOURCE_LENGTHS)[:, None]
    places = torch.arange(SOURCE)
    return tokens.masked_fill(places == lengths - 1, EOS).masked_fill(places >= lengths, PAD)


def targets(seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=generator_for(seed, "target"))


def inputs(seed: int = 0) -> dict[str, Tensor]:
    return {
        "x": normal(BATCH, LENGTH, DIM, seed=seed + 1),
        "t": torch.tensor([0.7, 3.0, 20.0, 45.0]).double(),
        "c": normal(BATCH, LENGTH, DIM, seed=seed + 2),
        "x0_prev": normal(BATCH, LENGTH, DIM, seed=seed + 3),
        "is_noisy": normal(BATCH, LENGTH, seed=seed) > -0.5,
    }


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
