"""The denoising score of texts: how well a diffusion model recognises them behind a little noise.

It ranks samples of one prompt or of one source, without a judge and without a reference (ours; see
`diffusion.likelihood`). Every text is scored behind the same noise, a function of the seed alone.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.estimator import Estimator
from cdcd.diffusion.likelihood import denoising_score
from cdcd.inference.model import DiffusionSampler
from cdcd.seeding import generator_for

UNIFORM_TIMES = (0.05, 0.1, 0.15, 0.2, 0.25)
"""Uniform times u of the noise levels: where few tokens are in doubt."""
NUM_DRAWS = 2
"""Draws of noise at each level; each is taken with both signs."""


def denoising_scores(
    sampler: DiffusionSampler,
    estimator: Estimator,
    tokens: Int[Tensor, "batch seq"],
    is_scored: Bool[Tensor, "batch seq"],
    seed: int,
) -> Float[Tensor, " batch"]:
    """Returns the mean ln p of each text's scored tokens behind noise, in nats a token."""
    table, length = sampler.table, tokens.shape[1]
    generator = generator_for(seed, "denoising score")
    eps = torch.randn(NUM_DRAWS, length, table.shape[1], generator=generator).to(table)
    schedule = sampler.warp.schedule()
    levels = schedule.noise_levels(torch.tensor(UNIFORM_TIMES, device=table.device)).to(table)
    return denoising_score(estimator, table, tokens, is_scored, levels, eps)


def as_target(
    tokens: Int[Tensor, "batch seq"],
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
    """Returns targets as in training, with padding after their first EOS, and True up to it."""
    is_end = tokens == EOS
    is_text = is_end.cumsum(1) - is_end.long() == 0
    return tokens.masked_fill(~is_text, PAD), is_text
