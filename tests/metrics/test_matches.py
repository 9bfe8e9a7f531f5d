"""Longest matches with the training set equal brute force, on texts with many repeats."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from work import count_calls

from cdcd.metrics import matches
from cdcd.metrics.matches import MatchSummary, longest_matches, summarise_matches


def is_within(part, whole):
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def brute_force(tokens, is_generated, training):
    texts = [text.tolist() for text in training]
    lengths = []
    for row, mask in zip(tokens.tolist(), is_generated.tolist(), strict=True):
        spans = [(i, j) for i in range(len(row)) for j in range(i + 1, len(row) + 1)]
        lengths.append(
            max(
                (
                    j - i
                    for i, j in spans
                    if all(mask[i:j]) and any(is_within(row[i:j], text) for text in texts)
                ),
                default=0,
            )
        )
    return lengths


@st.composite
def cases(draw):
    """Samples over a small alphabet, some of them copied in part from the training texts."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    vocab, seq = draw(st.integers(1, 6)), draw(st.integers(1, 13))
    sizes = draw(st.lists(st.integers(0, 60), max_size=3))
    dtype = draw(st.sampled_from([np.uint16, np.int32, np.int64, np.uint8]))
    training = [rng.integers(vocab, size=size).astype(dtype) for size in sizes]
    tokens = rng.integers(vocab + 1, size=(draw(st.integers(1, 5)), seq))
    for row in tokens:
        text = training[rng.integers(len(training))] if training else np.zeros(0, int)
        width = int(rng.integers(0, min(seq, len(text)) + 1))
        start = int(rng.integers(0, len(text) - width + 1))
        row[seq - width :] = text[start : start + width]
    is_generated = rng.random(tokens.shape) < draw(st.sampled_from([0.0, 0.7, 1.0]))
    return torch.from_numpy(tokens), torch.from_numpy(is_generated), training


@given(cases(), st.sampled_from([1, 5, 2**18]))
@settings(max_examples=300, deadline=None)
def test_matches_equal_brute_force(case, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matches, "CHUNK", chunk)
        assert longest_matches(*case).tolist() == brute_force(*case)


TRAINING = np.random.default_rng(0).integers(2, 50, size=4000).astype(np.uint16)


def everywhere(tokens):
    return torch.ones_like(tokens, dtype=torch.bool)


def test_wholly_copied_samples_match_over_their_whole_length():
    starts = [0, 1, 17, 3990 - 64, 4000 - 64]
    tokens = torch.tensor(np.stack([TRAINING[s : s + 64] for s in starts]).astype(np.int64))
    lengths = longest_matches(tokens, everywhere(tokens), [TRAINING])
    assert lengths.tolist() == [64] * 5
    assert summarise_matches(lengths, everywhere(tokens)) == MatchSummary(64, 64, 64, 1)


def test_tokens_that_training_lacks_do_not_match():
    tokens = torch.full((2, 9), 60)
    tokens[1, 4] = 70_000
    lengths = longest_matches(tokens, everywhere(tokens), [TRAINING])
    assert lengths.tolist() == [0, 0]
    assert longest_matches(tokens, everywhere(tokens), []).tolist() == [0, 0]
    assert summarise_matches(lengths, everywhere(tokens)).copied_share == 0


def test_a_given_prefix_does_not_count():
    tokens = torch.full((1, 40), 60)
    tokens[0, :30] = torch.from_numpy(TRAINING[100:130].astype(np.int64))
    is_generated = (torch.arange(40) >= 20)[None]
    lengths = longest_matches(tokens, is_generated, [TRAINING])
    assert lengths.tolist() == [10]
    assert longest_matches(tokens, everywhere(tokens), [TRAINING]).tolist() == [30]
    tail = is_generated & (torch.arange(40) < 30)
    assert summarise_matches(lengths, tail).copied_share == 1


def test_matches_do_not_cross_arrays_but_do_cross_chunks(monkeypatch):
    monkeypatch.setattr(matches, "CHUNK", 100)
    tokens = torch.from_numpy(TRAINING[80:120].astype(np.int64))[None]
    assert longest_matches(tokens, everywhere(tokens), [TRAINING]).tolist() == [40]
    halves = [TRAINING[:105], TRAINING[105:]]
    assert longest_matches(tokens, everywhere(tokens), halves).tolist() == [25]


def test_memory_maps_and_generators_are_read(tmp_path):
    np.save(tmp_path / "training.npy", TRAINING)
    stored = np.load(tmp_path / "training.npy", mmap_mode="r")
    tokens = torch.from_numpy(TRAINING[500:520].astype(np.int64))[None]
    assert longest_matches(tokens, everywhere(tokens), (a for a in [stored])).tolist() == [20]


def test_summary_of_known_lengths():
    lengths = torch.tensor([1, 2, 4, 5, 0])
    is_generated = torch.arange(5)[None] < torch.tensor([3, 2, 5, 5, 0])[:, None]
    expected = MatchSummary(mean=2.4, median=2.0, maximum=5, copied_share=2 / 5)
    assert summarise_matches(lengths, is_generated) == expected
    with pytest.raises(ValueError, match="0 samples"):
        summarise_matches(lengths[:0], is_generated[:0])


def test_more_samples_take_no_more_calls():
    """Counts calls, which grow with the samples where Python loops over them."""
    rng = np.random.default_rng(1)
    edges = (1 / np.arange(1, 8001)).cumsum()
    training = np.searchsorted(edges / edges[-1], rng.random(600_000)).astype(np.uint16)
    tokens = torch.from_numpy(np.searchsorted(edges / edges[-1], rng.random((1000, 64))))
    lengths = longest_matches(tokens, everywhere(tokens), [training])
    assert 2.5 < summarise_matches(lengths, everywhere(tokens)).mean < 5
    few, many = (
        count_calls(longest_matches, part, everywhere(part), [training])
        for part in (tokens[:100], tokens)
    )
    assert many < 1.5 * few
