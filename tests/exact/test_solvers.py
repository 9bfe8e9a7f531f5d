"""Solvers and sampler on the exact oracle: they reproduce the chain, at the order they declare."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from languages import DIM, LENGTH, PROCESS, chain, exact_marginals, noise, oracle, table

from cdcd.diffusion.estimator import Estimate, Estimator, Guided, Replacement
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, rho_levels, sample, time_grid
from cdcd.diffusion.solvers import SOLVERS
from cdcd.diffusion.warping import TimeWarp, WarpConfig

COUNT = 3000
MAX_Z = 5.0
"""Bound on the deviation of any counted frequency, in standard errors."""


def log_grid(num_steps: int) -> torch.Tensor:
    """Steps uniform in ln t: what a warp that starts with log bins gives."""
    warp = TimeWarp(WarpConfig(bins="log"), PROCESS).double()
    return time_grid(SamplingConfig(num_steps=num_steps), PROCESS, warp.schedule(), torch.float64)


def sample_oracle(count: int, given: dict[int, int] | None = None, **settings: Any) -> torch.Tensor:
    config = SamplingConfig(**settings)
    exact = oracle(count, given=given)
    found = sample(exact, table(), noise(count), log_grid(config.num_steps), config)
    return torch.where(exact.is_noisy, found.tokens, exact.tokens)


def z_scores(
    counts: torch.Tensor, probabilities: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """Deviations of observed counts from expected ones in standard errors."""
    expected = total * probabilities
    error = (total * probabilities * (1 - probabilities)).sqrt()
    return (counts - expected) / error.clamp(min=1.0)


def transition_z(tokens: torch.Tensor) -> float:
    """Largest deviation of the observed transitions from the chain's."""
    counts = torch.zeros(6, 6, dtype=torch.float64)
    pairs = torch.stack([tokens[:, :-1].flatten(), tokens[:, 1:].flatten()])
    counts.index_put_((pairs[0], pairs[1]), torch.ones(pairs.shape[1]).double(), accumulate=True)
    return float(z_scores(counts, chain().transitions, counts.sum(1, keepdim=True)).abs().max())


@pytest.mark.parametrize(("solver", "num_steps"), [("euler", 200), ("heun", 20)])
def test_sampler_reproduces_the_chain(solver, num_steps):
    tokens = sample_oracle(COUNT, solver=solver, num_steps=num_steps)
    assert transition_z(tokens) < MAX_Z
    first = torch.bincount(tokens[:, 0], minlength=6).double()
    assert float(z_scores(first, chain().initial, torch.tensor(COUNT)).abs().max()) < MAX_Z
    log_probs = chain().log_prob(tokens)
    reference = chain().log_prob(chain().sample(20_000, LENGTH, generator=torch.Generator()))
    error = log_probs.std() / math.sqrt(COUNT)
    assert abs(float(log_probs.mean() - reference.mean())) < 4 * float(error)


@pytest.mark.parametrize(
    "wrong", [{"score_temperature": 0.8}, {"initial_noise_scale": 0.7}, {"num_steps": 3}]
)
def test_the_bound_notices_a_wrong_sampler(wrong):
    assert transition_z(sample_oracle(COUNT, **({"num_steps": 60} | wrong))) > MAX_Z


@pytest.mark.parametrize("given", [{0: 2, 1: 4}, {0: 1, 5: 3, 11: 2}])
def test_prefix_and_infill_match_the_exact_conditionals(given):
    tokens = sample_oracle(2000, given, solver="heun", num_steps=20)
    short = {position: token for position, token in given.items() if position < 6}
    # Positions between given ones depend on nothing beyond them, so six positions are enough.
    exact = exact_marginals(chain(), 6, short)
    for position in range(6):
        counts = torch.bincount(tokens[:, position], minlength=6).double()
        if position in given:
            assert int(counts[given[position]]) == len(tokens)
        elif position < max(short):
            z = z_scores(counts, exact[position], torch.tensor(len(tokens)))
            assert float(z.abs().max()) < MAX_Z


def solve(solver: str, num_steps: int, count: int = 16) -> torch.Tensor:
    """x at a noise level where tokens are still undecided, so that the error is smooth."""
    process = ProcessConfig(t_min=2.0, t_max=PROCESS.t_max)
    config = SamplingConfig(solver=solver, num_steps=num_steps)  # pyright: ignore[reportArgumentType]
    schedule = TimeWarp(WarpConfig(bins="log"), process).double().schedule()
    times = time_grid(config, process, schedule, torch.float64)
    return sample(oracle(count), table(), noise(count), times, config).x


@pytest.fixture(scope="module")
def exact():
    """x by a fine grid."""
    return solve("heun", 1500)


@pytest.mark.parametrize("solver", SOLVERS)
def test_measured_order_equals_the_declared_one(solver, exact):
    few, many = (solve(solver, num_steps) for num_steps in (80, 160))
    errors = [(x - exact).square().mean().sqrt() for x in (few, many)]
    assert float((errors[0] / errors[1]).log2()) == pytest.approx(SOLVERS[solver].order, abs=0.2)


@dataclass
class Counting:
    """An estimator that counts its calls and hands each its own number as state."""

    calls: list[tuple[float, Any]] = field(default_factory=list)

    def __call__(self, x: torch.Tensor, t: torch.Tensor, state: Any) -> Estimate:
        self.calls.append((float(t[0]), state))
        return Estimate(torch.zeros(*x.shape[:2], 6), torch.zeros_like(x), len(self.calls))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("final", ["network", "nearest"])
