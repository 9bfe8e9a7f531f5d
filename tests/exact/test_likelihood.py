"""Likelihoods on the exact oracle: the chain rule to rounding, the bound with its gap, the denoising score."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from languages import all_sequences, chain, table
from torch import Tensor

from cdcd.diffusion.estimator import NetworkEstimator
from cdcd.diffusion.likelihood import (
    chain_rule,
    denoising_score,
    diffusion_bound,
    left_to_right,
    random_order,
    stratified,
)
from cdcd.diffusion.process import ProcessConfig, add_noise
from cdcd.diffusion.warping import NoiseSchedule, TimeWarp, WarpConfig
from cdcd.languages import MarkovOracle
from cdcd.seeding import generator_for

STATES, LENGTH, DIM = 3, 4, 4
ROWS, REPEATS, LEVELS = 6, 700, 24
MAX_Z = 4.5


def oracle_for(tokens: Tensor, is_noisy: Tensor) -> MarkovOracle:
    return MarkovOracle(chain(STATES), table(STATES, DIM), tokens, is_noisy)


def texts(count: int = ROWS, given: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of the chain, whose first tokens are given."""
    tokens = chain(STATES).sample(count, LENGTH, generator=generator_for("texts"))
    is_noisy = torch.ones_like(tokens, dtype=torch.bool)
    is_noisy[:, :given] = False
    return tokens, is_noisy


def draws(shape: tuple[int, ...], name: str = "draws") -> Iterator[Tensor]:
    generator = generator_for(name)
    while True:
        yield torch.randn(shape, generator=generator, dtype=torch.float64)


def exact_nats(tokens: Tensor, given: int) -> Tensor:
    """−ln p of the tokens that are not given, under the chain itself."""
    model = chain(STATES)
    before = model.log_prob(tokens[:, :given]) if given else 0.0
    return before - model.log_prob(tokens)


