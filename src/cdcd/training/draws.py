"""The random inputs of a training step, a function of (seed, step) for the whole batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cdcd.data.masking import mixed_masks
from cdcd.diffusion.objective import Draws, ObjectiveConfig
from cdcd.diffusion.warping import NoiseSchedule
from cdcd.seeding import generator_for


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
    share = {"prefix": 1.0, "random": 0.0, "mixed": objective.prefix_share}[objective.masking]
    return mixed_masks(
        batch,
        length,
        prefix_share=share,
        prefix_length=objective.prefix_length,
        generator=generator,
    )


def draw(
    shape: tuple[int, int, int],
    objective: ObjectiveConfig,
    schedule: NoiseSchedule,
    *,
    generator: torch.Generator,
) -> Draws:
    """Everything random about a batch of shape (batch, length, embedding dimension)."""
    batch, length, _ = shape
    device = generator.device
    u = uniform_times(batch, low_discrepancy=objective.low_discrepancy, generator=generator)
    is_noisy = conditioning_masks(batch, length, objective, generator=generator)
    dropout = torch.rand(batch, generator=generator, device=device)
    return Draws(
        t=schedule.noise_levels(u),
        eps=torch.randn(shape, generator=generator, device=device),
        is_noisy=is_noisy,
        is_dropped=dropout < objective.conditioning_dropout,
    )


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
    """The draws of training step `step`: of its whole batch, or of some rows."""
    generator = generator_for(seed, "draws", step, device=device)
    drawn = draw(shape, objective, schedule, generator=generator)
    return drawn if rows is None else drawn.rows(rows)
