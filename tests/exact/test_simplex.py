"""The Cox–Ingersoll–Ross process of App. B.3: its transition density, its scores and its ODE are exact."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from cdcd.diffusion.simplex import SimplexProcess, shares, signal
from cdcd.seeding import generator_for

VOCAB = 6


def density(a, x, t, x0):
    """The textbook's transition density: noncentral chi-squared."""
    c = 1 / (1 - np.exp(-t))
    spread = stats.ncx2(2 * a, 2 * c * x0 * np.exp(-t)) if x0 else stats.chi2(2 * a)
    return spread.logpdf(2 * c * x) + np.log(2 * c)


def at(t, *shape):
    return torch.full(shape, t, dtype=torch.float64)


@pytest.mark.parametrize("a", [1 / VOCAB, 1.0, 2.5])
@pytest.mark.parametrize("t", [0.02, 0.3, 2.0])
def test_noise_has_the_transition_density(a, t):
    tokens = torch.zeros(40_000, 1, dtype=torch.long)
    log_y = SimplexProcess(a).add_noise(tokens, 2, at(t, 40_000), generator=generator_for(1))
    c = 1 / (1 - np.exp(-t))
    own, other = log_y.exp()[:, 0].T.numpy()
    assert stats.kstest(2 * own, stats.ncx2(2 * a, 2 * c * np.exp(-t)).cdf).pvalue > 1e-3
    assert stats.kstest(2 * other, stats.chi2(2 * a).cdf).pvalue > 1e-3
    # Power: the density of another noise level is told apart.
    wrong = stats.ncx2(2 * a, 2 * c * np.exp(-1.05 * t)).cdf
    assert t > 1 or stats.kstest(2 * own * 1.03, wrong).pvalue < 1e-3


def test_small_components_are_drawn_below_the_smallest_number():
    """a·ln y is nearly the logarithm of a uniform variable."""
    log_y = SimplexProcess(1e-4).final_noise((100, 10, 10), generator=generator_for(1))
    assert (log_y < -1000).float().mean() > 0.8
    spread = (1e-4 * log_y).exp().flatten().numpy()
    assert stats.kstest(spread, "uniform").pvalue > 1e-3


def test_density_satisfies_the_kolmogorov_equation():
    """dp/dt = −d/dx[(a − x) p] + d²/dx²[x p], by finite differences of the density that is tested above."""
    a, x, t, h = 1.7, np.linspace(0.3, 3, 9), 0.4, 1e-4

    def p(x, t):
        return np.exp(density(a, x, t, 1.0))

    def drift(x):
        return (a - x) * p(x, t)

    def spread(x):
        return x * p(x, t)

    in_time = (p(x, t + h) - p(x, t - h)) / (2 * h)
    in_space = -(drift(x + h) - drift(x - h)) / (2 * h)
    in_space += (spread(x + h) - 2 * spread(x) + spread(x - h)) / h**2
    np.testing.assert_allclose(in_time, in_space, atol=1e-5)


@pytest.mark.parametrize("a", [1 / VOCAB, 1.0, 2.5])
@pytest.mark.parametrize("t", [0.02, 0.3, 2.0])
def test_evidence_is_the_ratio_of_the_densities(a, t):
    x = np.concatenate([[1e-30, 1e-12], np.linspace(0.01, 3, 17)])
    log_y = torch.tensor(np.log(x / (1 - np.exp(-t))))[None, :, None]
    ratio = SimplexProcess(a).log_likelihood_ratio(log_y, at(t, 1))
    exact = density(a, x, t, 1.0) - density(a, x, t, 0.0)
    np.testing.assert_allclose(ratio[0, :, 0].numpy(), exact, atol=1e-8)


