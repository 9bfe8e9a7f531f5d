"""The random inputs of a training step: functions of (seed, step, row of the global batch).

What is small (u, masks, dropout) is drawn for the whole batch by every rank, which keeps its rows.
The noise is large: it is drawn in blocks of rows, each by a generator of its own, and a rank draws
the blocks that its rows lie in.
"""

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cdcd.diffusion.masking import mixed_masks, most_noisy
from cdcd.diffusion.objective import Draws, ObjectiveConfig
from cdcd.diffusion.warping import NoiseSchedule
from cdcd.seeding import generator_for

BLOCK = 64
"""Rows of the batch whose noise one generator draws."""


def uniform_times(
    batch: int, *, low_discrepancy: bool, generator: torch.Generator
) -> Float[Tensor, " batch"]:
    """Uniform u; low-discrepancy: one in each of `batch` equal intervals, in random order (§6.1).

    The order is random so that u is independent of everything else that depends on the row.
    """
    if not low_discrepancy:
        return torch.rand(batch, generator=generator, device=generator.device)
    offset = torch.rand(1, generator=generator, device=generator.device)
    order = torch.randperm(batch, generator=generator, device=generator.device)
    return ((order + offset) / batch).clamp(max=1.0)


def conditioning_masks(
    batch: int, length: int, objective: ObjectiveConfig, *, generator: torch.Generator
) -> Bool[Tensor, "batch seq"]:
    """Masks by the objective's masking strategy."""
    if objective.masking == "none":
        return torch.ones(batch, length, dtype=torch.bool, device=generator.device)
    return mixed_masks(
        batch,
        length,
        prefix_share=_prefix_share(objective),
        prefix_length=objective.prefix_length,
        generator=generator,
    )


def _prefix_share(objective: ObjectiveConfig) -> float:
    return {"none": 0.0, "prefix": 1.0, "random": 0.0, "mixed": objective.prefix_share}[
        objective.masking
    ]


def room_for_noisy(rows: Collection[int], length: int, objective: ObjectiveConfig) -> int:
    """The most positions that these masks can leave noisy in some rows of a batch."""
    share = _prefix_share(objective)
    if objective.masking == "none" or (objective.prefix_length is not None and 0 < share < 1):
        return len(rows) * length
    if objective.prefix_length is not None and share == 1:
        return len(rows) * (length - objective.prefix_length)
    return most_noisy(rows, length)


def noise(
    shape: tuple[int, int, int], rows: slice, *, seed: int, step: int, device: torch.device
) -> Float[Tensor, "rows seq embed"]:
    """The noise of some rows of a batch of this shape."""
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
    device: torch.device,
    rows: slice | None = None,
) -> Draws:
    """The draws of training step `step`, whose batch has the shape (batch, length, embedding
    dimension): of the whole batch, or of some rows."""
    batch, length, _ = shape
    rows = rows or slice(0, batch)
    generator = generator_for(seed, "draws", step, device=device)
    u = uniform_times(batch, low_discrepancy=objective.low_discrepancy, generator=generator)
    is_noisy = conditioning_masks(batch, length, objective, generator=generator)
    dropout = torch.rand(batch, generator=generator, device=device)
    t_previous = None
    if objective.self_conditioning_lag:
        lag = torch.rand(batch, generator=generator, device=device)
        earlier = u + objective.self_conditioning_lag * lag
        t_previous = schedule.noise_levels(earlier.clamp(max=1.0)[rows])
    return Draws(
        t=schedule.noise_levels(u[rows]),
        eps=noise(shape, rows, seed=seed, step=step, device=device),
        is_noisy=is_noisy[rows],
        is_dropped=dropout[rows] < objective.conditioning_dropout,
        t_previous=t_previous,
    )
