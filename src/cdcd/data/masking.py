"""Conditioning masks (§4.1): which tokens of a sequence are noisy, and which are given.

Clean counts are uniform on 0 … length − 1, so that at least one token is always noisy.
"""

import torch
from jaxtyping import Bool
from torch import Tensor


def prefix_masks(
    batch: int, length: int, *, generator: torch.Generator, prefix_length: int | None = None
) -> Bool[Tensor, "batch seq"]:
    """A given prefix of random or fixed length, the rest noisy."""
    device = generator.device
    counts = torch.randint(length, (batch, 1), generator=generator, device=device)
    if prefix_length is not None:
        if prefix_length >= length:
            raise ValueError(
                f"objective.prefix_length is {prefix_length}, it must be below the sequence length {length}"
            )
        counts = counts.fill_(prefix_length)
    return torch.arange(length, device=device) >= counts


def random_masks(
    batch: int, length: int, *, generator: torch.Generator
) -> Bool[Tensor, "batch seq"]:
    """A random number of given tokens at random positions."""
    device = generator.device
    counts = torch.randint(length, (batch, 1), generator=generator, device=device)
    ranks = torch.rand(batch, length, generator=generator, device=device).argsort(1).argsort(1)
    return ranks >= counts


def mixed_masks(
    batch: int,
    length: int,
    *,
    prefix_share: float,
    generator: torch.Generator,
    prefix_length: int | None = None,
) -> Bool[Tensor, "batch seq"]:
    """Prefix masks for a share of the sequences, random masks for the others."""
    prefix = prefix_masks(batch, length, generator=generator, prefix_length=prefix_length)
    scattered = random_masks(batch, length, generator=generator)
    chosen = torch.rand(batch, 1, generator=generator, device=generator.device) < prefix_share
    return torch.where(chosen, prefix, scattered)
