"""The random inputs of a training step: functions of (seed, step, row of the global batch).

What is small (u, masks, dropout) is drawn for the whole batch by every rank, which keeps its rows.
The noise is large: it is drawn in blocks of rows, each by a generator of its own, and a rank draws
the blocks that its rows lie in.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.logits import noisy_positions
from cdcd.diffusion.masking import conditioning_masks, most_noisy
from cdcd.diffusion.objective import Draws, ObjectiveConfig
from cdcd.diffusion.warping import NoiseSchedule
from cdcd.seeding import generator_for

BLOCK = 64
"""Rows of the batch whose noise one generator draws."""


def uniform_times(
    batch: int, *, low_discrepancy: bool, generator: torch.Generator
) -> Float[Tensor, " batch"]:
    """Returns uniform u; low-discrepancy: one in each of `batch` equal intervals, in random order (§6.1).

    The order is random so that u is independent of everything else that depends on the row.
    """
    if not low_discrepancy:
        return torch.rand(batch, generator=generator, device=generator.device)
    offset = torch.rand(1, generator=generator, device=generator.device)
    order = torch.randperm(batch, generator=generator, device=generator.device)
    return ((order + offset) / batch).clamp(max=1.0)


def self_conditioned_rows(rows: range, objective: ObjectiveConfig) -> list[int]:
    """Returns the self-conditioned ones among some rows of a batch: evenly spread and fixed.

    They need not be random, since u is permuted over the rows.
    """
    if not objective.self_conditioning:
        return []
    share = objective.self_conditioned_share
    return [row for row in rows if int((row + 1) * share) > int(row * share)]


@cache
def num_predicted(objective: ObjectiveConfig, rows: range, length: int) -> tuple[int, int]:
    """Returns the most positions that can be noisy in some rows of a batch, and in the self-conditioned ones."""
    chosen = set(self_conditioned_rows(rows, objective))
    return most_noisy(rows, length, objective), most_noisy(chosen, length, objective)


@cache
def self_conditioned_index(
    objective: ObjectiveConfig, rows: range, device: torch.device | str
) -> Int[Tensor, " chosen"]:
    """Returns the self-conditioned ones among some rows, counted from the first; copied to a device once."""
    chosen = [row - rows.start for row in self_conditioned_rows(rows, objective)]
    return torch.tensor(chosen, dtype=torch.long, device=device)


def noise(
    shape: tuple[int, int, int],
    rows: range,
    *,
    seed: int,
    step: int,
    device: torch.device | str,
) -> Float[Tensor, "rows seq embed"]:
    """Returns the noise of some rows of a batch of this shape."""
    batch, length, dim = shape
    start = rows.start - rows.start % BLOCK
    blocks = []
    for first in range(start, rows.stop, BLOCK):
        generator = generator_for(seed, "eps", step, first // BLOCK, device=device)
        size = min(BLOCK, batch - first)
        blocks.append(torch.randn(size, length, dim, generator=generator, device=device))
    return torch.cat(blocks)[rows.start - start : rows.stop - start]


def draw_for_step(
    shape: tuple[int, int, int],
    objective: ObjectiveConfig,
    schedule: NoiseSchedule,
    *,
    seed: int,
    step: int,
    device: torch.device | str = "cpu",
    rows: range | None = None,
    only_noisy: bool = False,
) -> Draws:
    """Returns the draws of a training step, whose batch has the shape (batch, length, embedding dimension).

    They are of the whole batch, or of some rows. With `only_noisy` the network is asked for noisy
    positions alone (and for some given ones, where fewer are noisy than there can be).
    """
    batch, length, _ = shape
    rows = range(batch) if rows is None else rows
    part = slice(rows.start, rows.stop)
    generator = generator_for(seed, "draws", step, device=device)
    u = uniform_times(batch, low_discrepancy=objective.low_discrepancy, generator=generator)
    is_noisy = conditioning_masks(batch, length, objective, generator=generator)[part]
    dropout = torch.rand(batch, generator=generator, device=device)
    chosen = self_conditioned_index(objective, rows, device)
    count, count_first = num_predicted(objective, rows, length)
    return Draws(
        t=schedule.noise_levels(u[part]),
        eps=noise(shape, rows, seed=seed, step=step, device=device),
        is_noisy=is_noisy,
        is_dropped=dropout[part] < objective.conditioning_dropout,
        self_conditioned=chosen,
        predicted=noisy_positions(is_noisy, count) if only_noisy else None,
        predicted_first=noisy_positions(is_noisy[chosen], count_first) if only_noisy else None,
    )
