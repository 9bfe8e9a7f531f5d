"""Solvers that put noise back: the chain is reproduced at any η, and a bridge between marginals loses its joint."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from languages import LENGTH, PROCESS, all_sequences, chain, noise, oracle, table
from torch import Tensor
from torch.distributions import Normal

from cdcd.diffusion.estimator import Estimate
from cdcd.diffusion.interpolation import drawn_embeddings
from cdcd.diffusion.sampling import SamplingConfig, sample
from cdcd.diffusion.solvers import (
    PutBack,
    Slope,
    Step,
    StepNoise,
    ancestral_step,
    bridge_step,
    euler_step,
    split_level,
)
from cdcd.diffusion.step_noise import step_noise
from cdcd.languages import MarkovChain, MarkovOracle

ETAS = [0.5, 1.0, 2.0]


def log_levels(num_steps: int, high: float = PROCESS.t_max, low: float = PROCESS.t_min) -> Tensor:
    return torch.linspace(math.log(high), math.log(low), num_steps + 1).double().exp()


def sample_with(exact: Any, times: Tensor, noise: Tensor, seed: int = 0, **settings: Any) -> Tensor:
    """Tokens, with given ones in their places."""
    config = SamplingConfig(num_steps=len(times) - 1, **settings)
    keys = torch.arange(len(noise)) + (seed << 32)
    noise_at = lambda step: step_noise(keys, step, noise)  # noqa: E731
    found = sample(exact, table(), noise, times, config, noise_at=noise_at).tokens
    return torch.where(exact.is_noisy, found, exact.tokens)


# One position of one dimension, in which the density of x is known on a grid

GRID = torch.linspace(-9, 9, 901).double()
LINE = torch.tensor([[-1.0], [0.4], [1.3]]).double()
PRIOR = torch.tensor([0.5, 0.2, 0.3]).double()


def line_oracle(count: int) -> MarkovOracle:
    """The oracle of one token of three, on a line."""
    tokens = torch.zeros(count, 1, dtype=torch.long)
    language = MarkovChain(PRIOR, PRIOR.expand(3, 3))
    return MarkovOracle(language, LINE, tokens, torch.ones(count, 1, dtype=torch.bool))


def line_density(t: Tensor) -> Tensor:
    """The density of x at a noise level, on the grid."""
    return Normal(LINE[:, 0], t).log_prob(GRID[:, None]).exp() @ PRIOR


def stepped(step: Callable[..., Step], token: int, t: Tensor, t_next: Tensor, eta: float) -> Tensor:
    """The density after a step from each point of the grid, whose bridge leads to one token."""
    x, means = GRID[:, None, None], []
    for eps in (0.0, 1.0):
        drawn = StepNoise(torch.full_like(x, eps), torch.zeros(len(GRID), 1).double())
        put_back = PutBack(drawn, eta, lambda logits, u: LINE[token].expand(len(u), 1, 1))
        means.append(step(put_back, Slope(line_oracle(len(GRID))), x, t, t_next, None).x[:, 0, 0])
    mean, deviation = means[0], means[1] - means[0]
    return Normal(mean[:, None], deviation[:, None]).log_prob(GRID).exp()


def line_error(step: Callable[..., Step], num_steps: int, eta: float) -> float:
    """The total variation between the density after some steps and the language's own."""
    times = log_levels(num_steps, 2.0, 0.3)
    density, spacing = line_density(times[0]), float(GRID[1] - GRID[0])
    for t, t_next in pairwise(times):
        posterior = line_oracle(len(GRID))(GRID[:, None, None], t.expand(len(GRID)))
        weights = posterior.logits[:, 0].exp()
        tokens = range(3) if step is bridge_step else [0]
        density = spacing * sum(
            (density * (weights[:, token] if len(tokens) > 1 else 1.0))
            @ stepped(step, token, t, t_next, eta)
            for token in tokens
        )
    return float((density - line_density(times[-1])).abs().sum()) * spacing / 2


@pytest.mark.parametrize("eta", ETAS)
def test_the_density_of_the_sde_converges_at_order_one(eta):
    few, many = (line_error(ancestral_step, num_steps, eta) for num_steps in (24, 48))
    assert many < 0.02
    assert math.log2(few / many) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("eta", ETAS)
def test_a_bridge_of_one_token_is_exact_in_any_number_of_steps(eta):
    """But for the ends of the grid."""
    assert line_error(bridge_step, 3, eta) < 1e-4


def test_the_bound_on_the_density_notices_wrong_noise():
    def too_much(put_back: PutBack, *arguments: Any) -> Step:
        step = ancestral_step(put_back, *arguments)
        return Step(step.x + 0.05 * put_back.noise.eps, step.estimate, step.t)

    assert line_error(too_much, 48, 1.0) > 0.02


# The chain


