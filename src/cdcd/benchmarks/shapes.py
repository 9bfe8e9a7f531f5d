"""Shapes to measure, by their names, as runs with random tokens and weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.data.tokenizers import WordTokenizer
from cdcd.data.vocabulary import SPECIALS
from cdcd.languages import tales
from cdcd.presets import TEXT, TRANSLATION, preset
from cdcd.settings import override, unknown
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.trainer import initial_checkpoint

A = {
    "data.length": 32,
    "data.vocab_size": 4096,
    "training.batch_size": 512,
    "embedding.dim": 128,
    "training.optimiser": "muon",
}
B = A | {
    "data.length": 64,
    "data.vocab_size": 8192,
    "training.batch_size": 1024,
    "embedding.dim": 256,
}
SHAPES: dict[str, RunConfig] = {name: preset(name) for name in TEXT} | {
    "A": override(preset("small"), A),
    "B": override(preset("small"), B),
    "C": preset("base"),
    "demo": override(preset("demo"), {"data.vocab_size": len(SPECIALS) + len(tales.VOCABULARY)}),
}
"""The documents' shapes and the presets of language models; of these, the demo with its vocabulary."""


def choose_config(name: str, changes: Mapping[str, Any]) -> tuple[str, RunConfig]:
    """Returns the name and the configuration of a shape with the user's changes."""
    if name in TRANSLATION or changes.get("task") == "translation":
        raise ValueError(f"only language models are measured here: {', '.join(SHAPES)}")
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    config = override(SHAPES[name], changes)
    if config.data.vocab_size <= len(SPECIALS):
        raise ValueError(
            f"data.vocab_size is {config.data.vocab_size}, it must be above {len(SPECIALS)}"
        )
    return name + (" with changes" if changes else ""), config


def describe(config: RunConfig) -> str:
    """Describes a shape in one line."""
    network, training = config.network, config.training
    return (
        f"{config.model}, {network.num_blocks} blocks × {network.width}, {network.num_heads} heads, "
        f"vocabulary {config.data.vocab_size}, batch {training.batch_size} × {config.data.length}"
    )


def synthetic_tokenizer(vocab_size: int) -> WordTokenizer:
    """Returns a tokenizer of so many words, which nobody reads."""
    return WordTokenizer([f"w{i}" for i in range(vocab_size - len(SPECIALS))])


def random_tokens(config: RunConfig, rows: int) -> Int[Tensor, "rows length"]:
    """Draws words uniformly, without special tokens."""
    generator = torch.Generator().manual_seed(0)
    size = (rows, config.data.length)
    return torch.randint(len(SPECIALS), config.data.vocab_size, size, generator=generator)


def synthetic_run(config: RunConfig, folder: str) -> RunDirectory:
    """Creates a run with random weights in a folder."""
    tokenizer = synthetic_tokenizer(config.data.vocab_size)
    first = initial_checkpoint(config, tokenizer.vocab_size)
    # A trained model multiplies no zeros, which cost less.
    generator = torch.Generator().manual_seed(0)
    for weight in first.weights.values():
        if weight.is_floating_point() and not weight.any():
            with torch.no_grad():
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
    return RunDirectory.create(Path(folder) / "run", config, tokenizer, first)
