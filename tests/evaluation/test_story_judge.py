"""The judge of stories gives the probability of a text in the language itself, part by part."""

import json
import lzma
import math
import re

import pytest
import torch
from paths import REAL
from tiny import cdcd_main, train_tiny
from tiny_stories import tiny_tokenizer, write_tiny_stories

from cdcd.data.tokenizers import ByteTokenizer, Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.held_out import judge_remarks
from cdcd.evaluation.judges import about_external, load_judge
from cdcd.evaluation.story_judge import StoryJudge
from cdcd.evaluation.texts import Texts
from cdcd.languages.story_model import CONTEXT, load_stories, story_log_probs
from cdcd.languages.story_tokenizer import BEGIN

BYTES = ByteTokenizer()
STORIES = ["abc ab.", "a cab aba ab", "c", "ab abca\nab", "a é."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_stories(tmp_path_factory.mktemp("stories") / "model")


@pytest.fixture(scope="module")
def judge(folder) -> StoryJudge:
    found = load_judge(f"stories15m:{folder}", BYTES, 64, device="cpu")
    assert isinstance(found, StoryJudge)
    return found


def rows_of(documents: list[list[int]], given: int, tokenizer: Tokenizer = BYTES) -> Texts:
    longest = max(map(len, documents))
    rows = torch.tensor([row + [PAD] * (longest - len(row)) for row in documents])
    lengths = torch.tensor([len(row) for row in documents])[:, None]
    places = torch.arange(longest)
    return Texts(rows, (places >= given) & (places < lengths))


def ended(text: str) -> list[int]:
    return [*BYTES.encode(text), EOS]


def log_prob(judge: StoryJudge, tokens: list[int]) -> float:
    """ln p of tokens after `BEGIN`, one prefix after another."""
    total, before = 0.0, [BEGIN]
    for token in tokens:
        logits = judge.model.logits(torch.tensor([before]))[0, -1].double()
        total += float(logits.log_softmax(0)[token])
        before.append(token)
    return total


def test_whole_stories_have_the_probability_of_their_tokens_and_their_end(judge):
    expected = [-log_prob(judge, [*tiny_tokenizer().encode(text), BEGIN]) for text in STORIES]
    texts = rows_of(list(map(ended, STORIES)), 0)
    assert judge.nats(texts).tolist() == pytest.approx(expected, rel=1e-5)
    counts = [len(tiny_tokenizer().encode(text)) + 1 for text in STORIES]
    assert judge.num_tokens(texts).tolist() == counts


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_change_nothing(judge, batch_size):
    texts = rows_of(list(map(ended, STORIES)), 2)
    small = StoryJudge("small", judge.model, judge.story_tokenizer, BYTES, batch_size)
    torch.testing.assert_close(small.nats(texts), judge.nats(texts), rtol=1e-5, atol=1e-5)


def test_a_part_is_conditioned_on_what_is_given(judge):
    """Where a token of the judge begins with the generated part, its nats are those of its tokens."""
    tokenizer = tiny_tokenizer()
    text, given = "abc ab.", "abc"
    tokens, before = tokenizer.encode(text), tokenizer.encode(given)
    assert tokens[: len(before)] == before
    expected = -log_prob(judge, [*tokens, BEGIN]) + log_prob(judge, before)
    [found] = judge.nats(rows_of([ended(text)], len(given))).tolist()
    assert found == pytest.approx(expected, rel=1e-5)
    assert found != pytest.approx(-log_prob(judge, [*tokens[len(before) :], BEGIN]), rel=1e-3)


def test_a_token_that_has_begun_is_conditioned_on_its_first_bytes(judge):
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode("c ab.")
    assert [tokenizer.piece(token) for token in tokens] == [b" ", b"c", b" ab", b"."]
    [found] = judge.nats(rows_of([ended("c ab.")], len("c a"))).tolist()
    logits = judge.model.logits(torch.tensor([[BEGIN, *tokens[:2]]]))[0, -1].double()
    shares = logits.softmax(0).tolist()
    begun = sum(share for t, share in enumerate(shares) if tokenizer.piece(t)[:2] == b" a")
    rest = -log_prob(judge, [*tokens, BEGIN]) + log_prob(judge, tokens[:3])
    expected = rest - math.log(shares[tokens[2]]) + math.log(begun)
    assert found == pytest.approx(expected, rel=1e-5)
    assert math.log(begun / shares[tokens[2]]) > 0.1


def test_documents_of_a_row_are_read_on_their_own(judge):
    first, second = ended("abc ab."), ended("a cab")
    together = judge.nats(rows_of([[*first, *second]], 3))
    alone = judge.nats(rows_of([first], 3)) + judge.nats(rows_of([second], 0))
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    # The end of a document is no newline: that is another text.
    assert judge.nats(rows_of([ended("abc ab.\na cab")], 3)) != pytest.approx(together, rel=1e-2)


def test_beyond_the_context_the_nearest_half_is_read(judge):
    text = "abc ca." * 130
    tokens = [BEGIN, *tiny_tokenizer().encode(text), BEGIN]
    assert len(tokens) > CONTEXT + 130
    rows, total = torch.tensor([tokens]), 0.0
    for number in range(1, len(tokens)):
        windows = [s for s in range(0, len(tokens), CONTEXT // 2) if s < number <= s + CONTEXT]
        start = windows[0]
        scores = story_log_probs(judge.model, rows[:, start : start + CONTEXT + 1])
        total -= float(scores[0, number - start - 1])
    assert float(judge.nats(rows_of([ended(text)], 0))) == pytest.approx(total, rel=1e-5)


def test_features_have_read_the_last_document_to_its_end(judge):
    tokens = [BEGIN, *tiny_tokenizer().encode("a cab"), BEGIN]
    expected = judge.model.states(torch.tensor([tokens]))[0, -1].float()
    texts = rows_of([[*ended("abc"), *ended("a cab")], ended("a cab")], 1)
    for feature in judge.features(texts):
        torch.testing.assert_close(feature, expected)


def test_a_report_says_what_is_not_known(folder):
    facts = about_external(f"stories15m:{folder}")
    assert facts is not None
    assert facts["disjoint"] == "unknown"
    assert "not known" in next(judge_remarks(facts))


def test_an_evaluation_by_the_truth(folder, tmp_path):
    run = train_tiny(tmp_path / "run")
    options = ["--num-samples", "4", "--mauve", "false", "--matches", "false", "--num-steps", "2"]
    sweep = ["--sweep", "score-temperature=1.0,0.9", "--out", str(tmp_path / "out")]
    cdcd_main("evaluate", str(run), "--judge", f"stories15m:{folder}", *options, *sweep)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["judge"]["disjoint"] == "unknown"
    assert set(report["best"]["settings"]) == {"cdcd"}
    assert len(report["rows"]) == 3
    for row in report["rows"]:
        measured, mean = row["measured"][0], row["mean"]
        assert measured["nats_per_judge_token"] > 0
        for name in ("sample_entropy", "repetition", "distinct_2", "nats_per_judge_token"):
            assert mean[name]["value"] >= 0
        assert len(measured["statistics"]["distinct"]) == 4


# Files


def test_folders_that_hold_no_stories(tmp_path, folder):
    with pytest.raises(
        ValueError, match=r"absent holds no model of stories: it needs tokenizer\.bin"
    ):
        load_judge(f"stories15m:{tmp_path / 'absent'}", BYTES, 64, device="cpu")
    broken = write_tiny_stories(tmp_path / "broken")
    (broken / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        ValueError, match=r"weights.safetensors holds no model of stories"
    ) as caught:
        load_stories(broken)
    assert "\n" not in str(caught.value)
    (broken / "tokenizer.bin").write_bytes((folder / "tokenizer.bin").read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"tokenizer.bin is no tokenizer of llama2.c: it is cut short"
    ):
        load_stories(broken)


def test_weights_of_another_vocabulary_are_refused(tmp_path):
    folder = write_tiny_stories(tmp_path / "other")
    content = (folder / "tokenizer.bin").read_bytes()
    (folder / "tokenizer.bin").write_bytes(content[:-9])
    with pytest.raises(ValueError, match=r"emb is \(272, 16\), it must be \(271, 16\)"):
        load_stories(folder)


# The real model


@pytest.mark.skipif(not (REAL / "stories15m").is_dir(), reason="the real model is not here")
@pytest.mark.skipif(not (REAL / "tinystories").is_dir(), reason="the real stories are not here")
def test_the_real_model_knows_real_stories():
    """Its README has 0.94 nats a token and 0.360 bits a character on 60 validation stories, 7.96 shuffled."""
    compressed = (REAL / "tinystories" / "valid.txt.xz").read_bytes()
    content = lzma.decompress(compressed).decode()
    stories = re.split(r"\n\n(?=Once upon a time|One day,)", content.strip())[1:8]
    documents = [ended(story.replace("\n\n", "\n")[:800]) for story in stories]
    judge = load_judge(f"stories15m:{REAL / 'stories15m'}", BYTES, 800, device="cpu")
    whole = rows_of([row[:-1] for row in documents], 0)
    nats, tokens = float(judge.nats(whole).sum()), int(judge.num_tokens(whole).sum())
    characters = sum(map(len, documents)) - len(documents)
    assert 0.85 < nats / tokens < 1.1
    assert 0.32 < nats / 0.6931 / characters < 0.43
