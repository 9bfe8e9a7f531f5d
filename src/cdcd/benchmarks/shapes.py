"""Shapes to measure, by their names, as runs with random tokens and weights."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.data.sequences import InMemory
from cdcd.data.tokenizers import WordTokenizer
from cdcd.data.vocabulary import SPECIALS
from cdcd.languages import tales
from cdcd.presets import TEXT, TRANSLATION, base, demo, small
from cdcd.settings import override, unknown
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.trainer import initial_checkpoint

NUM_VALID, NUM_BATCHES = 8, 4


def shape_a() -> RunConfig:
    """Returns 8 blocks of 512, vocabulary 4096, batches of 512 × 32: captions."""
    changes = {"data.length": 32, "data.vocab_size": 4096, "training.batch_size": 512}
    return override(small(), changes | {"embedding.dim": 128, "training.optimiser": "muon"})


def shape_b() -> RunConfig:
    """Returns 8 blocks of 512, vocabulary 8192, batches of 1024 × 64."""
    changes = {"data.length": 64, "data.vocab_size": 8192, "training.batch_size": 1024}
    return override(shape_a(), changes | {"embedding.dim": 256})


def shape_demo() -> RunConfig:
    """Returns the demo: 3 blocks of 96 and the words of the tales, batches of 64 × 44."""
    vocab_size = len(SPECIALS) + len(tales.VOCABULARY)
    return override(demo(), {"data.vocab_size": vocab_size})


SHAPES: dict[str, Callable[..., RunConfig]] = {
    **TEXT,
    "A": shape_a,
    "B": shape_b,
    "C": base,
    "demo": shape_demo,
}
"""The documents' shapes and the presets of language models; of these, the demo with its vocabulary."""


def choose_config(name: str, changes: Mapping[str, Any]) -> tuple[str, RunConfig]:
    """Returns the name and the configuration of a shape with the user's changes."""
    if name in TRANSLATION or changes.get("task") == "translation":
        raise ValueError(f"only language models are measured here: {', '.join(SHAPES)}")
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    return name + (" with changes" if changes else ""), override(SHAPES[name](), changes)


def describe(config: RunConfig) -> str:
    """Describes a shape in one line."""
    network, training = config.network, config.training
    return (
        f"{config.model}, {network.num_blocks} blocks × {network.width}, {network.num_heads} heads, "
        f"vocabulary {config.data.vocab_size}, batch {training.batch_size} × {config.data.length}"
    )


def synthetic_tokenizer(vocab_size: int) -> WordTokenizer:
    """Returns a tokenizer of so many words, which nobody reads."""
    if vocab_size <= len(SPECIALS):
        raise ValueError(f"data.vocab_size is {vocab_size}, it must be above {len(SPECIALS)}")
    return WordTokenizer([f"w{i}" for i in range(vocab_size - len(SPECIALS))])


def random_tokens(config: RunConfig, rows: int) -> Int[Tensor, "rows length"]:
    """Draws words uniformly, without special tokens."""
    generator = torch.Generator().manual_seed(0)
    size = (rows, config.data.length)
    return torch.randint(len(SPECIALS), config.data.vocab_size, size, generator=generator)


def synthetic_run(
    config: RunConfig, folder: Path
) -> tuple[RunDirectory, tuple[InMemory, InMemory]]:
    """Creates a run directory, and random tokens to train and validate on."""
    tokenizer = synthetic_tokenizer(config.data.vocab_size)
    first = initial_checkpoint(config, tokenizer.vocab_size)
    # A trained model multiplies no zeros, which cost less.
    generator = torch.Generator().manual_seed(0)
    for weight in first.weights.values():
        if weight.is_floating_point() and not weight.any():
            with torch.no_grad():
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
    run = RunDirectory.create(folder / "run", config, tokenizer, first)
    train = random_tokens(config, NUM_BATCHES * config.training.batch_size)
    return run, (InMemory(train), InMemory(train[:NUM_VALID]))
