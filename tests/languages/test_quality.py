"""The quality report tells real stories from garbage, and is right on cases with known answers."""

import math
import random

import pytest

from cdcd.languages import tales
from cdcd.languages.tales_quality import count_tokens, judge_tales, unigram_texts
from cdcd.languages.word_splitting import join_words, split_words

STORIES = tales.stories(200, seed=5)


def test_the_entropy_of_known_distributions():
    for text, expected in (
        ("a b c d a b c d", math.log(4)),
        ("a a a a a", 0.0),
        ("a a a b", math.log(4) - 0.75 * math.log(3)),
        ("", 0.0),
    ):
        assert judge_tales([text], set(), num_tokens=99).entropy == pytest.approx(expected)


def test_real_stories_are_perfect_and_their_likelihood_is_exact():
    judged = judge_tales(STORIES, set(), num_tokens=10**9)
    assert (judged.parse_share, judged.reference_share, judged.story_share) == (1, 1, 1)
    log_probs = [tales.GRAMMAR.log_prob(split_words(text)) for text in STORIES]
    assert judged.nll == pytest.approx(-sum(p or 0 for p in log_probs) / count_tokens(STORIES))
    assert judged.num_tokens == count_tokens(STORIES)


def test_copies_and_repeats_are_counted():
    half_known = judge_tales(STORIES, set(STORIES[:100]), num_tokens=100)
    assert half_known.copied_share == 0.5
    repeated = judge_tales([STORIES[0]] * 10, set(), num_tokens=100)
    assert repeated.distinct_share == pytest.approx(0.1)
    assert repeated.entropy < half_known.entropy


def shuffled(text: str) -> str:
    words = split_words(text)
    random.Random(0).shuffle(words)
    return join_words(words)


def spliced(index: int) -> str:
    """The first half of one story and the second half of another."""
    first, second = STORIES[index].split(". "), STORIES[index + 1].split(". ")
    return ". ".join(first[: len(first) // 2] + second[len(second) // 2 :])


def test_negative_controls_are_told_from_real_stories():
    baseline = unigram_texts(STORIES, 200, seed=0)
    for texts in ([shuffled(text) for text in STORIES], baseline):
        judged = judge_tales(texts, set(), num_tokens=1000)
        assert judged.parse_share < 0.1
        assert judged.story_share == 0
        assert judged.nll is None
    judged = judge_tales([spliced(i) for i in range(199)], set(), num_tokens=1000)
    assert judged.parse_share > 0.9
    assert judged.reference_share < 0.9


def test_unigram_baseline_keeps_lengths_and_frequencies():
    texts = unigram_texts(STORIES, 2000, seed=1)
    words = [word for text in texts for word in split_words(text)]
    real = [word for text in STORIES for word in split_words(text)]
    assert len(words) / 2000 == pytest.approx(len(real) / 200, rel=0.02)
    assert words.count("the") / len(words) == pytest.approx(real.count("the") / len(real), rel=0.05)


def test_empty_texts_are_judged_without_error():
    judged = judge_tales(["", ""], set(), num_tokens=10)
    assert (judged.num_sentences, judged.parse_share, judged.nll) == (0, 0, None)
