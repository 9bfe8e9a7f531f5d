"""Every statistic equals its naive reference, token by token, and the closed forms of simple texts."""

import itertools
import math
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.languages import quality
from cdcd.metrics.statistics import (
    counts_by_sample,
    distinct,
    duplicate_share,
    equal_count_entropies,
    first_tokens,
    pooled_entropy,
    repetition,
    sample_entropy,
    stutter,
    text_statistics,
)


@st.composite
def texts(draw):
    """Few tokens and many repeats, under masks with holes."""
    samples, seq = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    tokens = torch.randint(draw(st.integers(1, 4)), (samples, seq), generator=generator)
    share = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    return tokens, torch.rand(samples, seq, generator=generator) < share


def parts(tokens, is_generated):
    return [
        [token for token, counts in zip(row, mask, strict=True) if counts]
        for row, mask in zip(tokens.tolist(), is_generated.tolist(), strict=True)
    ]


def ngrams(tokens, is_generated, n):
    """Per sample the list of its n-grams."""
    seq = tokens.shape[1]
    return [
        [tuple(row[i : i + n]) for i in range(seq - n + 1) if all(mask[i : i + n])]
        for row, mask in zip(tokens.tolist(), is_generated.tolist(), strict=True)
    ]


def mean(values):
    return sum(values) / len(values) if values else 0.0


@given(texts())
@settings(max_examples=150, deadline=None)
def test_entropies_equal_the_naive_reference(text):
    samples = parts(*text)
    pooled = [token for sample in samples for token in sample]
    assert pooled_entropy(*text) == pytest.approx(quality.pooled_entropy(pooled), abs=1e-12)
    expected = mean([quality.pooled_entropy(sample) for sample in samples if sample])
    assert sample_entropy(*text) == pytest.approx(expected, abs=1e-12)


