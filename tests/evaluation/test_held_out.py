"""Held out is what no model has trained on, as the documents themselves show, not paths or names of splits."""

import random

import numpy as np
import pytest
from tiny import silent, tiny_config, train_tiny

from cdcd.config import RunConfig
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.evaluation import shared_documents as module
from cdcd.evaluation.held_out import KnownDocuments, about_judge, documents_of
from cdcd.evaluation.shared_documents import Fingerprints, count_shared, fingerprints
from cdcd.evaluation.text_evaluation import Evaluation, EvaluationConfig
from cdcd.languages import tales

STORIES = tales.stories(300, seed=3)
AUTOREGRESSIVE = {"model": "autoregressive"}


def prose(num_words: int, seed: int) -> str:
    """Returns words drawn at random."""
    return " ".join(random.Random(seed).choices(tales.VOCABULARY[3:], k=num_words))


# Documents


def test_white_space_and_the_form_of_letters_change_nothing():
    text = "Mia was home, ﬁnally.\n" + prose(500, 0)
    spaced = text.replace(",", " ,").replace(" ", "  ").replace("ﬁ", "fi")
    assert spaced != text
    assert np.array_equal(fingerprints(text), fingerprints(spaced))
    for other in (text.replace("Mia", "Ben"), text.casefold(), text[:-1]):
        assert not np.array_equal(fingerprints(text[:30]), fingerprints(other[:29]))


def test_documents_are_counted_where_they_stand_in_others():
    documents = [*STORIES[:50], "", " \n"]
    body = Fingerprints(documents)
    assert body.num_documents == 50
    assert count_shared([body], []) == [0]
    assert count_shared([body], STORIES[40:]) == [10]
    both = [body, Fingerprints(STORIES[45:47])]
    assert count_shared(both, iter(STORIES[40:46])) == [6, 1]


def test_a_long_document_is_known_by_its_passages():
    """Where the documents of one text are pages and those of another their paragraphs or books."""
    pages = [prose(2_000, seed) for seed in range(4)]
    body = Fingerprints(pages)
    assert 100 < len(body.hashes) < 4 * len(pages[0]) / 16
    book = " ".join([prose(700, 10), pages[1], prose(900, 11), pages[3]])
    assert count_shared([body], [book]) == [2]
    words = pages[2].split()
    paragraphs = [" ".join(words[i : i + 250]) for i in range(0, 2_000, 250)]
    assert count_shared([body], paragraphs) == [1]
    # One paragraph of eight is no copy of a page.
    assert count_shared([body], paragraphs[:1]) == [0]


def test_a_body_of_text_is_read_in_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)
    body = Fingerprints(STORIES[:100])
    assert count_shared([body], STORIES[50:]) == [50]


# Runs, without training any: their configurations and their text


def run(**changes) -> RunConfig:
    return tiny_config({name.replace("__", "."): value for name, value in changes.items()})


