"""Sampling (§2.1, §6.4): noise -> [prediction -> score -> step] × N -> prediction -> tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.embedding import nearest_token
from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.solvers import SOLVERS, Slope
from cdcd.diffusion.warping import NoiseSchedule
from cdcd.settings import Bounds, PositiveShare, Repeats, Scale, Settings, Share, Temperature


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """Everything that can be set when sampling, with the paper's defaults (Table 2)."""

    solver: Literal["euler", "heun"] = "euler"
    """Step rule: `euler` (one network call a step) or `heun` (two)."""
    num_steps: Repeats = 200
    """Number of steps from t_max to t_min."""
    score_temperature: Temperature = 1.0
    """Divides the score; below 1 trades diversity for quality."""
    softmax_temperature: Temperature = 1.0
    """Temperature of the predicted token probabilities."""
    nucleus: PositiveShare = 1.0
    """Keep the most likely tokens up to this mass before interpolating."""
    guidance_scale: Scale = 1.0
    """Strength of the given tokens by classifier-free guidance; 1 is off."""
    initial_noise_scale: Annotated[float, Bounds(0, 1_000)] = 1.0
    """Scale of the initial noise."""
    warp: bool = True
    """Space the steps by the learnt time warp; off: by `rho` alone."""
    warp_temperature: Temperature = 1.0
    """Temperature of the warp that spaces the steps."""
    warp_uniformity: Share = 0.0
    """Share of uniform spacing mixed into the warp."""
    rho: Annotated[float, Bounds(0.05, 1_000)] = 1.0
    """Exponent of Karras et al.'s step spacing; 1 is uniform."""
    self_conditioning: bool = True
    """Feed predictions back; only for models trained so."""
    final_prediction: Literal["network", "nearest"] = "network"
    """Tokens by one more network call at t_min, or by the embedding nearest to the last x0_hat."""
    renormalise: bool = False
    """Renormalise x0_hat; a choice only for models trained without self-conditioning."""
    clamp: bool = False
    """Clamp x0_hat; a choice only for models trained without self-conditioning."""
    replacement: bool = False
    """Condition by the replacement method; only for models trained without masks."""

    @property
    def num_evaluations(self) -> int:
        """Network calls for a sample, with the final prediction; guidance doubles their cost."""
        in_steps = self.num_steps * SOLVERS[self.solver].evaluations_per_step
        return in_steps + (self.final_prediction == "network")


@dataclass(frozen=True)
class StepInfo:
    """A finished step, as a callback gets it."""

    index: int
    num_steps: int
    t: float
    estimate: Estimate

    @property
    def x0_hat(self) -> Float[Tensor, "batch seq embed"]:
        return self.estimate.x0_hat

    @property
    def probabilities(self) -> Float[Tensor, "batch seq vocab"]:
        """Those of the logits, in float32 or better."""
        logits = self.estimate.logits
        precision = torch.promote_types(logits.dtype, torch.float32)
        return torch.softmax(logits, dim=-1, dtype=precision)


@dataclass(frozen=True)
class Sample:
    """Tokens, and the state of the ODE at t_min."""

    tokens: Int[Tensor, "batch seq"]
    x: Float[Tensor, "batch seq embed"]


def rho_levels(
    num_steps: int, process: ProcessConfig, rho: float, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " steps"]:
    """Returns Karras et al.'s spacing from t_max to t_min: uniform in t^(1/rho)."""
    high, low = process.t_max ** (1 / rho), process.t_min ** (1 / rho)
    fraction = torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)
    t = (high + fraction * (low - high)) ** rho
    return t.clamp(process.t_min, process.t_max).to(dtype)


def time_grid(
    config: SamplingConfig,
    process: ProcessConfig,
    schedule: NoiseSchedule,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " steps"]:
    """Returns the num_steps + 1 noise levels of the sampler, decreasing from t_max to t_min (App. A.5).

    Without warping they are rho-spaced in t. With warping the same levels, brought linearly to [0, 1],
    are the uniform times u, so that rho = 1 is uniform in u whatever the warp's coordinate.
    """
    t = rho_levels(config.num_steps, process, config.rho, dtype)
    if not config.warp:
        return t
    adjusted = schedule.adjusted(
        temperature=config.warp_temperature, uniformity=config.warp_uniformity
    )
    u = (t - process.t_min) / (process.t_max - process.t_min)
    # The two ends are exact: rounding in the warp must not leave the range.
    t = adjusted.noise_levels(u.to(adjusted.cdf.widths_in.device)).to(dtype)
    t[0], t[-1] = process.t_max, process.t_min
    return t


@torch.no_grad()
def sample(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    noise: Float[Tensor, "batch seq embed"],
    times: Float[Tensor, " steps"],
    config: SamplingConfig,
    *,
    callback: Callable[[StepInfo], None] | None = None,
) -> Sample:
    """Solves the ODE from unit Gaussian `noise` along `times` and predicts tokens at its end."""
    solver = SOLVERS[config.solver]
    slope = Slope(estimator, config.score_temperature)
    times = times.to(noise)
    # Read once: a device that is asked at every step waits at every step.
    levels = [] if callback is None else times.tolist()
    x, state, estimate = times[0] * config.initial_noise_scale * noise, None, None
    for index, (t, t_next) in enumerate(pairwise(times)):
        step = solver.step(slope, x, t, t_next, state)
        x, estimate, state = step.x, step.estimate, step.estimate.state
        if callback is not None:
            callback(StepInfo(index, config.num_steps, levels[index], estimate))
    assert estimate is not None
    if config.final_prediction == "nearest":
        return Sample(nearest_token(estimate.x0_hat, table), x)
    final = estimator(x, times[-1].expand(len(x)), state)
    return Sample(final.logits.argmax(-1), x)
