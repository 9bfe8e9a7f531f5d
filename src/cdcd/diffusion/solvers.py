"""Solvers of the probability flow ODE (§2.1): dx/dt = −t·score(x, t) = (x − x0_hat) / t.

A score temperature T divides the score, and with it the slope (§6.4). Each solver is one step rule;
`sampling.py` holds the loop. Self-conditioning always sees the most recent prediction (§6.4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.interpolation import score


@dataclass(frozen=True)
class Step:
    """The result of one step: the new x, and the last prediction made on the way."""

    x: Float[Tensor, "batch seq embed"]
    estimate: Estimate


@dataclass(frozen=True)
class Slope:
    """The right-hand side of the ODE for an estimator at a score temperature."""

    estimator: Estimator
    score_temperature: float = 1.0

    def __call__(self, x: Tensor, t: Tensor, state: Any) -> tuple[Tensor, Estimate]:
        t = t.expand(len(x))
        estimate = self.estimator(x, t, state)
        gradient = score(estimate.x0_hat, x, t)
        return -t[:, None, None] * gradient / self.score_temperature, estimate


@dataclass(frozen=True)
class Solver:
    """A step rule with its order of accuracy and its network calls a step."""

    step: Callable[[Slope, Tensor, Tensor, Tensor, Any], Step]
    order: int
    evaluations_per_step: int


def euler_step(slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, state: Any) -> Step:
    """Follows the slope at the start of the step."""
    d, estimate = slope(x, t, state)
    return Step(x + (t_next - t) * d, estimate)


def heun_step(slope: Slope, x: Tensor, t: Tensor, t_next: Tensor, state: Any) -> Step:
    """Follows the mean of the slopes at both ends (Karras et al. 2022, Algorithm 1)."""
    d, estimate = slope(x, t, state)
    d_next, estimate = slope(x + (t_next - t) * d, t_next, estimate.state)
    return Step(x + (t_next - t) * (d + d_next) / 2, estimate)


SOLVERS = {
    "euler": Solver(euler_step, order=1, evaluations_per_step=1),
    "heun": Solver(heun_step, order=2, evaluations_per_step=2),
}
