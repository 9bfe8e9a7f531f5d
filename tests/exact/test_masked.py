"""Masked diffusion against a Markov chain, whose posterior of masked tokens is exact.

With the oracle in the network's place the bound is the likelihood itself, and samples that are drawn one token
at a time are the chain's.
"""

import itertools
import math

import pytest
import torch
from languages import all_sequences, chain, exact_marginals

from cdcd.diffusion.masked import (
    MaskDraws,
    UnmaskingConfig,
    mask_counts,
    masked_bound,
    masks_for_step,
    masks_of,
    most_masked,
    paired_counts,
)
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.inference.unmasking import unmask
from cdcd.languages import MaskedMarkovOracle, markov_chain
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.networks.masked_text import MaskedTextNetwork
from cdcd.seeding import generator_for

STATES, LENGTH = 3, 5
CHAIN = chain(STATES)
ORACLE = MaskedMarkovOracle(CHAIN)
OPEN = ObjectiveConfig(masking="none")


def sequences(count: int, length: int = LENGTH, seed: int = 0) -> torch.Tensor:
    return CHAIN.sample(count, length, generator=generator_for("masked", seed))


# The oracle


@pytest.mark.parametrize("given", [{}, {0: 2}, {1: 0, 3: 1}])
def test_the_oracle_equals_enumeration(given):
    tokens, is_masked = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool)
    for position, token in given.items():
        tokens[:, position], is_masked[:, position] = token, False
    expected = exact_marginals(CHAIN, 4, given)
    torch.testing.assert_close(ORACLE(tokens, is_masked)[0].exp(), expected)


# The bound


def every_mask(num_given: int = 0) -> torch.Tensor:
    """Returns all masks that hide a token and leave the first ones visible."""
    masks = torch.tensor(list(itertools.product([False, True], repeat=LENGTH - num_given)))
    masks = torch.cat([torch.zeros(len(masks), num_given, dtype=torch.bool), masks], 1)
    return masks[masks.any(1)]


def nats_of_every_mask(network, row: torch.Tensor, num_given: int = 0) -> torch.Tensor:
    masks = every_mask(num_given)
    num_open = torch.full((len(masks),), LENGTH - num_given)
    draws = MaskDraws(is_masked=masks, num_open=num_open)
    return masked_bound(network, row.expand(len(masks), -1), draws).nats


def expected_bound(network, row: torch.Tensor, num_given: int = 0) -> torch.Tensor:
    """Returns the expectation over the draws: k is uniform, and so is the choice of k tokens."""
    n, k = LENGTH - num_given, every_mask(num_given).sum(1)
    chances = torch.tensor([1 / (n * math.comb(n, int(each))) for each in k]).double()
    return chances @ nats_of_every_mask(network, row, num_given)


@pytest.mark.parametrize("num_given", [0, 2])
def test_the_bound_of_exact_posteriors_is_the_likelihood(num_given):
    """Of all tokens, or of the others given a prefix; the power check is the next test."""
    rows = all_sequences(STATES, LENGTH)[::17]
    found = torch.stack([expected_bound(ORACLE, row, num_given) for row in rows])
    given = CHAIN.log_prob(rows[:, :num_given]) if num_given else 0.0
    torch.testing.assert_close(found, given - CHAIN.log_prob(rows))


def test_the_bound_of_a_worse_network_is_larger_by_what_it_does_not_know():
    """Marginals miss all that tokens say about each other; averaged over the data, that is positive."""
    marginals = exact_marginals(CHAIN, LENGTH, {}).log()

    def independent(tokens, is_masked, *, positions=None):
        return marginals.expand(*tokens.shape, -1)

    rows = all_sequences(STATES, LENGTH)
    p = CHAIN.log_prob(rows).exp()
    found = p @ torch.stack([expected_bound(independent, row) for row in rows])
    entropy, of_marginals = -(p @ p.log()), -(marginals.exp() * marginals).sum()
    torch.testing.assert_close(found, of_marginals)
    assert found > entropy + 0.3


def test_the_bound_is_that_of_continuous_time():
    """∫₀¹ E[Σ_masked −ln p] / t dt, with every token masked with probability t, by Gauss–Legendre quadrature."""
    row, masks = sequences(1)[0], every_mask()
    k = masks.sum(1)
    unweighted = nats_of_every_mask(ORACLE, row) * k / LENGTH
    # Polynomials of degree 4 in t.
    nodes = torch.tensor([0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)]).double()
    weights = torch.tensor([5 / 18, 8 / 18, 5 / 18]).double()
    chances = nodes[:, None] ** (k - 1) * (1 - nodes[:, None]) ** (LENGTH - k)
    torch.testing.assert_close(weights @ (chances @ unweighted), expected_bound(ORACLE, row))