@pytest.mark.parametrize(("eta", "num_steps"), [(0.5, 60), (1.0, 80), (2.0, 120)])
def test_the_sde_reproduces_the_chain(eta, num_steps):
    count = 1000
    tokens = sample_with(
        oracle(count), log_levels(num_steps), noise(count), solver="ancestral", eta=eta
    )
    pairs = torch.stack([tokens[:, :-1].flatten(), tokens[:, 1:].flatten()])
    counts = torch.zeros(6, 6).double()
    counts.index_put_((pairs[0], pairs[1]), torch.ones(pairs.shape[1]).double(), accumulate=True)
    total, p = counts.sum(1, keepdim=True), chain().transitions
    z = (counts - total * p) / (total * p * (1 - p)).sqrt().clamp(min=1)
    assert float(z.abs().max()) < 5
    log_probs = chain().log_prob(tokens)
    data = chain().log_prob(chain().sample(20_000, LENGTH, generator=torch.Generator()))
    error = float(log_probs.std()) / math.sqrt(count)
    assert abs(float(log_probs.mean() - data.mean())) < 4 * error


def exact_joint(given: dict[int, int]) -> Tensor:
    """p(the last two of three tokens | given ones)."""
    sequences = all_sequences(6, 3)
    fits = torch.ones(len(sequences), dtype=torch.bool)
    for position, token in given.items():
        fits &= sequences[:, position] == token
    weights = torch.where(fits, chain().log_prob(sequences).exp(), 0.0).view(6, 6, 6).sum(0)
    return weights / weights.sum()


def multi_information(joint: Tensor) -> float:
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return float((joint * (joint / independent).log()).sum())


def divergence(tokens: Tensor, joint: Tensor) -> float:
    """KL of the joint from the frequencies of the last two tokens."""
    counts = torch.zeros(6, 6).double()
    counts.index_put_(
        (tokens[:, 1], tokens[:, 2]), torch.ones(len(tokens)).double(), accumulate=True
    )
    frequencies = (counts + 0.5) / (counts + 0.5).sum()
    return float((joint * (joint / frequencies).log()).sum())


def decided(num_steps: int) -> Tensor:
    """Levels of which all steps but the last put noise back, and leave tokens decided."""
    return torch.cat([log_levels(num_steps, low=0.3), torch.tensor([PROCESS.t_min]).double()])


@pytest.mark.parametrize("given", [{}, {0: 2}])
def test_a_bridge_between_marginals_loses_the_conditional_multi_information(given):
    """All of it in one step; less in several, in which later tokens are drawn after earlier ones are seen."""
    count, joint = 12_000, exact_joint(given)
    exact, eps = oracle(count, 3, given), noise(count, 3)
    lost = [
        divergence(sample_with(exact, decided(num_steps), eps, solver="bridge"), joint)
        for num_steps in (1, 4, 20)
    ]
    assert multi_information(joint) > 0.3
    assert lost[0] == pytest.approx(multi_information(joint), abs=0.04)
    assert lost[0] > lost[1] + 0.05
    assert lost[2] < 0.02


class JointDraws:
    """An estimator whose prediction is a sequence, drawn from the joint posterior."""

    def __init__(self, exact: MarkovOracle) -> None:
        self.tokens, self.is_noisy = exact.tokens, exact.is_noisy
        self.sequences = all_sequences(6, 3)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor, t: Tensor, state: Any) -> Estimate:
        means = table()[self.sequences]
        logits = -(torch.cdist(x.flatten(1), means.flatten(1)) ** 2) / (2 * t[:, None] ** 2)
        joint = torch.softmax(logits + chain().log_prob(self.sequences), dim=-1)
        drawn = torch.multinomial(joint, 1, generator=self.generator)[:, 0]
        one_hot = torch.nn.functional.one_hot(self.sequences[drawn], 6).double()
        return Estimate(one_hot.log(), one_hot @ table(), None)


@pytest.mark.parametrize("eta", ETAS)
def test_a_bridge_to_a_draw_of_the_joint_posterior_loses_nothing(eta):
    count = 10_000
    exact = JointDraws(oracle(count, 3))
    tokens = sample_with(exact, decided(2), noise(count, 3), solver="bridge", eta=eta)
    assert divergence(tokens, exact_joint({})) < 0.01


# Parts of a step


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_without_noise_it_is_eulers_step(temperature):
    exact, eps, times = oracle(3), noise(3), log_levels(12)
    shared = {"score_temperature": temperature}
    one = sample(
        exact,
        table(),
        eps,
        times,
        SamplingConfig(num_steps=12, solver="euler", exact_temperature=True, **shared),
    )
    still = partial(step_noise, torch.arange(3), like=eps)
    two = sample(
        exact,
        table(),
        eps,
        times,
        SamplingConfig(num_steps=12, solver="ancestral", eta=0.0, **shared),
        noise_at=still,
    )
    torch.testing.assert_close(one.x, two.x)


