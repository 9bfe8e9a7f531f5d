"""The Cox–Ingersoll–Ross process of App. B.3: its transition density, its scores and its ODE are exact."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from cdcd.diffusion.simplex import SimplexProcess, shares
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
    x = SimplexProcess(a).add_noise(tokens, 2, at(t, 40_000), generator=generator_for(1))
    c = 1 / (1 - np.exp(-t))
    own, other = x[:, 0].T.numpy()
    assert stats.kstest(2 * c * own, stats.ncx2(2 * a, 2 * c * np.exp(-t)).cdf).pvalue > 1e-3
    assert stats.kstest(2 * c * other, stats.chi2(2 * a).cdf).pvalue > 1e-3
    # Power: the density of another noise level is told apart.
    wrong = stats.ncx2(2 * a, 2 * c * np.exp(-1.05 * t)).cdf
    assert t > 1 or stats.kstest(2 * c * own * 1.03, wrong).pvalue < 1e-3


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
    x = np.linspace(0.01, 3, 17)
    ratio = SimplexProcess(a).log_likelihood_ratio(torch.tensor(x)[None, :, None], at(t, 1))
    exact = density(a, x, t, 1.0) - density(a, x, t, 0.0)
    np.testing.assert_allclose(ratio[0, :, 0].numpy(), exact, atol=1e-8)


@pytest.mark.parametrize("a", [1 / VOCAB, 1.0])
@pytest.mark.parametrize("t", [0.01, 0.3, 2.0])
def test_slope_is_that_of_the_probability_flow(a, t):
    """dx/dt = a − x − 1 − x·score, with the mean of the two exact scores, by autograd."""
    process = SimplexProcess(a)
    x = torch.linspace(0.01, 3, 17, dtype=torch.float64)[None, :, None].requires_grad_()
    evidence = process.log_likelihood_ratio(x, at(t, 1))
    (difference,) = torch.autograd.grad(evidence.sum(), x)
    c = 1 / (1 - np.exp(-t))
    p = torch.rand(x.shape, generator=generator_for(3), dtype=torch.float64)
    score = (a - 1) / x - c + p * difference
    exact = (a - x - 1 - x * score) / x
    torch.testing.assert_close(process.slope(x, at(t, 1), p), exact, rtol=1e-7, atol=1e-7)


def solve(process, prior, count, num_steps, power=1.0):
    """Samples independent tokens by Euler steps in ln x, with the exact posterior as the network."""
    x = process.final_noise((count, 1, VOCAB), generator=generator_for(5)).double()
    times = torch.logspace(np.log10(12), -3, num_steps + 1, dtype=torch.float64)
    for t, t_next in itertools.pairwise(times):
        levels = t.expand(count)
        p = (prior.log() + process.log_likelihood_ratio(x, levels)).softmax(-1)
        x = x * ((t_next - t) * power * process.slope(x, levels, p)).exp()
    return shares(x)


@pytest.mark.parametrize("a", [1 / VOCAB, 1.0])
def test_exact_posterior_gives_the_tokens_of_the_prior(a):
    prior = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.07, 0.03], dtype=torch.float64)
    count = 4000
    samples = solve(SimplexProcess(a), prior, count, 300)
    assert samples.max(-1).values.mean() > 0.98
    frequencies = samples.argmax(-1).flatten().bincount(minlength=VOCAB) / count
    bound = 5 * (prior * (1 - prior) / count).sqrt() + 0.005
    assert ((frequencies - prior).abs() < bound).all()


def test_components_sum_to_one_in_expectation():
    process = SimplexProcess(1 / 50)
    tokens = torch.randint(50, (4000, 1), generator=generator_for(2))
    for t in (0.05, 0.5, 5.0):
        total = process.add_noise(tokens, 50, at(t, 4000), generator=generator_for(1)).sum(-1)
        assert abs(float(total.mean()) - 1) < 5 * float(total.std()) / 4000**0.5