@pytest.mark.parametrize("masking", ["none", "mixed"])
def test_drawn_masks_estimate_the_likelihood(masking):
    """Within 5 standard errors; masks that come with probability t, and are weighted as if not, are outside."""
    count, objective = 4_096, ObjectiveConfig(masking=masking)
    rows = sequences(count)
    draws = masks_for_step(count, LENGTH, objective, seed=0, step=0)
    num_given = LENGTH - draws.num_open
    log_prob = CHAIN.log_prob(rows)
    for given in range(1, LENGTH):
        log_prob[num_given == given] -= CHAIN.log_prob(rows[num_given == given][:, :given])
    error = masked_bound(ORACLE, rows, draws).nats + log_prob
    assert error.mean().abs() < 5 * error.std() / math.sqrt(count)
    unweighted = error * draws.is_masked.sum(1) / draws.num_open + log_prob * (
        draws.is_masked.sum(1) / draws.num_open - 1
    )
    assert unweighted.mean().abs() > 20 * error.std() / math.sqrt(count)


def test_only_the_predicted_positions_are_asked_for():
    rows = sequences(64)
    draws = masks_for_step(64, LENGTH, ObjectiveConfig(), seed=1, step=3)
    whole = MaskDraws(is_masked=draws.is_masked, num_open=draws.num_open)
    assert draws.predicted is not None
    assert len(draws.predicted) < rows.numel()
    found, expected = (masked_bound(ORACLE, rows, each) for each in (draws, whole))
    torch.testing.assert_close(found.nats, expected.nats)


# Draws


