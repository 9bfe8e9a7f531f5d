"""Scores of translations are sacreBLEU's, and each defect shows in its own number."""

import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from controls import wrong_translations
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from cdcd.metrics.bleu import (
    Corpus,
    bleu_difference,
    mbr_curve,
    score,
    signatures,
    utility_for,
)
from cdcd.metrics.defects import count_repeats, missing_share, words
from cdcd.metrics.mbr import mbr_batch, pairwise_chrf

NAMES = ("Anna", "Peter", "Berlin", "Martin", "Paris")
NOUNS = {"dog": "Hund", "house": "Haus", "man": "Mann", "tree": "Baum", "table": "Tisch"}
VERBS = {"sees": "sieht", "finds": "findet", "buys": "kauft", "knows": "kennt"}


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """English and German of the same sentence."""
    name, place = rng.sample(NAMES, 2)
    (verb, verb_de), (noun, noun_de) = rng.choice([*VERBS.items()]), rng.choice([*NOUNS.items()])
    year = rng.randint(1900, 2020)
    return (
        f"{name} {verb} the {noun} and is in the city of {place} with a friend in {year}.",
        f"{name} {verb_de} den {noun_de} und ist in der Stadt {place} mit einem Freund, {year}.",
    )


def made_up(seed: int) -> Corpus:
    rng = random.Random(seed)
    sources, references = zip(*(sentence_pair(rng) for _ in range(60)), strict=True)
    return Corpus(sources, references, "en", "de")


CORPUS = made_up(seed=0)


def damaged(text: str, rng: random.Random, share: float) -> str:
    """Words replaced by words of other sentences."""
    other = rng.choice(CORPUS.references).split()
    return " ".join(rng.choice(other) if rng.random() < share else word for word in text.split())


