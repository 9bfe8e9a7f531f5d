"""Every statistic equals its naive reference, token by token, and the closed forms of simple texts."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from work import count_calls

from cdcd.metrics.entropy import (
    LONGEST_NGRAM,
    counts_by_sample,
    duplicate_share,
    entropy,
    first_tokens,
    pooled_entropy,
    sample_entropy,
    text_statistics,
)


@st.composite
def texts(draw):
    """Draws few tokens with many repeats, under masks with holes."""
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
    """Lists the n-grams of each sample."""
    seq = tokens.shape[1]
    return [
        [tuple(row[i : i + n]) for i in range(seq - n + 1) if all(mask[i : i + n])]
        for row, mask in zip(tokens.tolist(), is_generated.tolist(), strict=True)
    ]


def mean(values):
    return sum(values) / len(values) if values else 0.0


def naive_entropy(tokens):
    shares = [count / len(tokens) for count in Counter(tokens).values()]
    return -sum(share * math.log(share) for share in shares)


def pooled_up_to(text, num_tokens):
    return pooled_entropy(*first_tokens(*text, num_tokens))


@given(texts())
@settings(max_examples=150, deadline=None)
def test_entropies_equal_the_naive_reference(text):
    samples = parts(*text)
    pooled = [token for sample in samples for token in sample]
    assert pooled_entropy(*text) == pytest.approx(naive_entropy(pooled), abs=1e-12)
    expected = mean([naive_entropy(sample) for sample in samples if sample])
    assert sample_entropy(*text) == pytest.approx(expected, abs=1e-12)


@given(texts(), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_the_first_tokens_are_whole_samples_in_order(text, num_tokens):
    pooled = [token for sample in parts(*text) for token in sample]
    if num_tokens > len(pooled):
        with pytest.raises(ValueError, match=f"num_tokens is {num_tokens}"):
            pooled_up_to(text, num_tokens)
        return
    kept = parts(*first_tokens(*text, num_tokens))
    assert [token for sample in kept for token in sample] == pooled[:num_tokens]
    assert kept[:-1] == parts(*text)[: len(kept) - 1]
    assert kept[-1]
    expected = naive_entropy(pooled[:num_tokens])
    assert pooled_up_to(text, num_tokens) == pytest.approx(expected, abs=1e-12)


@given(texts())
@settings(max_examples=100, deadline=None)
def test_ngram_shares_equal_the_naive_reference(text):
    statistics = text_statistics(*text)
    by_sample = []
    for n, share in enumerate(statistics.distinct, start=1):
        by_sample = ngrams(*text, n)
        pooled = [ngram for sample in by_sample for ngram in sample]
        assert share == len(set(pooled)) / max(len(pooled), 1)
    shares = [
        sum(ngram in sample[:i] for i, ngram in enumerate(sample)) / len(sample)
        for sample in by_sample
        if sample
    ]
    assert n == LONGEST_NGRAM
    assert statistics.repetition == pytest.approx(mean(shares), abs=1e-12)


@given(texts())
@settings(max_examples=150, deadline=None)
def test_duplicates_equal_the_naive_reference(text):
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
    triples = zip(*(part.tolist() for part in counts_by_sample(*text)), strict=True)
    assert list(triples) == expected


@given(texts())
@settings(max_examples=50, deadline=None)
def test_all_together_are_the_single_ones(text):
    whole = text_statistics(*text)
    assert (whole.num_samples, whole.num_tokens) == (len(text[0]), int(text[1].sum()))
    assert whole.entropy == pooled_entropy(*text)
    assert whole.sample_entropy == sample_entropy(*text)
    assert whole.duplicate_share == duplicate_share(*text)


def test_closed_forms_of_a_periodic_text():
    period, seq = 5, 20
    tokens = (torch.arange(seq) % period).expand(3, seq).contiguous()
    statistics = text_statistics(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert statistics.entropy == pytest.approx(math.log(period), abs=1e-12)
    assert statistics.sample_entropy == pytest.approx(math.log(period), abs=1e-12)
    windows = [seq - n + 1 for n in (1, 2, 3, 4)]
    assert statistics.distinct == tuple(period / (3 * count) for count in windows)
    assert statistics.repetition == pytest.approx((windows[3] - period) / windows[3], abs=1e-12)
    assert statistics.duplicate_share == pytest.approx(2 / 3)


def test_the_pooled_and_the_sample_entropy_differ_where_samples_differ():
    tokens = torch.tensor([[3] * 8, [7] * 8])
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    assert pooled_entropy(tokens, is_generated) == pytest.approx(math.log(2))
    assert sample_entropy(tokens, is_generated) == 0
    assert text_statistics(tokens, is_generated).repetition == pytest.approx(4 / 5)


def test_what_is_given_does_not_count():
    tokens = torch.tensor([[9, 9, 9, 9, 1, 2, 3, 4], [8, 8, 8, 8, 1, 2, 3, 4]])
    is_generated = (torch.arange(8) >= 4).expand(2, 8).contiguous()
    statistics = text_statistics(tokens, is_generated)
    assert statistics.entropy == pytest.approx(math.log(4))
    assert (statistics.distinct[3], statistics.repetition, statistics.duplicate_share) == (
        0.5,
        0,
        0.5,
    )


def test_ngrams_do_not_reach_over_a_given_position():
    tokens = torch.tensor([[1, 2, 0, 3, 4]])
    is_generated = torch.tensor([[True, True, False, True, True]])
    assert text_statistics(tokens, is_generated).distinct == (1, 1, 0, 0)


def test_entropies_are_compared_at_the_same_count():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(500, (50, 40), generator=generator)
    is_all = torch.ones_like(tokens, dtype=torch.bool)
    cut = pooled_up_to((tokens, is_all), 400)
    assert cut == pooled_entropy(tokens[:10], is_all[:10])
    assert pooled_entropy(tokens, is_all) > cut + 0.3


def test_the_entropy_of_counts():
    assert entropy(torch.tensor([10, 10, 10, 10])) == pytest.approx(math.log(4))
    assert entropy(torch.tensor([3, 1])) == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert entropy(torch.tensor([9, 0])) == entropy(torch.tensor([])) == 0


def test_whole_samples_show_less_entropy_than_scattered_positions():
    """Shows why texts are cut by samples: positions spread over all texts look more diverse."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randint(50, (200, 1), generator=generator) * 20
    tokens = topics + torch.randint(20, (200, 32), generator=generator)
    is_all = torch.ones_like(tokens, dtype=torch.bool)
    scattered = (torch.arange(32) < 2).expand(200, 32)
    assert pooled_entropy(tokens, scattered) > pooled_up_to((tokens, is_all), 400) + 0.5


