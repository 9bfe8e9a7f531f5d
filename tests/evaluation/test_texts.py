"""Texts under evaluation: which positions are generated, and what counts."""

import itertools

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from cdcd.data.sequences import InMemory
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation import texts as module
from cdcd.evaluation.texts import (
    Texts,
    flat_arrays,
    held_out_texts,
)

LENGTH = 10
# Every token differs, so that a token tells where it comes from.
SEQUENCES = InMemory(torch.arange(5, 5 + 400 * LENGTH, dtype=torch.int32).view(400, LENGTH))


def prefix_lengths(texts: Texts) -> Tensor:
    """The number of given positions of each sample, which come first."""
    given = (~texts.is_generated).sum(1)
    assert torch.equal(texts.is_generated, torch.arange(texts.tokens.shape[1]) >= given[:, None])
    return given


# Protocols


@pytest.mark.parametrize(("length", "half"), [(10, 5), (7, 3), (2, 1)])
def test_half(length, half):
    texts = held_out_texts(InMemory(SEQUENCES.tokens[:, :length]), 50, "half")
    assert prefix_lengths(texts).tolist() == [half] * 50


def test_random_prefixes_are_uniform_from_nothing_to_half():
    texts = held_out_texts(InMemory(SEQUENCES.tokens.repeat(30, 1)), 12_000, "random", seed=1)
    counts = torch.bincount(prefix_lengths(texts))
    assert len(counts) == LENGTH // 2 + 1
    expected = 12_000 / len(counts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < chi2.ppf(0.999, len(counts) - 1)
    # A power check: had half the sequence been left out, the statistic would show it.
    without = torch.bincount(prefix_lengths(texts).clamp(max=LENGTH // 2 - 1), minlength=6)
    assert ((without - expected) ** 2 / expected).sum() > chi2.ppf(0.999, 5)


@pytest.mark.parametrize("protocol", ["half", "random"])
def test_prompts_are_a_function_of_the_seed_and_each_sequence_comes_once(protocol):
    one, same, other = (held_out_texts(SEQUENCES, 100, protocol, seed=s) for s in (3, 3, 4))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.is_generated, same.is_generated)
    assert not torch.equal(one.tokens, other.tokens)
    rows = (one.tokens[:, 0] - 5) / LENGTH
    assert len(rows.unique()) == 100
    assert rows.max() > 150, "only the first sequences are taken"
    assert torch.equal(one.tokens, SEQUENCES.rows(rows.long()))


def test_all_sequences_can_be_asked_for_and_no_more():
    assert len(held_out_texts(SEQUENCES, 400, "half").tokens[:, 0].unique()) == 400
    with pytest.raises(ValueError, match=r"401 samples .* has 400 sequences of 10 tokens; lower"):
        held_out_texts(SEQUENCES, 401, "half")
    with pytest.raises(ValueError, match="num_samples is 0, it must be at least 1"):
        held_out_texts(SEQUENCES, 0, "half")


# What counts


def texts_of(*rows: list[int], given: int = 2) -> Texts:
    tokens = torch.tensor(rows)
    return Texts(tokens, (torch.arange(tokens.shape[1]) >= given).expand_as(tokens))


ENDED = texts_of(
    [5, 6, 7, EOS, PAD, PAD],
    [5, 6, 7, EOS, 8, EOS],
    [5, 6, EOS, PAD, PAD, PAD],
    [5, EOS, PAD, PAD, PAD, PAD],
    [5, EOS, 9, 9, EOS, PAD],
    [5, 6, 7, 8, 9, 10],
    [5, 6, 7, PAD, 9, EOS],
)


def test_nothing_counts_after_the_end_of_the_document():
    counted = ENDED.until_end()
    assert torch.equal(counted.tokens, ENDED.tokens)
    assert counted.is_generated.int().tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]


def test_what_is_read_ends_with_what_counts():
    assert ENDED.until_end().ends().tolist() == [4, 4, 3, 2, 2, 6, 6]
    assert ENDED.ends().tolist() == [6] * 7
    assert texts_of([5, 6, 7], given=3).ends().tolist() == [3]


def test_first_and_where():
    counted = ENDED.until_end()
    assert torch.equal(counted.first(2).tokens, ENDED.tokens[:2])
    is_open = counted.is_generated.any(1)
    assert torch.equal(counted.where(is_open).tokens, ENDED.tokens[[0, 1, 2, 5, 6]])
    assert counted.where(is_open).is_generated.any(1).all()


@pytest.mark.parametrize("at_once", [1, 3, 7, 8, 100])
def test_flat_arrays_hold_all_tokens_in_order_and_overlap_by_one_sequence(monkeypatch, at_once):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    sequences = InMemory(SEQUENCES.tokens[:8])
    arrays = [array.tolist() for array in flat_arrays(sequences)]
    whole = sequences.tokens.flatten().tolist()
    assert len(arrays) == -(-8 // at_once)
    assert arrays[0] + [token for array in arrays[1:] for token in array[LENGTH:]] == whole
    for before, after in itertools.pairwise(arrays):
        assert after[:LENGTH] == before[-LENGTH:]
    # So every passage that is no longer than a sequence stands in one array.
    for start in range(len(whole) - LENGTH):
        passage = whole[start : start + LENGTH]
        assert any(passage == a[i : i + LENGTH] for a in arrays for i in range(len(a)))
