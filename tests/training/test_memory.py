"""Estimates of memory: what cannot fit is refused before it is drawn, read or built, and leaves nothing."""

import os

import pytest
import torch
from tiny import cdcd_main, contents, tiny_config, train_tiny

from cdcd import memory
from cdcd.data.corpus import built_in_documents, read_documents
from cdcd.languages import markov_chain, tales
from cdcd.training.build import build_model
from cdcd.training.distributed import ALONE
from cdcd.training.memory import refuse_what_cannot_fit


@pytest.fixture
def has_memory(monkeypatch):
    """Makes this machine one of so many bytes."""
    return lambda size: monkeypatch.setattr(memory, "_limits", lambda: iter([size]))


def test_the_least_limit_counts(tmp_path, monkeypatch):
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    file = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", (str(file), str(tmp_path / "absent")))
    assert memory.available_memory() == has
    for content, expected in (("max\n", has), (f"{has * 2}\n", has), ("123456\n", 123456)):
        file.write_text(content)
        assert memory.available_memory() == expected


def test_a_trial_does_not_change_what_is_drawn():
    tale = built_in_documents("tales", count=400, length=9, num_states=2, seed=3)
    assert tale == tales.stories(400, seed=3)
    chain = built_in_documents("markov", count=400, length=9, num_states=5, seed=3)
    assert chain == markov_chain(5).documents(400, 8, seed=3)


@pytest.mark.parametrize(
    ("source", "fits", "too_many"), [("tales", 2_000, 100_000), ("markov", 2_000, 100_000)]
)
def test_documents_are_drawn_where_they_fit(has_memory, source, fits, too_many):
    settings = {"length": 24, "num_states": 5, "seed": 0}
    has_memory(10**7)
    assert len(built_in_documents(source, count=fits, **settings)) == fits
    with pytest.raises(ValueError, match=r"100,000 documents, drawn in about .* hours, would need"):
        built_in_documents(source, count=too_many, **settings)


def test_a_text_is_read_where_it_fits(has_memory, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("one sunny day\n" * 1000)
    has_memory(70_000)
    assert len(read_documents(str(file))) == 1000
    has_memory(69_999)
    with pytest.raises(ValueError, match=r"as it is would .* cdcd data prepare --source \S+ --out"):
        read_documents(str(file))


def test_a_vocabulary_is_learnt_where_its_text_fits(has_memory, tmp_path, capfd):
    file = tmp_path / "text.txt"
    file.write_text("one sunny day\n" * 1000)
    command = ("data", "prepare", "--source", file, "--vocab-size", 300)
    has_memory(3 * 14_000 - 1)
    assert cdcd_main(*command, "--out", tmp_path / "set") == 2
    assert "learning from 14,000 bytes of text would need" in capfd.readouterr().err
    assert set(contents(tmp_path)) == {"text.txt"}
    for size, options in ((3 * 14_000, ()), (3 * 5_000, ("--tokenizer-bytes", 5_000))):
        has_memory(size)
        out = ("--out", tmp_path / f"set of {size}", "--workers", 1)
        assert cdcd_main(*command, *out, *options) == 0


@pytest.mark.parametrize("task", ["text", "translation"])
@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_estimate_of_a_training(has_memory, task, optimiser, accumulate):
    config = tiny_config(
        {"task": task, "training.optimiser": optimiser, "training.accumulate": accumulate}
    )
    weights = sum(p.numel() for p in build_model(config, 50).parameters())
    tokens = config.training.batch_size // accumulate * config.data.length
    state = torch.get_rng_state()
    has_memory(weights * {"adam": 16, "muon": 12}[optimiser] + tokens * 50 * 4)
    refuse_what_cannot_fit(config, 50, ALONE)
    has_memory(weights * {"adam": 16, "muon": 12}[optimiser] + tokens * 50 * 4 - 1)
    message = rf"training {weights:,} weights on {tokens:,} tokens .*lower training.batch_size"
    with pytest.raises(ValueError, match=message):
        refuse_what_cannot_fit(config, 50, ALONE)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "options",
    [
        ("--data.num-documents", 900_000_000),
        ("--data", "markov", "--data.num-states", 4_000),
        ("--task", "translation", "--preset", "numerals", "--data.num-documents", 900_000_000),
        ("--network.width", 8192),
        ("--training.batch-size", 1_000_000),
    ],
)
def test_nothing_is_left_of_a_refused_run(has_memory, tmp_path, capfd, options):
    has_memory(10**8)
    assert cdcd_main("train", "--out", tmp_path / "run", *options) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "GB of memory, and there are 0.1 GB; " in error
    assert contents(tmp_path) == {}


def test_a_run_that_is_resumed(has_memory, tmp_path, capfd):
    run = train_tiny(tmp_path / "run")
    before = contents(run)
    has_memory(10**5)
    steps = ("--training.steps", 8)
    assert cdcd_main("train", "--resume", "--out", run, *steps) == 2
    assert "GB of memory" in capfd.readouterr().err
    assert contents(run) == before
    has_memory(10**9)
    assert cdcd_main("train", "--resume", "--out", run, *steps) == 0