def damaged_corpus(share: float, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [damaged(text, rng, share) for text in CORPUS.references]


@given(share=st.floats(0, 1), seed=st.integers(0, 9), language=st.sampled_from(["en", "de", "zh"]))
@settings(max_examples=15, deadline=None)
def test_bleu_and_chrf_are_those_of_sacrebleu(share, seed, language):
    corpus = replace(CORPUS, target_language=language)
    texts, references = damaged_corpus(share, seed), [list(CORPUS.references)]
    found = score(texts, corpus, num_resamples=100)
    expected = BLEU(tokenize=corpus.tokenize).corpus_score(texts, references)
    assert found.bleu.value == pytest.approx(expected.score, rel=0, abs=1e-9)
    assert found.length_ratio == pytest.approx(expected.sys_len / expected.ref_len)
    chrf = CHRF().corpus_score(texts, references).score
    assert found.chrf.value == pytest.approx(chrf, rel=0, abs=1e-9)


def test_signatures_are_the_papers_and_those_of_a_real_score():
    for language, tokenize in (("en", "13a"), ("de", "intl"), ("zh", "zh"), ("fr", "13a")):
        found = signatures(replace(CORPUS, target_language=language))
        assert found["bleu"].startswith(f"nrefs:1|case:mixed|eff:no|tok:{tokenize}|smooth:exp|")
        for metric, name in ((BLEU(tokenize=tokenize), "bleu"), (CHRF(), "chrf")):
            metric.corpus_score(list(CORPUS.sources), [list(CORPUS.references)])
            assert found[name] == str(metric.get_signature())


def test_the_references_have_no_defect():
    found = score(CORPUS.references, CORPUS, num_resamples=100)
    assert found.bleu.value == found.bleu.low == pytest.approx(100)
    assert (found.length_ratio, found.repetition, found.missing_words) == (1, 0, 0)
    assert found.empty_share == 0


def test_each_control_shows_its_defect_and_no_other():
    found = {
        name: score(texts, CORPUS, num_resamples=100)
        for name, texts in wrong_translations(CORPUS).items()
    }
    assert found["references"].bleu.value == pytest.approx(100)
    copies = found["source copied"]
    assert copies.missing_words > 0.5
    assert copies.repetition == 0
    shuffled = found["words shuffled"]
    assert shuffled.bleu.value < 40
    assert shuffled.missing_words == 0
    assert shuffled.repetition < 0.02
    doubled = found["words doubled"]
    assert doubled.length_ratio == pytest.approx(2, abs=0.1)
    assert doubled.repetition > 0.4
    assert doubled.missing_words == 0
    half = found["first half"]
    assert half.length_ratio == pytest.approx(0.5, abs=0.1)
    assert 0.4 < half.missing_words < 0.6
    assert half.repetition == 0


def test_empty_translations_are_scored():
    found = score([""] * 60, CORPUS, num_resamples=100)
    assert (found.bleu.value, found.chrf.value, found.length_ratio) == (0, 0, 0)
    assert (found.missing_words, found.empty_share) == (1, 1)


def test_words_of_known_texts():
    assert words("Don't pay 1,500.5 – well-known Straße…") == [
        "Don't", "pay", "1,500.5", "well-known", "Straße",
    ]  # fmt: skip
    assert words("我们 2023 去Paris") == ["我", "们", "2023", "去", "Paris"]
    assert words("Covid19 G20 x_y") == ["Covid19", "G20", "x", "y"]


def test_repeats_of_known_texts():
    assert count_repeats("the the cat") == 1
    assert count_repeats("The the the cat") == 2
    assert count_repeats("a dog a dog runs") == 1
    assert count_repeats("a b c a b c") == 0
    assert count_repeats("Menschen, die, die Stadt … … !!") == 0
    assert count_repeats("no, no, no") == count_repeats("no no, no no") - 2 == 0
    assert count_repeats("to be to be to be") == 3
    assert count_repeats("") == count_repeats("a") == 0


def test_missing_words_are_counted_with_their_number():
    assert missing_share(["Anna 5 5 Anna", "y z"], ["Anna 5", "y"]) == pytest.approx(3 / 6)
    assert missing_share(["", "!"], ["a", "b"]) == 0


def test_differences_are_paired():
    better, worse = damaged_corpus(0.3), damaged_corpus(0.5)
    found = bleu_difference(worse, better, CORPUS)
    values = [score(texts, CORPUS, num_resamples=100).bleu.value for texts in (worse, better)]
    assert found.value == pytest.approx(values[1] - values[0])
    assert 0 < found.low < found.value < found.high
    same = bleu_difference(better, better, CORPUS)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    back = bleu_difference(better, worse, CORPUS)
    assert (back.value, back.low) == pytest.approx((-found.value, -found.high))
    # One changed sentence: its difference is the only noise, however hard the others are.
    nearly = [*better[:-1], CORPUS.references[-1]]
    single = score(better, CORPUS).bleu
    paired = bleu_difference(better, nearly, CORPUS)
    assert paired.high - paired.low < 0.7 * (single.high - single.low)


def test_intervals_cover_the_score_of_the_population():
    """The intervals of small test sets hold the score of all sentences; a fifth as wide they do not."""
    rng = random.Random(3)
    population = [(damaged(text, rng, 0.4), text) for text in CORPUS.references * 20]

    def bleu_of(pairs):
        texts, references = (list(side) for side in zip(*pairs, strict=True))
        corpus = Corpus(references, references, "en", "de")
        return score(texts, corpus, num_resamples=100).bleu

    truth = bleu_of(population).value
    found = [bleu_of(rng.sample(population, 40)) for _ in range(30)]
    covered = np.mean([each.low <= truth <= each.high for each in found])
    assert covered >= 0.85
    narrow = [abs(each.value - truth) <= (each.high - each.low) / 10 for each in found]
    assert np.mean(narrow) < 0.6


def curve_of(samples, counts, utility=None, num_resamples=100):
    choices = mbr_batch(samples, utility or utility_for("bleu", "de"), counts=counts)
    return mbr_curve(samples, CORPUS, counts=counts, choices=choices, num_resamples=num_resamples)


def test_more_samples_decode_better_and_the_oracle_bounds_them():
    rng = random.Random(4)
    samples = [[damaged(text, rng, 0.4) for _ in range(20)] for text in CORPUS.references]
    curve = curve_of(samples, (1, 5, 20), num_resamples=200)
    first = score([each[0] for each in samples], CORPUS, num_resamples=200).bleu
    assert curve[0].bleu == first
    assert (curve[0].gain.value, curve[0].oracle_bleu) == (0, first.value)
    assert curve[0].bleu.value < curve[1].bleu.value < curve[2].bleu.value
    assert curve[2].gain.low > 0
    assert curve[2].gain.value == pytest.approx(curve[2].bleu.value - first.value)
    assert all(each.oracle_bleu >= each.bleu.value for each in curve)
    assert all(each.distinct_share > 0.9 for each in curve)
    by_characters = curve_of(samples, (20,), pairwise_chrf)
    assert by_characters[0].bleu.value > first.value + 5


def test_decoding_never_sees_the_references():
    rng = random.Random(5)
    samples = [[damaged(text, rng, 0.4) for _ in range(6)] for text in CORPUS.references]
    seen = []

    def watched(hypotheses):
        seen.extend(hypotheses)
        return utility_for("bleu", "de")(hypotheses)

    curve_of(samples, (6,), watched)
    assert set(seen) == {text for each in samples for text in each}


def test_one_sample_repeated_gains_nothing():
    samples = [[text] * 10 for text in damaged_corpus(0.4)]
    curve = curve_of(samples, (1, 10))
    assert (curve[1].gain.low, curve[1].gain.high) == (0, 0)
    assert curve[1].distinct_share == pytest.approx(0.1)


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match="2 sources and 1 references"):
        Corpus(["a", "b"], ["a"], "en", "de")
    with pytest.raises(ValueError, match="give as many of both, 2 or more"):
        Corpus(["a"], ["a"], "en", "de")
    with pytest.raises(ValueError, match="3 translations and 60 references"):
        score(["a"] * 3, CORPUS)


def test_without_sacrebleu_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ValueError, match=r"needs sacrebleu: pip install 'cdcd\[translate\]'"):
        signatures(CORPUS)