def test_nothing_generated_is_zero_throughout():
    tokens = torch.randint(5, (3, 6))
    statistics = text_statistics(tokens, torch.zeros_like(tokens, dtype=torch.bool))
    assert (statistics.num_tokens, statistics.entropy, statistics.sample_entropy) == (0, 0, 0)
    assert (statistics.distinct, statistics.repetition) == ((0, 0, 0, 0), 0)
    short = torch.zeros(2, 1, dtype=torch.long)
    assert text_statistics(short, short == 0).distinct == (0.5, 0, 0, 0)


def test_large_token_numbers_do_not_overflow():
    tokens = torch.tensor([[0, 10**5, 10**6, 10**6 + 1] * 4])
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    assert text_statistics(tokens, is_generated).distinct[3] == pytest.approx(4 / 13)


@pytest.mark.parametrize("count", [0, -1, 7])
def test_impossible_values_are_refused(count):
    tokens = torch.zeros(2, 3, dtype=torch.long)
    is_generated = torch.ones_like(tokens, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"num_tokens is {count}; choose 1 to the 6"):
        text_statistics(*first_tokens(tokens, is_generated, count))
    with pytest.raises(ValueError, match=r"a token is -1; .* mask padding out"):
        pooled_entropy(tokens - 1, is_generated)


def test_more_samples_take_no_more_calls():
    """Counts calls, which grow with the samples where Python loops over them."""
    generator = torch.Generator().manual_seed(0)
    calls = []
    for num_samples in (50, 500):
        tokens = torch.randint(1000, (num_samples, 32), generator=generator)
        is_generated = torch.ones_like(tokens, dtype=torch.bool)
        calls.append(
            count_calls(text_statistics, tokens, is_generated)
            + count_calls(first_tokens, tokens, is_generated, 1000)
        )
    assert calls[0] > 100
    assert calls[1] < 1.1 * calls[0]


def test_a_wrong_variant_would_be_told_apart():
    """Separates the statistics of all positions from those of the positions that count."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(2, (6, 9), generator=generator)
    is_generated = torch.rand(6, 9, generator=generator) < 0.9
    is_all = torch.ones_like(is_generated)
    right, wrong = text_statistics(tokens, is_generated), text_statistics(tokens, is_all)
    for name in ("entropy", "sample_entropy", "repetition"):
        assert abs(getattr(right, name) - getattr(wrong, name)) > 1e-6
    assert all(a != b for a, b in itertools.pairwise(right.distinct))