def test_numbers_of_masked_tokens_are_uniform_and_spread():
    batch, n = 4_000, 10
    generator = generator_for("counts")
    num_open = torch.full((batch,), n)
    counts = paired_counts(num_open, low_discrepancy=True, generator=generator)
    assert torch.bincount(counts, minlength=n + 1)[1:].sub(batch // n).abs().max() <= 2
    first = torch.arange(batch) & 2 == 0
    assert torch.equal(counts[first] + counts[~first], num_open[first] + 1)
    plain = paired_counts(num_open, low_discrepancy=False, generator=generator)
    assert torch.bincount(plain, minlength=n + 1)[1:].sub(batch // n).abs().max() > 5
    ends = mask_counts(torch.tensor([0.0, 1e-9, 0.1, 0.1001, 1.0]), torch.full((5,), n))
    assert ends.tolist() == [1, 1, 2, 2, 10]  # 0.1 in float32 is above a tenth.


def test_masked_tokens_are_any_of_the_open_ones_alike():
    generator, count = generator_for("masks"), 20_000
    is_open = torch.tensor([True, False, True, True, False]).expand(count, -1)
    masks = masks_of(is_open, torch.full((count,), 2), generator=generator)
    assert torch.equal(masks.sum(1), torch.full((count,), 2))
    share = masks.float().mean(0)
    expected = is_open[0] * 2 / 3
    assert (share - expected).abs().max() < 5 * math.sqrt(2 / 9 / count)


@pytest.mark.parametrize(
    "objective",
    [
        OPEN,
        ObjectiveConfig(masking="random"),
        ObjectiveConfig(),
        ObjectiveConfig(masking="prefix"),
        ObjectiveConfig(prefix_length=3),
    ],
    ids=["none", "random", "mixed", "prefix", "fixed prefix"],
)
def test_given_tokens_are_prefixes_and_every_masked_token_is_predicted(objective):
    batch, length = 64, 9
    for step, rows in itertools.product(range(20), (range(64), range(32), range(5, 12))):
        draws = masks_for_step(batch, length, objective, seed=0, step=step, rows=rows)
        assert draws.predicted is not None
        assert len(draws.predicted) == most_masked(rows, length)
        assert draws.is_masked.flatten()[draws.predicted].sum() == draws.is_masked.sum()
        assert draws.is_masked.any(1).all()
        is_given = torch.arange(length) < length - draws.num_open[:, None]
        assert not (draws.is_masked & is_given).any()
        has_prefix = draws.num_open < length
        assert not has_prefix.any() or objective.masking in ("mixed", "prefix")
    assert most_masked(range(64), length) == 32 * (length + 1)


def test_draws_are_of_the_seed_the_step_and_the_row():
    def masks(seed=0, step=0, rows=None):
        return masks_for_step(32, 9, ObjectiveConfig(), seed=seed, step=step, rows=rows).is_masked

    assert torch.equal(masks(rows=range(5, 12)), masks()[5:12])
    assert not torch.equal(masks(), masks(seed=1))
    assert not torch.equal(masks(), masks(step=1))


# Sampling

COUNT = 20_000


def drawn(given=None, **settings) -> torch.Tensor:
    tokens = torch.zeros(COUNT, LENGTH, dtype=torch.long)
    is_masked = torch.ones_like(tokens, dtype=torch.bool)
    for position, token in (given or {}).items():
        tokens[:, position], is_masked[:, position] = token, False
    u, order = torch.rand(2, COUNT, LENGTH, generator=generator_for("unmask"))
    config = UnmaskingConfig(**settings)
    return unmask(ORACLE, tokens, is_masked, config, u=u.double(), order=order.double()).tokens


def furthest(tokens: torch.Tensor, p: torch.Tensor) -> float:
    """Returns by how many standard errors the share of a sequence is furthest from its probability."""
    codes = tokens @ STATES ** torch.arange(LENGTH - 1, -1, -1)
    share = torch.bincount(codes, minlength=STATES**LENGTH) / COUNT
    # At least three sequences are expected of those that are compared.
    error = (p.clamp(min=3 / COUNT) / COUNT).sqrt()
    return float(((share - p) / error).abs().max())


def probabilities(given=None) -> torch.Tensor:
    rows = all_sequences(STATES, LENGTH)
    p = CHAIN.log_prob(rows).exp()
    for position, token in (given or {}).items():
        p = p * (rows[:, position] == token)
    return p / p.sum()


@pytest.mark.parametrize("given", [None, {0: 1, 1: 2}, {1: 0, 3: 2}])
def test_one_token_at_a_time_draws_from_the_chain(given):
    tokens = drawn(given)
    assert furthest(tokens, probabilities(given)) < 5
    for position, token in (given or {}).items():
        assert (tokens[:, position] == token).all()


def test_several_tokens_at_once_do_not():
    """All at once are independent, which is also computed; two steps are between."""
    marginals = exact_marginals(CHAIN, LENGTH, {})
    rows = all_sequences(STATES, LENGTH)
    independent = marginals[torch.arange(LENGTH), rows].prod(1)
    at_once = drawn(num_steps=1)
    assert furthest(at_once, independent) < 5
    p = probabilities()
    far = [furthest(each, p) for each in (at_once, drawn(num_steps=2), drawn(num_steps=LENGTH))]
    assert far[0] > far[1] > 10 > 5 > far[2]


def test_the_most_confident_first_is_not_the_chain():
    """The order then tells of the tokens: likely sequences come too often."""
    assert furthest(drawn(order="confidence"), probabilities()) > 10


@pytest.mark.parametrize("settings", [{"temperature": 0.5}, {"nucleus": 0.6}])
def test_temperature_and_nucleus_shape_what_is_drawn(settings):
    """Of the first token alone, the others given: its exact distribution is shaped."""
    given = {1: 0, 2: 1, 3: 1, 4: 0}
    p = exact_marginals(CHAIN, LENGTH, given)[0]
    if "nucleus" in settings:
        ordered, order = p.sort(descending=True)
        kept = ordered.cumsum(0) - ordered < settings["nucleus"]
        p = torch.zeros_like(p).scatter(0, order, ordered * kept)
    else:
        p = p.square()
    p = p / p.sum()
    share = torch.bincount(drawn(given, **settings)[:, 0], minlength=STATES) / COUNT
    assert ((share - p) / (p.clamp(min=1e-9) / COUNT).sqrt()).abs().max() < 5


# Learning


def test_a_small_network_comes_near_the_oracle_and_nowhere_below_it():
    """Of the 0.45 nats a token that its neighbours say, it learns all but 0.02 in 300 steps.

    With all masked it knows which position is which, which rotary positions alone do not tell (0.18 away).
    """
    torch.manual_seed(0)
    length, batch, steps = 8, 128, 300
    language = markov_chain(4, seed=1, concentration=0.5)
    size = NetworkConfig(num_blocks=2, width=32, num_heads=2, mlp_ratio=2)
    model = MaskedTextNetwork(size, vocab_size=4, length=length)
    adam = torch.optim.Adam(model.parameters(), lr=4e-3, fused=True)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 4e-3 * min(1.0, 3 * (1 - step / steps))
        rows = language.sample(batch, length, generator=generator_for("learning", step))
        draws = masks_for_step(batch, length, ObjectiveConfig(), seed=0, step=step)
        (masked_bound(model, rows, draws).nats.sum() / draws.num_open.sum()).backward()
        adam.step()
        adam.zero_grad()
    rows = language.sample(4_096, length, generator=generator_for("held out"))
    draws = masks_for_step(len(rows), length, OPEN, seed=1, step=0)
    oracle = MaskedMarkovOracle(language)
    with torch.no_grad():
        found, exact = (masked_bound(each, rows, draws).nats for each in (model, oracle))
    gap, num_masked = (found - exact) / length, draws.is_masked.sum(1)
    for chosen in (num_masked > 0, num_masked < 3, num_masked == length):
        error = gap[chosen].std() / math.sqrt(int(chosen.sum()))
        assert gap[chosen].mean() < 0.08, "far from the oracle"
        assert gap[chosen].mean() > -4 * error, "better than possible: the answer leaks"
