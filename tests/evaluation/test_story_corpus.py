"""The corpus of stories: what is written is what was drawn and kept, and its numbers are those of its lines."""

import importlib.util
import json
import lzma

import pytest
import torch
from paths import ROOT
from tiny import cdcd_main
from tiny_stories import write_tiny_stories

from cdcd.languages.story_model import load_stories, story_log_probs
from cdcd.languages.story_tokenizer import BEGIN

LETTERS = [b" ", b"a", b"b", b"."]
"""No two of them merge, so that many draws are canonical."""


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "stories_corpus.py"
    spec = importlib.util.spec_from_file_location("stories_corpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_stories(
        tmp_path_factory.mktemp("corpus") / "model", seed=1, spread=0.4, pieces=LETTERS
    )


def written(script, model, out, *more: str) -> tuple[list[dict], dict]:
    options = ["--device", "cpu", "--tokens", "100", "--batch-size", "64", *more]
    script.main([str(model), str(out), *options])
    [file] = out.glob("stories.jsonl*")
    content = file.read_bytes()
    lines = (lzma.decompress(content) if file.suffix == ".xz" else content).splitlines()
    return list(map(json.loads, lines)), json.loads((out / "stories.json").read_text())


@pytest.fixture(scope="module")
def corpus(script, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("corpus") / "out"
    return out, *written(script, model, out)


def test_lines_have_the_probability_of_their_stories(model, corpus):
    _, stories, record = corpus
    network, tokenizer = load_stories(model, dtype=torch.float64)
    assert len(stories) == record["num_stories"] > 3
    num_tokens = 0
    for story in stories:
        tokens = [BEGIN, *tokenizer.encode(story["text"]), BEGIN]
        num_tokens += len(tokens) - 1
        exact = float(story_log_probs(network, torch.tensor([tokens])).sum())
        assert story["log_prob"] == pytest.approx(exact, abs=1e-3)
    assert num_tokens == record["num_tokens"] >= 100
    entropy, kept = record["entropy"], len(stories) / sum(record["outcomes"].values())
    assert entropy["kept_share"]["value"] == pytest.approx(kept)
    nats = -sum(story["log_prob"] for story in stories) / len(stories)
    expected = nats + float(torch.tensor(kept).log())
    assert entropy["nats_per_story"]["value"] == pytest.approx(expected, abs=1e-3)
    assert record["outcomes"]["not the canonical tokens of a text"] > 0


def test_a_corpus_depends_on_its_seed_and_not_on_the_batches(script, model, corpus, tmp_path):
    _, stories, _ = corpus
    larger, _ = written(script, model, tmp_path / "a", "--batch-size", "128", "--xz")
    assert [each["text"] for each in larger][: len(stories)] == [each["text"] for each in stories]
    other, _ = written(script, model, tmp_path / "b", "--seed", "1")
    assert other != stories


def test_a_corpus_can_be_prepared(corpus, tmp_path):
    out, stories, _ = corpus
    arguments = ["--tokenizer", "bytes", "--valid-share", "0.2", "--judge-share", "0.5"]
    source, place = str(out / "stories.jsonl"), str(tmp_path / "set")
    twice = ["--judge-share", "0.2", "--test-share", "0.2", "--workers", "1"]
    cdcd_main("data", "prepare", "--source", source, "--out", place, *arguments, *twice)
    described = json.loads((tmp_path / "set" / "dataset.json").read_text())
    assert sum(split["documents"] for split in described["splits"].values()) == len(stories)
    assert described["config"]["judge_share"] == 0.2


def test_a_model_whose_stories_are_not_kept_is_given_up(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "HOPELESS", 2)
    odd = write_tiny_stories(tmp_path / "model", seed=4, spread=0.4, pieces=LETTERS)
    with pytest.raises(SystemExit, match="no story was kept of the first 128 draws"):
        written(script, odd, tmp_path / "out")


def test_numbers_with_suffixes(script):
    assert script.number("1.5M") == 1_500_000
    assert script.number("70") == 70
