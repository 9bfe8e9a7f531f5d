"""Conditioning masks (§4.1): they tell the noisy tokens of a sequence from the given ones.

Clean counts are uniform on 0 … length − 1, so that at least one token is always noisy. They are drawn
in pairs: c for one row of a batch and length − 1 − c for another, which leaves every count uniform and
makes the number of noisy tokens of a whole batch a constant. A row's partner is two rows away, so that
the odd rows, which are self-conditioned by default, have their partners among themselves.
"""

from collections.abc import Collection

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.diffusion.objective import ObjectiveConfig


def clean_counts(batch: int, length: int, *, generator: torch.Generator) -> Int[Tensor, "batch 1"]:
    """Returns the number of given tokens of each sequence."""
    drawn = torch.randint(length, (batch, 1), generator=generator, device=generator.device)
    rows = torch.arange(batch, device=generator.device)[:, None]
    is_second = rows & 2 > 0
    return torch.where(is_second, length - 1 - drawn.roll(2, 0), drawn)


def most_noisy(rows: Collection[int], length: int, objective: ObjectiveConfig) -> int:
    """Returns the most tokens that can be noisy in some rows of a batch.

    Of masks without a fixed prefix their number is exact if every row's partner is among them.
    """
    share, prefix_length = prefix_share(objective), objective.prefix_length
    if objective.masking == "none" or (prefix_length is not None and 0 < share < 1):
        return len(rows) * length
    if prefix_length is not None and share == 1:
        return len(rows) * (length - prefix_length)
    partnered = sum(row ^ 2 in rows for row in rows)
    return partnered // 2 * (length + 1) + (len(rows) - partnered) * length


def prefix_masks(counts: Int[Tensor, "batch 1"], length: int) -> Bool[Tensor, "batch seq"]:
    """Returns masks with the first tokens given, the rest noisy."""
    return torch.arange(length, device=counts.device) >= counts


def random_masks(
    counts: Int[Tensor, "batch 1"], length: int, *, generator: torch.Generator
) -> Bool[Tensor, "batch seq"]:
    """Returns masks with so many given tokens at random positions."""
    scores = torch.rand(len(counts), length, generator=generator, device=generator.device)
    return scores.argsort(1).argsort(1) >= counts


def prefix_share(objective: ObjectiveConfig) -> float:
    """Returns the share of the sequences whose given tokens are a prefix."""
    return {"prefix": 1.0, "mixed": objective.prefix_share}.get(objective.masking, 0.0)


def conditioning_masks(
    batch: int, length: int, objective: ObjectiveConfig, *, generator: torch.Generator
) -> Bool[Tensor, "batch seq"]:
    """Returns prefix masks, of random or fixed length, for a share of the sequences, random masks for the others.

    Without masking all tokens are noisy.
    """
    device, prefix_length = generator.device, objective.prefix_length
    if objective.masking == "none":
        return torch.ones(batch, length, dtype=torch.bool, device=device)
    counts = clean_counts(batch, length, generator=generator)
    scattered = random_masks(counts, length, generator=generator)
    if prefix_length is not None:
        if prefix_length >= length:
            raise ValueError(
                f"objective.prefix_length is {prefix_length}, it must be below the sequence length {length}"
            )
        counts = torch.full_like(counts, prefix_length)
    has_prefix = torch.rand(batch, 1, generator=generator, device=device) < prefix_share(objective)
    return torch.where(has_prefix, prefix_masks(counts, length), scattered)