def test_evaluations_are_as_declared_and_see_the_most_recent_prediction(solver, final):
    config = SamplingConfig(solver=solver, num_steps=7, final_prediction=final)
    estimator = Counting()
    sample(estimator, table(), noise(2), log_grid(7), config)
    assert len(estimator.calls) == config.num_evaluations
    assert [state for _, state in estimator.calls] == [None, *range(1, len(estimator.calls))]
    if final == "network":
        assert estimator.calls[-1][0] == pytest.approx(PROCESS.t_min)


def test_final_prediction_by_nearest_embedding_agrees_with_the_network():
    a = sample_oracle(300, num_steps=50)
    b = sample_oracle(300, num_steps=50, final_prediction="nearest")
    assert float((a == b).double().mean()) > 0.995


def test_callback_sees_every_step():
    seen: list[StepInfo] = []
    times = log_grid(5)
    sample(oracle(2), table(), noise(2), times, SamplingConfig(num_steps=5), callback=seen.append)
    assert [info.index for info in seen] == [0, 1, 2, 3, 4]
    assert [info.t for info in seen] == pytest.approx(times[:-1].tolist())
    assert seen[0].x0_hat.shape == (2, LENGTH, DIM)
    torch.testing.assert_close(seen[0].probabilities.sum(-1), torch.ones(2, LENGTH).double())


def test_score_temperature_and_noise_scale_enter_where_they_should():
    """One Euler step by hand: x + (t' − t)(x − x0_hat) / (t T), from x = t_max · scale · noise."""
    config = SamplingConfig(num_steps=1, score_temperature=0.7, initial_noise_scale=0.5)
    times, eps = log_grid(1), noise(2)
    x = times[0] * 0.5 * eps
    x0_hat = oracle(2)(x, times[0].expand(2)).x0_hat
    expected = x + (times[1] - times[0]) * (x - x0_hat) / (times[0] * 0.7)
    found = sample(oracle(2), table(), eps, times, config)
    torch.testing.assert_close(found.x, expected)


@dataclass(frozen=True)
class Together:
    """Two estimators as one, for the two halves of a batch."""

    first: Estimator
    second: Estimator

    def __call__(self, x, t, state):
        states = state or (None, None)
        a, b = (
            each(*halves)
            for each, *halves in zip(
                (self.first, self.second), x.chunk(2), t.chunk(2), states, strict=True
            )
        )
        joined = (torch.cat([getattr(a, n), getattr(b, n)]) for n in ("logits", "x0_hat"))
        return Estimate(*joined, (a.state, b.state))


def test_guidance_extrapolates_from_unconditional_to_conditional():
    conditional, unconditional = oracle(2, given={0: 3}), oracle(2)
    x, t = noise(2) * 3, torch.full((2,), 3.0).double()
    guided = Guided(Together(conditional, unconditional), 2.5)(x, t, None)
    a, b = conditional(x, t).x0_hat, unconditional(x, t).x0_hat
    torch.testing.assert_close(guided.x0_hat, b + 2.5 * (a - b))
    torch.testing.assert_close(guided.logits, conditional(x, t).logits)


def test_guidance_keeps_a_state_for_each_branch():
    left, right = Counting(), Counting()
    guided = Guided(Together(left, right), 2.0)
    first = guided(noise(1), torch.ones(1).double(), None)
    guided(noise(1), torch.ones(1).double(), first.state)
    assert left.calls[1][1] == 1
    assert right.calls[1][1] == 1


def test_replacement_conditions_an_unconditional_oracle_roughly():
    """The replacement method is a heuristic (§4.1): better than ignoring the given tokens."""
    given, count = {5: 3}, 1500
    exact = oracle(count, given=given)
    replaced = Replacement(oracle(count), table()[exact.tokens], exact.is_noisy, noise(count))
    config = SamplingConfig(num_steps=100)
    tokens = sample(replaced, table(), noise(count), log_grid(100), config).tokens
    right = exact_marginals(chain(), 6, given)[4]
    ignored = exact_marginals(chain(), 6, {})[4]
    found = torch.bincount(tokens[:, 4], minlength=6).double() / count
    assert float((found - right).abs().sum()) < 0.7 * float((ignored - right).abs().sum())
    assert (sample_given := tokens[:, 5]).eq(3).all(), sample_given


@pytest.mark.parametrize("rho", [1.0, 2.0, 4.0, 8.0])
def test_rho_spacing(rho):
    t = rho_levels(10, PROCESS, rho, torch.float64)
    roots = t ** (1 / rho)
    torch.testing.assert_close(roots.diff(), roots.diff().mean().expand(10))
    assert (float(t[0]), float(t[-1])) == pytest.approx((PROCESS.t_max, PROCESS.t_min))


@pytest.mark.parametrize("bins", ["linear", "log"])
def test_time_grid_is_uniform_in_warped_time(bins):
    warp = TimeWarp(WarpConfig(bins=bins, num_bins=20), PROCESS).double()
    warp.average_out.copy_(torch.linspace(-3, 3, 20))
    times = time_grid(SamplingConfig(num_steps=8), PROCESS, warp.schedule(), torch.float64)
    u = warp.schedule().uniform_time(times)
    torch.testing.assert_close(u, torch.linspace(1, 0, 9).double(), atol=1e-9, rtol=0)
    unwarped = SamplingConfig(num_steps=8, warp=False)
    times = time_grid(unwarped, PROCESS, warp.schedule(), torch.float64)
    torch.testing.assert_close(times, rho_levels(8, PROCESS, 1.0, torch.float64))
    uniform = SamplingConfig(num_steps=8, warp_uniformity=1.0)
    times = time_grid(uniform, PROCESS, warp.schedule(), torch.float64)
    steps = times.diff() if bins == "linear" else times.log().diff()
    torch.testing.assert_close(steps, steps.mean().expand(8))