def shared(systems: RunConfig, judge: RunConfig) -> tuple[int, int]:
    """Returns how many documents that one run trains on, and holds out, another trains on."""
    held_out, training = (Fingerprints(documents_of(systems, s)) for s in ("auto", None))
    return tuple(count_shared([training, held_out], documents_of(judge)))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A text file, two data sets of it that differ in seed and tokenizer, and one of other text."""
    place = tmp_path_factory.mktemp("sets")
    (place / "a.txt").write_text("\n".join(STORIES) + "\n")
    (place / "b.txt").write_text("\n".join(tales.stories(100, seed=4)) + "\n")
    shares = {"valid_share": 0.1, "test_share": 0.2, "judge_share": 0.3, "workers": 1}
    for name, source, changes in (
        ("one", "a.txt", {"tokenizer": "words"}),
        ("other", "a.txt", {"tokenizer": "bytes", "seed": 1}),
        ("apart", "b.txt", {"tokenizer": "words"}),
    ):
        config = PrepareConfig(source=str(place / source), **(shares | changes))
        prepare(config, place / name, console=silent())
    return place


def test_a_judge_of_the_same_set_shares_nothing(sets):
    one = str(sets / "one")
    assert shared(run(data__source=one), run(data__source=one, data__split="judge")) == (0, 0)


def test_a_judge_of_another_set_of_the_same_text_shares_documents(sets):
    one, other = run(data__source=str(sets / "one")), run(data__source=str(sets / "other"))
    training, held_out = shared(one, other)
    [trained] = [set(documents_of(one))]
    known = {"".join(text.split()) for text in documents_of(other)}
    assert training == sum("".join(text.split()) in known for text in trained) > 20
    assert held_out > 10
    assert shared(one, run(data__source=str(sets / "apart"))) == (0, 0)


def test_a_text_file_and_a_set_of_it_share_documents(sets):
    a_file = run(data__source=str(sets / "a.txt"), data__tokenizer="words")
    training, held_out = shared(a_file, run(data__source=str(sets / "one")))
    assert training > 50
    assert held_out > 0
    assert shared(a_file, run(data__source=str(sets / "b.txt"))) == (0, 0)


@pytest.mark.parametrize("source", ["tales", "markov"])
def test_built_in_corpora_share_documents_of_one_seed(source):
    first, same, other = (run(data__source=source, training__seed=seed) for seed in (1, 1, 2))
    num_trained = sum(1 for _ in documents_of(first))
    assert shared(first, same) == (num_trained, 0)
    assert shared(first, other) == (0, 0)


def test_a_few_repeated_documents_are_reported_and_more_are_refused():
    """Corpora repeat some documents: a share of at most `MOST_KNOWN` is no leak."""
    system = run(training__seed=1)
    trained = list(documents_of(system))
    apart = tales.stories(200, seed=99)
    for num_known, is_refused in ((10, False), (11, True)):
        known = KnownDocuments([*trained[:num_known], *apart[num_known:]], [system])
        if is_refused:
            with pytest.raises(ValueError, match="x was trained on 11 of the 200 held-out"):
                known.shared_with("x", system)
        else:
            assert known.shared_with("x", system).held_out == num_known


# Whole evaluations


@pytest.fixture(scope="module")
def runs(sets, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    stream = {"data.layout": "stream", "training.steps": 1}
    for name, changes in (
        ("run", {"data.source": str(sets / "one")}),
        ("judge", AUTOREGRESSIVE | {"data.source": str(sets / "one"), "data.split": "judge"}),
        ("apart", AUTOREGRESSIVE | {"data.source": str(sets / "apart")}),
        (
            "knowing",
            AUTOREGRESSIVE | {"data.source": str(sets / "other"), "data.length": 256},
        ),
    ):
        train_tiny(place / name, stream | changes)
    return place


def evaluation(runs, judge: str, data: str | None = None) -> Evaluation:
    config = EvaluationConfig(num_samples=4, mauve=False, matches=False)
    return Evaluation([runs / "run"], str(runs / judge), config, data=data, console=silent())


@pytest.mark.parametrize("data", [None, "one"])
def test_a_judge_that_knows_the_test_set_is_refused(sets, runs, data):
    """Also where `--data` names the text: it once made every judge of another split disjoint."""
    data = data and str(sets / data)
    with pytest.raises(ValueError, match=r"the judge .*knowing was trained on \d+ of the \d+ held"):
        evaluation(runs, "knowing", data)


@pytest.mark.parametrize("judge", ["judge", "apart"])
@pytest.mark.parametrize("data", [None, "one"])
def test_a_disjoint_judge_is_said_to_be_one(sets, runs, judge, data):
    facts = evaluation(runs, judge, data and str(sets / data)).judge_facts
    assert facts["disjoint"]
    assert facts["shared"] == {"training": 0, "held_out": 0}


def test_a_judge_that_knows_only_training_documents_is_not_disjoint(runs):
    system = run(data__source="tales")
    known = KnownDocuments(tales.stories(20, seed=99), [system])
    train_tiny(runs / "same", AUTOREGRESSIVE | {"training.steps": 1})
    facts = about_judge(str(runs / "same"), system, None, known)
    assert not facts["disjoint"]
    assert facts["shared"] == {"training": known.training.num_documents, "held_out": 0}


def test_a_judge_whose_text_has_gone_is_not_said_to_be_disjoint(sets, runs):
    (sets / "apart").rename(sets / "gone")
    try:
        for data in (None, str(sets / "one")):
            facts = evaluation(runs, "apart", data).judge_facts
            assert (facts["disjoint"], facts["shared"]) == (False, None)
    finally:
        (sets / "gone").rename(sets / "apart")