def log_joint(tokens: Tensor, is_noisy: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """ln p(noisy tokens | x, given tokens), from the densities of x."""
    normal = torch.distributions.Normal(table(STATES, DIM)[tokens], t[:, None, None])
    log_q = (normal.log_prob(x).sum(-1) * is_noisy).sum(1)
    # The oracle's density is that of x and the given tokens.
    density = oracle_for(tokens, is_noisy).log_density(x, t)
    return log_q + chain(STATES).log_prob(tokens) - density


# The chain rule


ORDERS = ["left to right", "random"]


def ranks_of(order: str, is_noisy: Tensor) -> Tensor:
    if order == "left to right":
        return left_to_right(is_noisy)
    return random_order(is_noisy, torch.rand(is_noisy.shape, generator=generator_for("order")))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("given", [0, 2])
@pytest.mark.parametrize("level", [0.7, 5.0, 1e12])
def test_chain_rule_is_the_joint_posterior_in_any_order(order, given, level):
    """For whatever x at whatever t; where x hides everything, it is the chain's own likelihood."""
    tokens, is_noisy = texts(50, given)
    t = torch.full((50,), level).double()
    x = level * next(draws((50, LENGTH, DIM)))
    nats = chain_rule(oracle_for, tokens, ranks_of(order, is_noisy), x, t).sum(1)
    torch.testing.assert_close(nats, -log_joint(tokens, is_noisy, x, t))
    if level > 1e9:
        torch.testing.assert_close(nats, exact_nats(tokens, given))


def test_orders_rank_the_noisy_positions():
    is_noisy = torch.tensor([[False, True, True, True], [True, False, True, False]])
    assert left_to_right(is_noisy).tolist() == [[-1, 0, 1, 2], [0, -1, 1, -1]]
    u = torch.tensor([[0.1, 0.9, 0.2, 0.5], [0.9, 0.1, 0.3, 0.2]])
    assert random_order(is_noisy, u).tolist() == [[-1, 2, 0, 1], [1, -1, 0, -1]]


class Mixer(torch.nn.Module):
    """A network with random weights, of everything that it is shown."""

    def forward(self, x: Tensor, t: Tensor, *, c: Tensor, x0_prev: Tensor, is_noisy: Tensor):
        weights = torch.randn(3 * DIM + 1, STATES, generator=generator_for("mixer")).double() / 3
        h = torch.cat([x, 3 * c, x0_prev, is_noisy[..., None].to(x)], -1)
        return (h + h.sin().cumsum(1) + h.cos().mean(1, keepdim=True)) @ weights


def mixer_for(tokens: Tensor, is_noisy: Tensor) -> NetworkEstimator:
    embeddings = table(STATES, DIM)
    return NetworkEstimator(network=Mixer(), table=embeddings, tokens=tokens, is_noisy=is_noisy)


@pytest.mark.parametrize("self_conditioned", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_chain_rule_of_a_network_sums_to_one_over_all_texts(order, self_conditioned):
    tokens = all_sequences(STATES, LENGTH)
    is_noisy = torch.ones_like(tokens, dtype=torch.bool)
    ranks = ranks_of(order, is_noisy[:1]).expand_as(tokens)
    t = torch.ones(len(tokens)).double()
    eps = next(draws((1, LENGTH, DIM)))

    def total(x: Tensor) -> float:
        asked = {"self_conditioned": self_conditioned}
        nats = chain_rule(mixer_for, tokens, ranks, x.expand(len(tokens), -1, -1), t, **asked)
        return float((-nats.sum(1)).exp().sum())

    assert total(eps) == pytest.approx(1, abs=1e-9)
    # Power: with the tokens in x it is no distribution.
    leaked = add_noise(table(STATES, DIM)[tokens], t, eps.expand(len(tokens), -1, -1))
    assert abs(total(leaked) - 1) > 0.01


def test_self_conditioning_shows_the_first_prediction():
    tokens, is_noisy = texts()
    t, ranks = torch.full((ROWS,), 9.0).double(), left_to_right(is_noisy)
    x = next(draws((ROWS, LENGTH, DIM)))
    with_state, without = (
        chain_rule(mixer_for, tokens, ranks, x, t, self_conditioned=each) for each in (True, False)
    )
    first = mixer_for(tokens, is_noisy)(x, t, None)
    second = mixer_for(tokens, is_noisy)(x, t, first.state)
    for nats, estimate in ((with_state, second), (without, first)):
        expected = -estimate.logits[:, 0].log_softmax(-1).gather(1, tokens[:, :1])[:, 0]
        torch.testing.assert_close(nats[:, 0], expected)


# The bound


def schedule(bins: Any, t_min: float) -> NoiseSchedule:
    """A warp that has moved: every density is another."""
    warp = TimeWarp(WarpConfig(bins=bins, num_bins=8), ProcessConfig(t_min=t_min, t_max=20.0))
    warp.average_out.add_(torch.linspace(0.6, -0.6, 8).flip(0) if bins == "log" else 0.0)
    if bins == "linear":
        warp.average_out[0] += 2.0
    return warp.double().schedule()


def gaps(bins: str, t_min: float, given: int) -> Tensor:
    """Bound less exact NLL, for several draws of each sequence."""
    tokens, is_noisy = (each.repeat_interleave(REPEATS, 0) for each in texts(given=given))
    offsets = torch.rand(len(tokens), generator=generator_for("u"), dtype=torch.float64)
    bound = diffusion_bound(
        oracle_for(tokens, is_noisy),
        table(STATES, DIM),
        tokens,
        is_noisy,
        schedule(bins, t_min),
        stratified(LEVELS, offsets),
        draws((len(tokens), LENGTH, DIM)),
    )
    return (bound.total - exact_nats(tokens, given)).view(ROWS, REPEATS)


def known_gaps(t_min: float, given: int) -> Tensor:
    """The gap that an exact oracle leaves: independent tokens at t_min, and another start at t_max."""
    tokens, is_noisy = (each.repeat_interleave(REPEATS, 0) for each in texts(given=given))
    exact, x0 = oracle_for(tokens, is_noisy), table(STATES, DIM)[tokens]
    noise = draws((len(tokens), LENGTH, DIM), "known")
    low, high = (torch.full((len(tokens),), t).double() for t in (t_min, 20.0))
    x = add_noise(x0, low, next(noise))
    each = exact(x, low).logits.gather(-1, tokens[..., None])[..., 0] * is_noisy
    at_end = log_joint(tokens, is_noisy, x, low) - each.sum(1)
    x = add_noise(x0, high, next(noise))
    start = torch.distributions.Normal(0.0, 20.0).log_prob(x).sum(-1) * is_noisy
    log_p_given = chain(STATES).log_prob(tokens) + exact_nats(tokens, given)
    at_start = exact.log_density(x, high) - log_p_given - start.sum(1)
    return (at_end + at_start).view(ROWS, REPEATS)


def z_scores(found: Tensor, expected: Tensor) -> Tensor:
    variance = (found.var(1) + expected.var(1)) / REPEATS
    return (found.mean(1) - expected.mean(1)) / variance.sqrt()


@pytest.mark.parametrize(
    ("bins", "t_min", "given"),
    [("log", 0.2, 0), ("log", 1.5, 0), ("linear", 0.4, 0), ("log", 0.8, 2)],
)
def test_bound_of_the_oracle_exceeds_the_exact_likelihood_by_the_known_gap(bins, t_min, given):
    """For every sequence by itself; nearly tight at low t_min, well above the truth at high t_min."""
    found, known = gaps(bins, t_min, given), known_gaps(t_min, given)
    assert z_scores(found, known).abs().max() < MAX_Z
    if t_min == 0.2:
        assert known.mean() < 0.03
    if t_min == 1.5:
        assert known.mean() > 0.1
        assert z_scores(found, 0 * known).mean() > 1, "the gap shows in these draws"


@pytest.mark.parametrize("wrong", ["the density of r", "a power of t less", "half the weight"])
def test_wrong_weights_break_the_same_bound(monkeypatch, wrong):
    right = NoiseSchedule.density_in_t
    wrongs = {
        "the density of r": NoiseSchedule.density,
        "a power of t less": lambda self, t: right(self, t) / t,
        "half the weight": lambda self, t: 2 * right(self, t),
    }
    monkeypatch.setattr(NoiseSchedule, "density_in_t", wrongs[wrong])
    assert z_scores(gaps("log", 0.2, 0), known_gaps(0.2, 0)).abs().max() > MAX_Z


def test_prior_term_is_the_divergence_of_two_normals():
    tokens, is_noisy = texts(given=1)
    bound = diffusion_bound(
        oracle_for(tokens, is_noisy),
        table(STATES, DIM),
        tokens,
        is_noisy,
        schedule("log", 0.2),
        torch.full((1, ROWS), 0.5).double(),
        draws((ROWS, LENGTH, DIM)),
    )
    mean = table(STATES, DIM)[tokens]
    normal = torch.distributions.Normal
    each = torch.distributions.kl_divergence(normal(mean, 20.0), normal(0 * mean, 20.0)).sum(-1)
    torch.testing.assert_close(bound.prior, (each * is_noisy).sum(1))


@pytest.mark.parametrize("bins", ["log", "linear"])
def test_density_in_t_is_the_slope_of_uniform_time(bins):
    warp = schedule(bins, 0.3)
    t = torch.tensor([0.35, 1.1, 4.0, 17.0]).double()
    slope = (warp.uniform_time(t + 1e-6) - warp.uniform_time(t - 1e-6)) / 2e-6
    torch.testing.assert_close(warp.density_in_t(t), slope, rtol=1e-5, atol=1e-9)


def test_uniform_times_lie_one_in_each_part():
    u = stratified(8, torch.rand(50, generator=generator_for("offsets")))
    assert torch.equal((u * 8).floor(), torch.arange(8.0)[:, None].expand(8, 50))


# The denoising score


def scores(tokens: Tensor, levels: list[float]) -> Tensor:
    is_noisy = torch.ones_like(tokens, dtype=torch.bool)
    exact = MarkovOracle(chain(), table(), tokens, is_noisy)
    t, eps = torch.tensor(levels).double(), next(draws((1, 12, 16), "score"))
    return denoising_score(exact, table(), tokens, is_noisy, t, eps)


def auroc(right: Tensor, wrong: Tensor) -> float:
    """How often a right text has the higher score; ties count half."""
    difference = right[:, None] - wrong[None]
    return float(((difference > 0).double() + (difference >= 0).double()).mean() / 2)


def right_and_wrong() -> tuple[Tensor, Tensor]:
    """Sequences of the chain, and the same with a third of their tokens replaced by others."""
    right = chain().sample(200, 12, generator=generator_for("right"))
    generator = generator_for("wrong")
    positions = torch.rand(200, 12, generator=generator).argsort(1)[:, :4]
    shift = torch.randint(1, 6, (200, 4), generator=generator)
    return right, right.scatter(1, positions, (right.gather(1, positions) + shift) % 6)


def test_denoising_score_ranks_texts_of_the_chain_above_corrupted_ones():
    """Nearly as well as the chain's own likelihood, which has 0.93."""
    right, wrong = right_and_wrong()
    levels = [1.0, 1.5, 2.0]
    assert auroc(scores(right, levels), scores(wrong, levels)) > 0.85
    # Power: behind too little noise to hide anything every text is recognised.
    assert auroc(scores(right, [0.1]), scores(wrong, [0.1])) < 0.55


def test_denoising_score_is_the_mean_over_levels_draws_and_scored_positions():
    tokens, is_noisy = texts(given=1)
    is_scored = is_noisy & (torch.arange(LENGTH) < 3)
    levels, eps = torch.tensor([0.5, 2.0]).double(), next(draws((3, LENGTH, DIM)))
    exact = oracle_for(tokens, is_noisy)
    terms = []
    for level, noise in product(levels, torch.cat([eps, -eps])):
        t = level.expand(ROWS)
        logits = exact(table(STATES, DIM)[tokens] + level * noise, t).logits
        log_p = logits.gather(-1, tokens[..., None])[..., 0]
        terms.append(torch.where(is_scored, log_p, 0.0).sum(1) / 2)
    found = denoising_score(exact, table(STATES, DIM), tokens, is_scored, levels, eps)
    torch.testing.assert_close(found, torch.stack(terms).mean(0))


def test_denoising_score_does_not_depend_on_the_batch():
    right, _ = right_and_wrong()
    whole = scores(right, [3.0])
    parts = torch.cat([scores(part, [3.0]) for part in right.split(70)])
    torch.testing.assert_close(parts, whole)
    assert whole.unique().numel() > 100
