"""Solvers: step rules from one noise level to a lower one (§2.1); `sampling.py` holds the loop.

The probability flow ODE is dx/dt = −t·score(x, t) = (x − x0_hat) / t. A score temperature T divides the
score, and with it the slope of each step (§6.4). Exactly, it is a change of time: dx/ds = (x − x0_hat) / s, where
a step from t to t' goes from s = t to s' = t·(t'/t)^(1/T) and the network is told t. So where x0_hat stays the
same, a step is exact at any temperature: x' = x0_hat + (t'/t)^(1/T)·(x − x0_hat).

NOTE(paper): the paper has the first alone; `euler` and `heun` can have either, other solvers have the second.

A stochastic solver goes down to a noise level below t' and puts noise back, which solves the reverse SDE

    dx = −(1 + η²)·t·score(x, t) dt + η·sqrt(2t) dW

backward in time. It has the marginals of the ODE at every η. Self-conditioning always sees the most recent
prediction (§6.4).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.interpolation import score


@dataclass(frozen=True)
class Step:
    """The result of one step: the new x, the last prediction made on the way, and the level where it began."""

    x: Float[Tensor, "batch seq embed"]
    estimate: Estimate
    t: Float[Tensor, ""]


@dataclass(frozen=True)
class StepNoise:
    """Random numbers of one step."""

    eps: Float[Tensor, "batch seq embed"]
    u: Float[Tensor, "batch seq"]
    """Uniform numbers for tokens."""


@dataclass(frozen=True)
class PutBack:
    """The noise that a stochastic step puts back."""

    noise: StepNoise
    eta: float
    embed: Callable[[Tensor, Tensor], Tensor]
    """Draws tokens from logits by uniform numbers, and returns their embeddings."""


@dataclass(frozen=True)
class Slope:
    """The right-hand side of the ODE for an estimator at a score temperature."""

    estimator: Estimator
    score_temperature: float = 1.0
    is_exact: bool = False
    """The temperature changes the time, instead of dividing the slope."""

    def __call__(self, x: Tensor, t: Tensor, last: Step | None) -> tuple[Tensor, Estimate]:
        t = t.expand(len(x))
        estimate = self.estimator(x, t, None if last is None else last.estimate.state)
        d = -t[:, None, None] * score(estimate.x0_hat, x, t)
        return (d if self.is_exact else d / self.score_temperature), estimate

    def end(self, t: Tensor, t_next: Tensor) -> Tensor:
        """Returns s' for a step that begins at s = t."""
        if not self.is_exact or self.score_temperature == 1.0:
            return t_next
        return t * (t_next / t) ** (1 / self.score_temperature)


Rule = Callable[[Slope, Tensor, Tensor, Tensor, Step | None], Step]
"""Steps from x at noise level t to t_next, after the last step, if there was one."""
StochasticRule = Callable[[PutBack, Slope, Tensor, Tensor, Tensor, Step | None], Step]


@dataclass(frozen=True)
class Solver:
    """A step rule with its order of accuracy and its network calls a step."""

    step: Rule
    order: int
    evaluations_per_step: int = 1
    is_exact: bool = False
    """The rule needs a slope whose temperature is exact."""


@dataclass(frozen=True)
class StochasticSolver:
    """A step rule that puts noise back; where none is put back, the step is Euler's."""

    step: StochasticRule
    order: int
    evaluations_per_step: int = 1
    is_exact: bool = True


def euler_step(slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, last: Step | None) -> Step:
    """Follows the slope at the start of the step."""
    s_next = slope.end(t, t_next)
    d, estimate = slope(x, t, last)
    return Step(x + (s_next - t) * d, estimate, t)


def heun_step(slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, last: Step | None) -> Step:
    """Follows the mean of the slopes at both ends (Karras et al. 2022, Algorithm 1)."""
    s_next = slope.end(t, t_next)
    d, estimate = slope(x, t, last)
    there = Step(x + (s_next - t) * d, estimate, t)
    d_next, estimate = slope(there.x, t_next, there)
    return Step(x + (s_next - t) * (d + d_next * (t_next / s_next)) / 2, estimate, t)


def dpm_step(slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, last: Step | None) -> Step:
    """Extrapolates x0_hat to the middle of the step in ln t, from this prediction and the last one's.

    This is DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2), whose α is 1 here.
    """
    step = euler_step(slope, x, t, t_next, last)
    if last is None:
        return step
    ratio = (t_next / t).log() / (2 * (t / last.t).log())
    x0_hat = torch.lerp(last.estimate.x0_hat, step.estimate.x0_hat, 1 + ratio)
    return replace(step, x=towards(x0_hat, x, slope.end(t, t_next) / t))


def ancestral_step(
    put_back: PutBack, slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, last: Step | None
) -> Step:
    """Takes Euler's step to a level below t_next, and puts noise back (Song et al. 2021, at η = 1)."""
    t_down, t_up = split_level(t, t_next, put_back.eta)
    step = euler_step(slope, x, t, t_down, last)
    return replace(step, x=step.x + t_up * put_back.noise.eps)


def bridge_step(
    put_back: PutBack, slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, last: Step | None
) -> Step:
    """Draws each token from its own prediction, and x from what is between it and the present x.

    At η = 1 that is the Gaussian bridge between the two; at every η, a token that was drawn from the joint
    posterior of all would make a finite step exact. The predictions are its marginals.
    """
    t_down, t_up = split_level(t, t_next, put_back.eta)
    _, estimate = slope(x, t, last)
    x0 = put_back.embed(estimate.logits, put_back.noise.u)
    return Step(towards(x0, x, slope.end(t, t_down) / t) + t_up * put_back.noise.eps, estimate, t)


def split_level(t: Tensor, t_next: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """Returns the level that a step from t goes down to, and that of the noise which brings it to t_next.

    Of t_next² no more than all is put back.
    """
    share = (eta / t * (t**2 - t_next**2).sqrt()).clamp(max=1)
    return t_next * (1 - share**2).sqrt(), t_next * share


def towards(x0: Tensor, x: Tensor, distance: Tensor) -> Tensor:
    """Moves x towards x0, until this share of the distance is left."""
    return x0 + distance * (x - x0)


SOLVERS: dict[str, Solver | StochasticSolver] = {
    "euler": Solver(euler_step, order=1),
    "heun": Solver(heun_step, order=2, evaluations_per_step=2),
    "dpm++": Solver(dpm_step, order=2, is_exact=True),
    "ancestral": StochasticSolver(ancestral_step, order=1),
    "bridge": StochasticSolver(bridge_step, order=1),
}