def test_a_step_by_hand():
    """x' = x0_hat + (down/t)^(1/T)·(x − x0_hat) + up·eps, with up = min(t', η·t'·sqrt(t² − t'²)/t)."""
    exact, x, t, t_next = oracle(2), noise(2) * 3, torch.tensor(3.0).double(), torch.tensor(2.0)
    t_next, drawn = t_next.double(), step_noise(torch.arange(2), 7, noise(2))
    put_back = PutBack(drawn, 0.8, partial(drawn_embeddings, table=table()))
    estimate = exact(x, t.expand(2))
    up = 0.8 * 2 * math.sqrt(9 - 4) / 3
    share = (math.sqrt(4 - up**2) / 3) ** (1 / 0.7)
    slope = Slope(exact, 0.7, is_exact=True)
    found = ancestral_step(put_back, slope, x, t, t_next, None)
    expected = estimate.x0_hat + share * (x - estimate.x0_hat) + up * drawn.eps
    torch.testing.assert_close(found.x, expected)
    x0 = table()[(estimate.logits.exp().cumsum(-1) <= drawn.u[..., None]).sum(-1)]
    found = bridge_step(put_back, slope, x, t, t_next, None)
    torch.testing.assert_close(found.x, x0 + share * (x - x0) + up * drawn.eps)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0, 3.0, 1000.0])
def test_the_two_parts_of_a_level_make_it_up(eta):
    t, t_next = torch.tensor(5.0).double(), torch.tensor(4.0).double()
    down, up = split_level(t, t_next, eta)
    torch.testing.assert_close(down**2 + up**2, t_next**2)
    if eta == 1.0:
        torch.testing.assert_close(down, t_next**2 / t)
    if eta == 1000.0:
        assert float(down) == 0.0


def test_noise_is_put_back_within_its_range_and_not_in_the_last_step():
    asked, times, eps = [], log_levels(8), noise(2)

    def noise_at(step: int) -> StepNoise:
        asked.append(step)
        return step_noise(torch.arange(2), step, eps)

    between = {"noise_above": float(times[6]) * 0.99, "noise_below": float(times[3]) * 1.01}
    for settings, expected in (({}, range(7)), (between, range(3, 7))):
        asked.clear()
        config = SamplingConfig(num_steps=8, solver="ancestral", **settings)
        sample(oracle(2), table(), eps, times, config, noise_at=noise_at)
        assert asked == list(expected)


def test_the_last_step_is_eulers():
    seen, times, eps = [], log_levels(4), noise(2)
    config = SamplingConfig(num_steps=4, solver="bridge")
    found = sample(
        oracle(2),
        table(),
        eps,
        times,
        config,
        noise_at=partial(step_noise, torch.arange(2), like=eps),
        callback=seen.append,
    )
    last = seen[-1].x0_hat
    before = last + (found.x - last) * times[-2] / times[-1]
    expected = euler_step(Slope(oracle(2)), before, times[-2], times[-1], None)
    torch.testing.assert_close(found.x, expected.x)
    torch.testing.assert_close(last, expected.estimate.x0_hat)


def test_a_stochastic_solver_without_noise_is_refused():
    with pytest.raises(ValueError, match="solver bridge puts noise back: give sample its noise_at"):
        sample(oracle(1), table(), noise(1), log_levels(3), SamplingConfig(solver="bridge"))


def test_an_empty_range_of_noise_is_refused():
    with pytest.raises(ValueError, match=r"noise_above \(3.0\) must be below noise_below \(2.0\)"):
        SamplingConfig(solver="ancestral", noise_above=3.0, noise_below=2.0)


# Random numbers


def test_numbers_of_a_sample_do_not_depend_on_its_batch():
    keys, x = torch.tensor([3, 2**62, 11]), torch.zeros(3, 4, 5)
    whole = step_noise(keys, 9, x)
    for row in range(3):
        alone = step_noise(keys[row : row + 1], 9, x[:1])
        assert torch.equal(alone.eps[0], whole.eps[row])
        assert torch.equal(alone.u[0], whole.u[row])


def test_numbers_are_normal_uniform_and_independent_of_key_and_step():
    keys, x = torch.arange(64), torch.zeros(64, 16, 33).double()
    drawn = [step_noise(keys, step, x) for step in range(8)]
    eps = torch.stack([each.eps.flatten(1) for each in drawn])
    u = torch.stack([each.u for each in drawn]).flatten()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    for values, cdf in ((eps.flatten(), torch.special.ndtr), (u, lambda sorted: sorted)):
        ordered = cdf(values.sort().values)
        expected = (torch.arange(len(values)) + 0.5) / len(values)
        # Kolmogorov's bound at a probability of 1e-6.
        assert float((ordered - expected).abs().max()) < 2.7 / math.sqrt(len(values))
    for other in (eps.roll(1, 0), eps.roll(1, 1), eps.roll(1, 2), eps.roll(264, 2)):
        for power in (1, 2):
            centred = eps**power - (eps**power).mean()
            product = centred * (other**power - (other**power).mean())
            bound = 5 * float(product.std()) / math.sqrt(product.numel())
            assert abs(float(product.mean())) < bound
