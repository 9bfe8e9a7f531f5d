"""Snapshots of a sample: its text in parts, and the probabilities of what competes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import train_tiny

import cdcd
from cdcd.data.tokenizers import ByteTokenizer, WordTokenizer, numerals_tokenizer
from cdcd.inference.changes import Change
from cdcd.inference.snapshots import Snapshots, parts_of

WORDS = WordTokenizer(["Mia", "was", "here", ".", ",", "?"])


@given(st.lists(st.integers(0, 258), max_size=24))
def test_parts_of_bytes_are_the_text(tokens):
    tokenizer = ByteTokenizer()
    parts = parts_of(tokenizer, tokens)
    assert len(parts) == len(tokens)
    assert "".join(parts) == tokenizer.decode(tokens)


@given(st.lists(st.integers(0, 8), max_size=12))
def test_parts_of_words_are_the_text(tokens):
    assert "".join(parts_of(WORDS, tokens)) == WORDS.decode(tokens)


@given(st.lists(st.integers(0, numerals_tokenizer().vocab_size - 1), max_size=12))
def test_parts_of_pieces_of_words_are_the_text(tokens):
    tokenizer = numerals_tokenizer()
    assert "".join(parts_of(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_a_part_has_the_space_before_it_and_a_character_is_whole():
    assert parts_of(WORDS, WORDS.encode("Mia was here.")) == ["Mia", " was", " here", "."]
    tokenizer = ByteTokenizer()
    assert parts_of(tokenizer, tokenizer.encode("aé")) == ["a", "", "é"]


def snapshots(model, text, *, changes=(), **settings):
    """The snapshots of a sample, with the steps that they were taken of."""
    canvas, taken = model.infill_canvas(text), []
    taker = Snapshots(canvas, model.resolved(changes, settings) if changes else [])
    model.generate(
        canvas, changes=changes, callback=lambda i: taken.append((taker.take(i), i)), **settings
    )
    return taken


def test_a_snapshot_is_of_the_probabilities_of_its_step(model):
    for snapshot, info in snapshots(model, "Mia [3] home. [2]", num_steps=4):
        probs = info.probabilities[0]
        is_noisy = torch.tensor([not given for given in snapshot.is_given])
        assert (snapshot.index, snapshot.t) == (info.index, info.t)
        entropy = -(probs * probs.log()).sum(-1)[is_noisy].mean()
        assert snapshot.entropy == pytest.approx(float(entropy), abs=1e-5)
        assert set(snapshot.best) == set(is_noisy.nonzero()[:, 0].tolist())
        for position, ranked in snapshot.best.items():
            assert [p for _, p in ranked] == sorted((p for _, p in ranked), reverse=True)
            assert all(p == pytest.approx(float(probs[position, token])) for token, p in ranked)
            assert snapshot.tokens[position] == int(probs[position].argmax())
            assert snapshot.confidence[position] == pytest.approx(float(probs[position].max()))
    tokens = model.infill_canvas("Mia [3] home. [2]").tokens
    assert all(token in (None, seen) for token, seen in zip(tokens, snapshot.tokens, strict=True))


def test_words_given_from_a_step_on_are_given_from_there(model):
    changes = [Change(step=2, tokens={2: "Tom", 0: None})]
    taken = [each for each, _ in snapshots(model, "Mia [6]", changes=changes, num_steps=4)]
    assert [(each.is_given[0], each.is_given[2]) for each in taken] == [(True, False)] * 2 + [
        (False, True)
    ] * 2
    [tom] = model.tokenizer.encode("Tom")
    assert taken[2].tokens[2] == tom
    assert taken[2].confidence[2] == 1
    assert 0 in taken[2].best


@pytest.mark.parametrize("kind", ["masked", "autoregressive"])
def test_models_without_noise_levels(tmp_path, kind):
    model = cdcd.load(train_tiny(tmp_path / "run", {"model": kind}))
    taken = snapshots(model, "Mia was [*]")
    assert len(taken) >= 20 if kind == "autoregressive" else taken
    for snapshot, info in taken:
        assert snapshot.tokens[:2] == list(model.infill_canvas("Mia was [*]").tokens[:2])
        assert snapshot.confidence[:2] == [1.0, 1.0]
        assert all(0 <= p <= 1 + 1e-6 for p in snapshot.confidence)
        if kind == "masked":
            assert set(snapshot.best) == set(info.is_masked[0].nonzero()[:, 0].tolist())
        else:
            assert len(snapshot.tokens) == info.index + 1
            assert snapshot.tokens == info.tokens[0, : info.index + 1].tolist()