@pytest.mark.parametrize("a", [1 / VOCAB, 1.0])
@pytest.mark.parametrize("t", [0.01, 0.3, 2.0])
def test_slope_is_that_of_the_probability_flow(a, t):
    """dx/dt = a − x − 1 − x·score, with the mean of the two exact scores, by autograd."""
    process, c = SimplexProcess(a), 1 / (1 - np.exp(-t))
    x = torch.linspace(0.01, 3, 17, dtype=torch.float64)[None, :, None].requires_grad_()
    evidence = process.log_likelihood_ratio((c * x).log(), at(t, 1))
    (difference,) = torch.autograd.grad(evidence.sum(), x)
    p = torch.rand(x.shape, generator=generator_for(3), dtype=torch.float64)
    score = (a - 1) / x - c + p * difference
    d_log_x = (a - x - 1 - x * score) / x
    # y = c·x, and ds/dt = −s·c; d ln c / dt = −s.
    s = signal(at(t, 1))
    found = -s * c * process.slope((c * x).log(), at(t, 1), p)
    torch.testing.assert_close(found, d_log_x - s, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("a", [1 / 1000, 1 / VOCAB, 1.0])
def test_steps_solve_the_ode_to_first_order(a):
    """Against the slope, followed by tiny steps, for components from e^−200 on and given probabilities."""
    process = SimplexProcess(a)
    log_y = torch.tensor([-200.0, -20.0, -1.0, 0.5, 3.0], dtype=torch.float64)[None, None]
    p = torch.tensor([0.3, 0.9, 0.01, 1.0, 0.5], dtype=torch.float64)[None, None]

    def solved(num_steps):
        times = torch.logspace(0, -1.5, num_steps + 1, dtype=torch.float64)[:, None]
        state = log_y
        for t, t_next in itertools.pairwise(times):
            state = process.step(state, t, t_next, p)
        return state

    exact = solved(1600)
    coarse, fine = ((solved(n) - exact).abs().max().item() for n in (50, 100))
    assert fine < 0.05
    assert 0.8 < math.log2(coarse / fine) < 1.2
    t, t_next = at(0.5, 1), at(0.5 - 1e-7, 1)
    change = (process.step(log_y, t, t_next, p) - log_y) / (signal(t_next) - signal(t))
    torch.testing.assert_close(change, process.slope(log_y, t, p), rtol=1e-3, atol=1e-5)


def solve(process, prior, count, num_steps):
    """Samples independent tokens with the exact posterior as the network."""
    shape = (count, 1, len(prior))
    log_y = process.final_noise(shape, dtype=torch.float64, generator=generator_for(5))
    times = torch.logspace(np.log10(12), -2, num_steps + 1, dtype=torch.float64)
    for t, t_next in itertools.pairwise(times):
        t, t_next = t.expand(count), t_next.expand(count)
        p = (prior.log() + process.log_likelihood_ratio(log_y, t)).softmax(-1)
        log_y = process.step(log_y, t, t_next, p)
    return shares(log_y)


def prior_of(vocab_size):
    weights = torch.arange(1, vocab_size + 1, dtype=torch.float64) ** -0.8
    return weights / weights.sum()


@pytest.mark.parametrize(("vocab_size", "a"), [(6, 1 / 6), (6, 1.0), (30, 1 / 60)])
def test_exact_posterior_gives_the_tokens_of_the_prior(vocab_size, a):
    prior, count = prior_of(vocab_size), 1500
    samples = solve(SimplexProcess(a), prior, count, 150)
    assert samples.max(-1).values.mean() > 0.94
    frequencies = samples.argmax(-1).flatten().bincount(minlength=vocab_size) / count
    bound = 5 * (prior * (1 - prior) / count).sqrt() + 0.005
    assert ((frequencies - prior).abs() < bound).all()


def test_components_sum_to_one_in_expectation():
    process = SimplexProcess(1 / 50)
    tokens = torch.randint(50, (4000, 1), generator=generator_for(2))
    for t in (0.05, 0.5, 5.0):
        log_y = process.add_noise(tokens, 50, at(t, 4000), generator=generator_for(1))
        total = (1 - math.exp(-t)) * log_y.exp().sum(-1)
        assert abs(float(total.mean()) - 1) < 5 * float(total.std()) / 4000**0.5
