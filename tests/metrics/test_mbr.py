"""Pairwise BLEU and chrF are sacreBLEU's, and minimum Bayes-risk decoding finds the consensus."""

import itertools
import random
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from work import count_calls

from cdcd.metrics.mbr import (
    mbr_batch,
    mbr_by_count,
    pairwise_bleu,
    pairwise_chrf,
)
from cdcd.metrics.ngrams import bleu, bleu_counts, chrf, chrf_counts, word_splitter


def mbr(hypotheses, utility=pairwise_bleu):
    """Returns the index of the choice among all hypotheses."""
    return mbr_by_count(hypotheses, utility=utility)[0]


SPACED = partial(pairwise_bleu, tokenize="none")
WORDS = (
    "a",
    "b",
    "cc",
    "the",
    "1,5",
    "3.",
    "U.S.",
    "don't",
    "„Haus“",
    "&amp;",
    "x-y",
    "…",
    "é",
    "Ω",
)
texts = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
odd_texts = texts | st.text(max_size=12)
several = st.lists(odd_texts, min_size=1, max_size=6)
EDGES = ["", "a", "a a", " a  b ", "a b c d e", "a b c d e", "b a", "a a a a a", "\n", "a b c"]


def by_loops(score, hypotheses):
    pairs = itertools.product(hypotheses, repeat=2)
    values = [score(hypothesis, [reference]).score for hypothesis, reference in pairs]
    return np.array(values).reshape(len(hypotheses), len(hypotheses))


@pytest.mark.parametrize("tokenize", ["none", "13a", "intl", "zh", "char"])
@given(hypotheses=several)
@example(hypotheses=EDGES)
@example(hypotheses=["我们 去 北京。", "我们去北京", "北京"])
@settings(max_examples=60, deadline=None)
def test_pairwise_bleu_is_that_of_sacrebleu(tokenize, hypotheses):
    score = BLEU(effective_order=True, tokenize=tokenize).sentence_score
    found = pairwise_bleu(hypotheses, tokenize=tokenize)
    np.testing.assert_allclose(found, by_loops(score, hypotheses), rtol=0, atol=1e-9)


@given(hypotheses=several)
@example(hypotheses=EDGES)
@settings(max_examples=60, deadline=None)
def test_pairwise_chrf_is_that_of_sacrebleu(hypotheses):
    found = pairwise_chrf(hypotheses)
    np.testing.assert_allclose(
        found, by_loops(CHRF().sentence_score, hypotheses), rtol=0, atol=1e-9
    )


@given(pairs=st.lists(st.tuples(odd_texts, odd_texts), min_size=1, max_size=8))
@example(pairs=[("", ""), ("a", ""), ("", "a b c d e"), ("a b c d e", "a b c d e")])
@example(pairs=[("a b c", "a b c")])
@settings(max_examples=100, deadline=None)
def test_scores_of_a_corpus_are_those_of_sacrebleu(pairs):
    candidates, references = (list(side) for side in zip(*pairs, strict=True))
    for tokenize in ("none", "13a", "intl"):
        found = bleu(bleu_counts(candidates, references, tokenize=tokenize).sum(0))
        expected = BLEU(tokenize=tokenize).corpus_score(candidates, [references]).score
        assert float(found) == pytest.approx(expected, rel=0, abs=1e-9)
    found = chrf(chrf_counts(candidates, references).sum(0))
    expected = CHRF().corpus_score(candidates, [references]).score
    assert float(found) == pytest.approx(expected, rel=0, abs=1e-9)


def test_known_values():
    hypotheses = ["the cat sat down", "the cat sat down", "the cat sat up", "dog", ""]
    found = SPACED(hypotheses)
    assert found[0, 1] == found[3, 3] == 100
    assert found[0, 2] == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** (1 / 4))
    assert (found[3, :3] == 0).all()
    assert (found[4] == 0).all()
    assert pairwise_bleu(["a b c d", "a b"], tokenize="none")[1, 0] == pytest.approx(
        100 * np.exp(1 - 4 / 2)
    )


@given(hypotheses=several, seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_order_of_hypotheses_means_nothing(hypotheses, seed):
    order = np.random.default_rng(seed).permutation(len(hypotheses))
    moved = [hypotheses[i] for i in order]
    for utility in (SPACED, pairwise_chrf):
        assert (utility(moved) == utility(hypotheses)[np.ix_(order, order)]).all()
        expected = utility(hypotheses).mean(1)
        chosen = hypotheses.index(moved[mbr(moved, utility)])
        assert expected[chosen] == pytest.approx(expected.max())


@given(st.lists(texts, min_size=1, max_size=5, unique=True), st.data())
@settings(max_examples=60, deadline=None)
def test_duplicates_are_weights(distinct, data):
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(distinct), max_size=len(distinct)))
    repeated = [text for text, weight in zip(distinct, weights, strict=True) for _ in range(weight)]
    weighted = SPACED(distinct) @ np.array(weights) / sum(weights)
    np.testing.assert_allclose(SPACED(repeated).mean(1), np.repeat(weighted, weights))
    chosen = distinct.index(repeated[mbr(repeated, SPACED)])
    assert weighted[chosen] == pytest.approx(weighted.max())


