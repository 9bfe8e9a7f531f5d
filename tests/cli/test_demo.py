"""The demo from end to end, at tiny size: everything it promises is shown, saved and reusable."""

import json
from io import StringIO

import pytest
from rich.console import Console
from tiny import cdcd_main, tiny_config

from cdcd.cli import training_demo as demo


@pytest.fixture
def tiny_demo(monkeypatch):
    config = tiny_config({"data.length": 48})
    monkeypatch.setattr(demo, "preset", lambda _: config)
    monkeypatch.setattr(demo, "NUM_JUDGED", 64)


def shown(out) -> str:
    console = Console(file=StringIO(), width=100)
    demo.show_demo(out, console)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_demo_trains_shows_and_saves(tiny_demo, tmp_path):
    out = tmp_path / "demo"
    text = shown(out)
    for part in ("tokens/s", "Completions", "«One sunny day Mia»", "Filling gaps", "Try next"):
        assert part in text
    for setting in ("score temperature 0.9", "guidance scale 4.0"):
        assert setting in text
    for row in ("sentences that parse", "unigram entropy", "copied from the training set"):
        assert row in text
    quality = json.loads((out / "quality.json").read_text())
    assert quality["data (held out)"]["parse_share"] == 1
    assert quality["unigram"]["parse_share"] < 0.2
    assert quality["this model"]["num_tokens"] == quality["unigram"]["num_tokens"]
    for picture in ("time_warping.png", "denoising.png", "training.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    demo.train_demo(out, console := Console(file=StringIO(), width=100))
    assert "trained already" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_demo_goes_on_where_it_stopped(tiny_demo, tmp_path, capsys):
    out = tmp_path / "demo"
    trainer = demo.runs.start(demo.preset("demo"), out, console=Console(file=StringIO()))
    trainer.train_step()
    trainer.save()
    assert cdcd_main("demo", "--out", out) == 0
    assert "Going on" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 2_500), (0.116, 2_500), (0.25, 1_160)])
def test_a_slow_machine_trains_fewer_steps_and_says_so(monkeypatch, seconds, steps):
    monkeypatch.setattr(demo, "seconds_a_step", lambda _: seconds)
    console = Console(file=StringIO(), width=300)
    config = demo._affordable(demo.preset("demo"), console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert config.training.steps == steps
    assert config.training.decay_steps == round(600 * steps / 2_500)
    assert steps * seconds <= 290
    assert f"{64 * 44 / seconds:,.0f} tokens a second" in text
    assert ("too long for a demo" in text) == (steps < 2_500)
    assert f"about {2_500 * seconds / 60:.1f} minutes" in text
