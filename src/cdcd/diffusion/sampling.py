"""Sampling (§2.1, §6.4): noise -> [prediction -> score -> step] × N -> prediction -> tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.embedding import nearest_token
from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.interpolation import drawn_embeddings
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.solvers import (
    SOLVERS,
    PutBack,
    Rule,
    Slope,
    Step,
    StepNoise,
    StochasticSolver,
    euler_step,
)
from cdcd.diffusion.warping import NoiseSchedule
from cdcd.settings import Bounds, PositiveShare, Repeats, Scale, Settings, Share, Temperature

NoiseAt = Callable[[int], StepNoise]
"""Returns the random numbers of a step, by its index."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """Everything that can be set when sampling, with the paper's defaults (Table 2)."""

    solver: Literal["euler", "heun", "dpm++", "ancestral", "bridge"] = "euler"
    """Step rule: `euler`, `heun` (two network calls a step) and `dpm++` (DPM-Solver++(2M)) solve the ODE;
    `ancestral` puts noise back after each step, `bridge` draws a token for each position too."""
    num_steps: Repeats = 200
    """Number of steps from t_max to t_min."""
    eta: Annotated[float, Bounds(0, 1_000)] = 1.0
    """Amount of noise that `ancestral` and `bridge` put back: at 0 none, at 1 that of the reversed process,
    at large values all."""
    noise_above: Annotated[float, Bounds(0, 1_000_000)] = 0.0
    """Lowest noise level from which a step puts noise back."""
    noise_below: Annotated[float, Bounds(0, 1_000_000)] = 1_000_000.0
    """Highest noise level from which a step puts noise back."""
    score_temperature: Temperature = 1.0
    """Divides the score; below 1 trades diversity for quality."""
    exact_temperature: bool = False
    """Integrate the score temperature exactly over each step of `euler` and `heun`, as other solvers do."""
    softmax_temperature: Temperature = 1.0
    """Temperature of the predicted token probabilities."""
    nucleus: PositiveShare = 1.0
    """Keep the most likely tokens up to this mass before interpolating."""
    guidance_scale: Scale = 1.0
    """Strength of the given tokens by classifier-free guidance; 1 is off."""
    initial_noise_scale: Annotated[float, Bounds(0, 1_000)] = 1.0
    """Scale of the initial noise."""
    stated_noise_scale: Annotated[float, Bounds(0.1, 10)] = 1.0
    """Factor on the noise level that the network is told, up to t_max; above 1 it relies less on x."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise_above < self.noise_below:
            raise ValueError(
                f"noise_above ({self.noise_above}) must be below noise_below ({self.noise_below})"
            )

    @property
    def has_exact_temperature(self) -> bool:
        """Returns whether the score temperature is integrated exactly over each step."""
        return self.exact_temperature or SOLVERS[self.solver].is_exact

    @property
    def is_stochastic(self) -> bool:
        """Returns whether steps put noise back."""
        return isinstance(SOLVERS[self.solver], StochasticSolver)

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
    step: Step | None = None
    """The step itself, from which sampling can go on; none where the decoder is no solver."""

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
class Point:
    """A point of a trajectory between two steps: sampling goes on from it as if it had not stopped."""

    index: int
    """Number of steps that are done."""
    x: Float[Tensor, "batch seq embed"]
    last: Step | None = None

    @classmethod
    def after(cls, info: StepInfo) -> "Point":
        """Returns the point at the end of a step."""
        assert info.step is not None
        return cls(info.index + 1, info.step.x, info.step)


@dataclass(frozen=True)
class Sample:
    """Tokens, and x at t_min."""

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


def rule_of_step(
    index: int,
    levels: Sequence[float],
    table: Float[Tensor, "vocab embed"],
    config: SamplingConfig,
    noise_at: NoiseAt | None,
) -> Rule:
    """Returns the rule of a step; one that puts no noise back, such as the last, is a step of the ODE."""
    solver = SOLVERS[config.solver]
    if not isinstance(solver, StochasticSolver):
        return solver.step
    is_last = index == len(levels) - 2
    if is_last or not config.noise_above <= levels[index] <= config.noise_below:
        return euler_step
    if noise_at is None:
        raise ValueError(f"solver {config.solver} puts noise back: give sample its noise_at")
    embed = partial(
        drawn_embeddings,
        table=table,
        softmax_temperature=config.softmax_temperature,
        nucleus=config.nucleus,
    )
    return partial(solver.step, PutBack(noise_at(index), config.eta, embed))


def begin(
    noise: Float[Tensor, "batch seq embed"],
    times: Float[Tensor, " steps"],
    config: SamplingConfig,
) -> Point:
    """Returns the point before the first step, made of unit Gaussian noise."""
    return Point(0, times[0].to(noise) * config.initial_noise_scale * noise)


@torch.no_grad()
def steps(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    start: Point,
    times: Float[Tensor, " steps"],
    config: SamplingConfig,
    *,
    noise_at: NoiseAt | None = None,
) -> Iterator[StepInfo]:
    """Takes the steps along `times` that are left after `start`, one at a time."""
    slope = Slope(estimator, config.score_temperature, config.has_exact_temperature)
    # Read once: a device that is asked at every step waits at every step.
    times, levels = times.to(start.x), times.tolist()
    x, step = start.x, start.last
    for index in range(start.index, len(levels) - 1):
        rule = rule_of_step(index, levels, table, config, noise_at)
        step = rule(slope, x, times[index], times[index + 1], step)
        x = step.x
        yield StepInfo(index, len(levels) - 1, levels[index], step.estimate, step)


@torch.no_grad()
def finish(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    last: Step,
    t_min: Float[Tensor, ""],
    config: SamplingConfig,
) -> Sample:
    """Predicts the tokens at the end of the last step."""
    if config.final_prediction == "nearest":
        return Sample(nearest_token(last.estimate.x0_hat, table), last.x)
    final = estimator(last.x, t_min.to(last.x).expand(len(last.x)), last.estimate.state)
    return Sample(final.logits.argmax(-1), last.x)


def sample(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    noise: Float[Tensor, "batch seq embed"],
    times: Float[Tensor, " steps"],
    config: SamplingConfig,
    *,
    noise_at: NoiseAt | None = None,
    callback: Callable[[StepInfo], None] | None = None,
) -> Sample:
    """Solves the ODE or SDE from unit Gaussian `noise` along `times` and predicts tokens at its end.

    `noise_at` returns the random numbers of a step, for solvers that put noise back.
    """
    start, last = begin(noise, times, config), None
    for info in steps(estimator, table, start, times, config, noise_at=noise_at):
        last = info.step
        if callback is not None:
            callback(info)
    assert last is not None
    return finish(estimator, table, last, times[-1], config)
