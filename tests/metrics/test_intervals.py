"""Intervals cover what they claim to, and frontiers are read between their points only."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.metrics.entropy import pooled_entropy
from cdcd.metrics.intervals import (
    Interval,
    bootstrap,
    interpolate_at,
    mean_and_error,
    pooled_entropy_interval,
    ratio_interval,
    share_interval,
)

TRIALS = 400
SPREAD = 4 * math.sqrt(0.95 * 0.05 / TRIALS)
"""Four standard errors of a coverage of 0.95 measured over the trials."""


def mean_of(values: torch.Tensor) -> float:
    return float(values.mean())


def coverage(intervals: list[Interval], truth: float) -> float:
    return sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)


def test_the_bootstrap_of_a_gaussian_mean_is_the_normal_interval():
    values = 3 + 2 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    found = bootstrap([values], mean_of, num_resamples=4000, seed=1)
    half = 1.96 * float(values.std(correction=0)) / math.sqrt(500)
    assert found.value == mean_of(values)
    assert found.low == pytest.approx(found.value - half, abs=0.05 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.05 * half)


def test_the_bootstrap_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(TRIALS, 60, generator=generator)
    one = torch.ones(60)
    intervals = [ratio_interval(row, one, num_resamples=400, seed=i) for i, row in enumerate(draws)]
    assert abs(coverage(intervals, 0.0) - 0.95) < SPREAD + 0.01
    half = [Interval(i.value, (i.value + i.low) / 2, (i.value + i.high) / 2) for i in intervals]
    assert abs(coverage(half, 0.0) - 0.95) > 2 * SPREAD


def test_a_ratio_resamples_numerators_and_denominators_together():
    """NLL grows with length: the ratio is far more certain than independent parts would be."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 100, (300,), generator=generator)
    nll = 3 * counts + torch.randn(300, generator=generator)
    found = ratio_interval(nll, counts)
    assert found.value == pytest.approx(float(nll.sum() / counts.sum()))
    ratio = float(nll.sum()) / float(counts.sum())
    residuals = nll - ratio * counts
    half = 1.96 * float(residuals.square().sum().sqrt()) / float(counts.sum())
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    apart = ratio_interval(nll, counts[torch.randperm(300, generator=generator)])
    assert apart.high - apart.low > 10 * (found.high - found.low)


def test_a_ratio_is_a_bootstrap_of_both_sums():
    generator = torch.Generator().manual_seed(0)
    above, below = torch.rand(2, 50, generator=generator, dtype=torch.double)
    general = bootstrap([above, below], lambda a, b: float(a.sum() / b.sum()), seed=5)
    ratio = ratio_interval(above, below, seed=5)
    for name in ("value", "low", "high"):
        assert getattr(ratio, name) == pytest.approx(getattr(general, name), abs=1e-12)
    assert ratio_interval(above, below, seed=6) != ratio