@given(texts(), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_the_first_tokens_are_whole_samples_in_order(text, num_tokens):
    pooled = [token for sample in parts(*text) for token in sample]
    if num_tokens > len(pooled):
        with pytest.raises(ValueError, match=f"num_tokens is {num_tokens}"):
            pooled_entropy(*text, num_tokens=num_tokens)
        return
    kept = parts(*first_tokens(*text, num_tokens))
    assert [token for sample in kept for token in sample] == pooled[:num_tokens]
    assert kept[:-1] == parts(*text)[: len(kept) - 1]
    assert kept[-1]
    expected = quality.pooled_entropy(pooled[:num_tokens])
    assert pooled_entropy(*text, num_tokens=num_tokens) == pytest.approx(expected, abs=1e-12)


@given(texts(), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_ngram_shares_equal_the_naive_reference(text, n):
    by_sample = ngrams(*text, n)
    pooled = [ngram for sample in by_sample for ngram in sample]
    assert distinct(*text, n) == len(set(pooled)) / max(len(pooled), 1)
    shares = [
        sum(ngram in sample[:i] for i, ngram in enumerate(sample)) / len(sample)
        for sample in by_sample
        if sample
    ]
    assert repetition(*text, n) == pytest.approx(mean(shares), abs=1e-12)


@given(texts())
@settings(max_examples=150, deadline=None)
def test_stutter_and_duplicates_equal_the_naive_reference(text):
    pairs = [pair for sample in ngrams(*text, 2) for pair in sample]
    assert stutter(*text) == mean([a == b for a, b in pairs])
    samples = parts(*text)
    repeats = [sample in samples[:i] for i, sample in enumerate(samples)]
    assert duplicate_share(*text) == pytest.approx(mean(repeats), abs=1e-12)


@given(texts())
@settings(max_examples=50, deadline=None)
def test_counts_by_sample_equal_the_naive_reference(text):
    expected = [
        (row, token, count)
        for row, sample in enumerate(parts(*text))
        for token, count in sorted(Counter(sample).items())
    ]
    found = zip(*(part.tolist() for part in counts_by_sample(*text)), strict=True)
    assert list(found) == expected


@given(texts())
@settings(max_examples=50, deadline=None)
def test_all_together_are_the_single_ones(text):
    whole = text_statistics(*text)
    assert (whole.num_samples, whole.num_tokens) == (len(text[0]), int(text[1].sum()))
    assert whole.entropy == pooled_entropy(*text)
    assert whole.sample_entropy == sample_entropy(*text)
    assert whole.distinct == tuple(distinct(*text, n) for n in (1, 2, 3, 4))
    assert whole.repetition == repetition(*text, 4)
    assert whole.stutter == stutter(*text)
    assert whole.duplicate_share == duplicate_share(*text)


def test_closed_forms_of_a_periodic_text():
    period, seq = 5, 20
    tokens = (torch.arange(seq) % period).expand(3, seq).contiguous()
    found = text_statistics(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert found.entropy == pytest.approx(math.log(period), abs=1e-12)
    assert found.sample_entropy == pytest.approx(math.log(period), abs=1e-12)
    windows = [seq - n + 1 for n in (1, 2, 3, 4)]
    assert found.distinct == tuple(period / (3 * count) for count in windows)
    assert found.repetition == pytest.approx((windows[3] - period) / windows[3], abs=1e-12)
    assert found.stutter == 0
    assert found.duplicate_share == pytest.approx(2 / 3)


def test_the_pooled_and_the_sample_entropy_differ_where_samples_differ():
    tokens = torch.tensor([[3] * 8, [7] * 8])
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    assert pooled_entropy(tokens, is_generated) == pytest.approx(math.log(2))
    assert sample_entropy(tokens, is_generated) == 0
    assert stutter(tokens, is_generated) == 1
    assert repetition(tokens, is_generated) == pytest.approx(4 / 5)


def test_what_is_given_does_not_count():
    tokens = torch.tensor([[9, 9, 9, 9, 1, 2, 3, 4], [8, 8, 8, 8, 1, 2, 3, 4]])
    is_generated = (torch.arange(8) >= 4).expand(2, 8).contiguous()
    found = text_statistics(tokens, is_generated)
    assert (found.entropy, found.stutter) == (pytest.approx(math.log(4)), 0)
    assert (found.distinct[3], found.repetition, found.duplicate_share) == (0.5, 0, 0.5)


def test_ngrams_do_not_reach_over_a_given_position():
    tokens = torch.tensor([[1, 2, 0, 3, 4]])
    is_generated = torch.tensor([[True, True, False, True, True]])
    assert distinct(tokens, is_generated, 2) == 1
    assert distinct(tokens, is_generated, 3) == 0


def test_entropies_of_several_sets_are_compared_at_the_smallest_count():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(500, (50, 40), generator=generator)
    is_all = torch.ones_like(tokens, dtype=torch.bool)
    small, large = (tokens[:10], is_all[:10]), (tokens, is_all)
    found = equal_count_entropies({"small": small, "large": large})
    assert found["small"] == found["large"] == pooled_entropy(*small)
    assert pooled_entropy(*large) > found["large"] + 0.3
    assert equal_count_entropies({}) == {}
    with pytest.raises(ValueError, match="0 positions"):
        equal_count_entropies({"none": (tokens, ~is_all), "large": large})


def test_whole_samples_show_less_entropy_than_scattered_positions():
    """The reason for cutting by samples: positions spread over all texts look more diverse."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randint(50, (200, 1), generator=generator) * 20
    tokens = topics + torch.randint(20, (200, 32), generator=generator)
    is_all = torch.ones_like(tokens, dtype=torch.bool)
    scattered = (torch.arange(32) < 2).expand(200, 32)
    assert pooled_entropy(tokens, scattered) > pooled_entropy(tokens, is_all, num_tokens=400) + 0.5


def test_nothing_generated_is_zero_throughout():
    tokens = torch.randint(5, (3, 6))
    found = text_statistics(tokens, torch.zeros_like(tokens, dtype=torch.bool))
    assert (found.num_tokens, found.entropy, found.sample_entropy) == (0, 0, 0)
    assert (found.distinct, found.repetition, found.stutter) == ((0, 0, 0, 0), 0, 0)
    short = torch.zeros(2, 1, dtype=torch.long)
    assert text_statistics(short, short == 0).distinct == (0.5, 0, 0, 0)


def test_large_token_numbers_do_not_overflow():
    tokens = torch.tensor([[0, 2**40, 2**50, 2**50 + 1] * 4])
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    assert distinct(tokens, is_generated, 4) == pytest.approx(4 / 13)


@pytest.mark.parametrize("n", [0, -1])
def test_impossible_values_are_refused(n):
    tokens = torch.zeros(2, 3, dtype=torch.long)
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"n is {n}; .* choose n >= 1"):
        distinct(tokens, is_generated, n)
    with pytest.raises(ValueError, match=f"num_tokens is {n}; choose 1 to the 6"):
        text_statistics(tokens, is_generated, num_tokens=n)
    with pytest.raises(ValueError, match=r"a token is -1; .* mask padding out"):
        pooled_entropy(tokens - 1, is_generated)


def test_five_thousand_long_samples_take_less_than_a_second():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(32_000, (5000, 256), generator=generator)
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    times = []
    for _ in range(3):
        start = time.process_time()
        text_statistics(tokens, is_generated, num_tokens=10**6)
        times.append(time.process_time() - start)
    assert min(times) < 1


def test_a_wrong_variant_would_be_told_apart():
    """The inputs of the references above separate n-grams of all positions from those that count."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(2, (6, 9), generator=generator)
    is_generated = torch.rand(6, 9, generator=generator) < 0.9
    is_all = torch.ones_like(is_generated)
    for statistic in (pooled_entropy, sample_entropy, stutter, repetition):
        assert abs(statistic(tokens, is_generated) - statistic(tokens, is_all)) > 1e-6
    for a, b in itertools.pairwise(range(1, 5)):
        assert distinct(tokens, is_generated, a) != distinct(tokens, is_generated, b)