def test_a_utility_sees_every_hypothesis_once():
    seen = []

    def counting(hypotheses):
        seen.append(list(hypotheses))
        return np.eye(len(hypotheses))

    assert mbr(["x", "y", "y", "z"], counting) == 1
    assert seen == [["x", "y", "z"]]


@pytest.mark.parametrize("utility", [SPACED, pairwise_chrf])
def test_the_consensus_is_chosen(utility):
    truth = ["the", "small", "dog", "runs", "over", "the", "green", "field", "today"]
    rng = random.Random(0)
    words = ["".join(rng.choices("jkpqxyzäöü", k=5)) for _ in range(50)]
    noisy = [
        " ".join([*truth[:place], rng.choice(words), *truth[place + 1 :]])
        for place in range(len(truth))
    ]
    outliers = [" ".join(rng.choices(words, k=9)) for _ in range(6)]
    hypotheses = [*outliers, *noisy, " ".join(truth)]
    assert mbr(hypotheses, utility) == len(hypotheses) - 1
    assert hypotheses[mbr([*outliers, *noisy], utility)] in noisy


def test_a_majority_beats_a_better_looking_single():
    assert mbr(["x y z w v", "a b c", "a b c"], SPACED) == 1
    assert mbr(["a b c", "d e f"], SPACED) == 0
    assert mbr(["", "", "a"], SPACED) == 2


def test_ties_go_to_the_first_whatever_the_rounding():
    def nearly_equal(hypotheses):
        return np.full((len(hypotheses),) * 2, 50.0) + 1e-12 * np.arange(len(hypotheses))[:, None]

    assert mbr(["a", "b", "c"], nearly_equal) == 0


def test_choices_by_count_are_those_among_the_first():
    rng = random.Random(1)
    hypotheses = [" ".join(rng.choices("abcd", k=5)) for _ in range(30)]
    counts = [1, 2, 10, 30]
    expected = [mbr(hypotheses[:count], SPACED) for count in counts]
    assert mbr_by_count(hypotheses, counts=counts, utility=SPACED) == expected
    assert expected[0] == 0


def test_bonuses_are_added_to_the_expected_utilities():
    rng = random.Random(3)
    for _ in range(20):
        hypotheses = [" ".join(rng.choices("abcd", k=5)) for _ in range(12)]
        hypotheses[7] = hypotheses[2]  # equal texts can have different bonuses
        bonuses = [rng.uniform(-30, 30) for _ in hypotheses]
        expected = []
        for count in (1, 4, 12):
            utilities = SPACED(hypotheses[:count]).mean(1) + bonuses[:count]
            expected.append(int(np.argmax(utilities)))
        assert mbr_by_count(hypotheses, bonuses, counts=[1, 4, 12], utility=SPACED) == expected
        batch = mbr_batch([hypotheses] * 2, SPACED, bonuses=[bonuses, [0.0] * 12])
        assert batch[:, 0].tolist() == [expected[-1], mbr(hypotheses, SPACED)]


def test_processes_change_nothing():
    rng = random.Random(2)
    sentences = [[" ".join(rng.choices("abcd", k=6)) for _ in range(12)] for _ in range(9)]
    bonuses = [[rng.uniform(0, 20) for _ in each] for each in sentences]
    options = {"counts": [1, 5, 12], "bonuses": bonuses}
    alone = mbr_batch(sentences, SPACED, **options)
    assert (alone == mbr_batch(sentences, SPACED, **options, processes=2)).all()
    assert alone[:, 2:].tolist() == mbr_batch(sentences, SPACED, bonuses=bonuses).tolist()
    plain = mbr_batch(sentences, SPACED)
    assert plain[:, 0].tolist() == [mbr(hypotheses, SPACED) for hypotheses in sentences]
    assert (alone[:, 2:] != plain).any()
    assert mbr_batch([], SPACED).shape == (0, 1)


def test_samples_are_compared_without_a_loop_over_pairs():
    """Counts calls: four times the samples of a sentence are sixteen times the pairs."""
    rng = random.Random(4)
    samples = [" ".join(rng.choices("abcdefghij", k=25)) for _ in range(100)]
    mbr_batch([samples[:2]])
    few, many = (count_calls(mbr_batch, [samples[:count]]) for count in (25, 100))
    assert many < 6 * few


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match="0 hypotheses"):
        mbr([])
    with pytest.raises(ValueError, match=r"counts are \[1, 3\]; .* the 2 hypotheses"):
        mbr_by_count(["a", "b"], counts=[1, 3])
    with pytest.raises(ValueError, match="counts are"):
        mbr_by_count(["a", "b"], counts=[0])
    with pytest.raises(ValueError, match="processes is 0"):
        mbr_batch([["a"]], processes=0)
    with pytest.raises(ValueError, match="unknown tokenisation 14a; did you mean 13a"):
        pairwise_bleu(["a"], tokenize="14a")
    with pytest.raises(ValueError, match="2 translations and 1 references"):
        bleu_counts(["a", "b"], ["a"], tokenize="none")


def test_without_sacrebleu_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    word_splitter.cache_clear()
    assert mbr(["a b", "a b c"], pairwise_chrf) in (0, 1)
    with pytest.raises(ValueError, match=r"needs sacrebleu: pip install 'cdcd\[translate\]'"):
        pairwise_bleu(["a"])
    word_splitter.cache_clear()