def topical_texts(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixty texts of unequal lengths; half of a text's tokens are of its own topic."""
    weights = 1 / torch.arange(1, 2001, dtype=torch.double)
    drawn = torch.multinomial(weights, 60 * 48, replacement=True, generator=generator)
    topics = 100 * torch.randint(20, (60, 1), generator=generator)
    is_topical = torch.rand(60, 48, generator=generator) < 0.5
    tokens = torch.where(is_topical, drawn.view(60, 48) + topics, drawn.view(60, 48)) % 2000
    lengths = torch.randint(12, 49, (60, 1), generator=generator)
    return tokens, torch.arange(48) < lengths


def linearised_interval(tokens: torch.Tensor, is_generated: torch.Tensor) -> Interval:
    """The entropy as a mean surprise whose probabilities are taken as known."""
    shares = torch.bincount(tokens[is_generated], minlength=2000) / is_generated.sum()
    surprise = (-shares[tokens].log()).masked_fill(~is_generated, 0).sum(1)
    return ratio_interval(surprise, is_generated.sum(1), num_resamples=400)


def test_the_entropy_interval_covers_where_simpler_ones_do_not():
    generator = torch.Generator().manual_seed(0)
    texts = [topical_texts(generator) for _ in range(TRIALS)]
    intervals = [pooled_entropy_interval(*text) for text in texts]
    truth = sum(interval.value for interval in intervals) / TRIALS
    assert abs(coverage(intervals, truth) - 0.95) < SPREAD
    linearised = [linearised_interval(*text) for text in texts]
    assert coverage(linearised, truth) < 0.95 - SPREAD
    resampled = [bootstrap(text, pooled_entropy, num_resamples=100) for text in texts[:20]]
    assert coverage(resampled, truth) < 0.5


def test_the_entropy_interval_is_the_jackknife():
    tokens, is_generated = topical_texts(torch.Generator().manual_seed(1))
    tokens, is_generated = tokens[:12], is_generated[:12]
    without = torch.tensor(
        [
            pooled_entropy(
                *(torch.cat([part[:i], part[i + 1 :]]) for part in (tokens, is_generated))
            )
            for i in range(12)
        ],
        dtype=torch.double,
    )
    error = math.sqrt(11 / 12 * float((without - without.mean()).square().sum()))
    found = pooled_entropy_interval(tokens, is_generated)
    assert found.value == pooled_entropy(tokens, is_generated)
    assert found.high - found.value == pytest.approx(1.959964 * error, rel=1e-6)
    assert found.value - found.low == pytest.approx(1.959964 * error, rel=1e-6)


def test_equal_texts_have_a_certain_entropy():
    tokens = torch.arange(6).expand(4, 6).contiguous()
    found = pooled_entropy_interval(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert found.low == pytest.approx(math.log(6), abs=1e-6)
    assert found.high == pytest.approx(math.log(6), abs=1e-6)


def test_frontiers_by_hand():
    rising = [(4.0, 2.0), (5.0, 3.0), (6.0, 5.0)]
    assert interpolate_at(rising, 4.5) == 2.5
    assert interpolate_at(rising, 5.0) == 3.0
    assert interpolate_at(rising, 5.75) == 4.5
    assert interpolate_at(rising[::-1], 5.75) == 4.5
    for outside in (3.99, 6.01):
        assert interpolate_at(rising, outside) is None
    assert (interpolate_at(rising, 4.0), interpolate_at(rising, 6.0)) == (2.0, 5.0)
    assert interpolate_at([(4.0, 2.0)], 4.0) == 2.0
    assert interpolate_at([], 4.0) is None


def test_a_frontier_that_turns_back_gives_its_lowest_value():
    turning = [(4.0, 2.0), (6.0, 4.0), (4.0, 8.0)]
    assert interpolate_at(turning, 5.0) == 3.0
    assert interpolate_at(turning[::-1], 5.0) == 3.0
    assert interpolate_at([(4.0, 3.0), (4.0, 2.0), (5.0, 9.0)], 4.0) == 2.0
    by_entropy = sorted([(4.0, 2.0), (6.0, 4.0), (5.2, 9.0)])
    assert interpolate_at([(4.0, 2.0), (6.0, 4.0), (5.2, 9.0)], 5.0) == 3.0
    assert interpolate_at(by_entropy, 5.0) != 3.0


@given(st.lists(st.tuples(st.floats(3, 7), st.floats(1, 9)), max_size=6), st.floats(3, 7))
@settings(max_examples=200, deadline=None)
def test_a_value_lies_within_the_frontier(points, entropy):
    found = interpolate_at(points, entropy)
    reached = bool(points) and min(points)[0] <= entropy <= max(points)[0]
    assert (found is not None) == reached
    if found is not None:
        assert min(nll for _, nll in points) - 1e-9 <= found <= max(nll for _, nll in points) + 1e-9


def test_mean_and_error_of_known_values():
    assert mean_and_error([1.0, 2.0, 3.0, 4.0]) == (2.5, pytest.approx(math.sqrt(5 / 3 / 4)))
    assert mean_and_error([7.0, 7.0]) == (7.0, 0.0)


def test_impossible_values_are_refused():
    values = torch.arange(5.0)
    with pytest.raises(ValueError, match="1 samples show no spread"):
        bootstrap([values[:1]], mean_of)
    with pytest.raises(ValueError, match="num_resamples is 10;"):
        ratio_interval(values, values, num_resamples=10)
    with pytest.raises(ValueError, match=r"sum to 0\.0"):
        ratio_interval(values, 0 * values)
    with pytest.raises(ValueError, match="not finite"):
        interpolate_at([(math.nan, 1.0)], 4.0)
    with pytest.raises(ValueError, match="1 values have no standard error"):
        mean_and_error([1.0])
    with pytest.raises(ValueError, match="1 samples show no spread"):
        pooled_entropy_interval(torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3) > 0)


@pytest.mark.parametrize("share", [0.5, 0.83, 0.98])
def test_intervals_of_shares_cover_the_share(share):
    generator, total = torch.Generator().manual_seed(0), 500
    counts = (torch.rand(TRIALS, total, generator=generator) < share).sum(1).tolist()
    intervals = [share_interval(count, total) for count in counts]
    assert coverage(intervals, share) > 0.95 - SPREAD
    # Power: the normal interval fails near 0, where it is a point for a count of 0.
    assert share_interval(0, total).high > 0.005
    # Each bound p has (p − share)² = 1.96² p (1 − p) / total.
    for bound in (share_interval(100, total).low, share_interval(100, total).high):
        assert (bound - 0.2) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / total)
    with pytest.raises(ValueError, match="3 of 2 is no share"):
        share_interval(3, 2)
