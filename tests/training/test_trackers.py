"""Trackers are given the numbers of metrics.jsonl, each with its step, and are ended with the run."""

import importlib.util
import json
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
from tiny import cdcd_main, tiny_options

from cdcd.settings import flatten
from cdcd.training import trackers
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

TRAIN = ["train", *tiny_options()]


class Recorder:
    """A module with the interface of Weights & Biases, which records its calls."""

    def __init__(self, error=None):
        self.started, self.logged, self.ended, self.error = [], [], 0, error
        self.__spec__ = object()

    def init(self, **options):
        if self.error:
            raise self.error
        self.started.append(options)
        return SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, numbers, *, step):
        self.logged.append((step, numbers))

    def finish(self):
        self.ended += 1


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    return recorder


def numbers_of(run):
    """The numbers of each row of the metrics, with the step."""
    return [
        (row["step"], {n: v for n, v in row.items() if type(v) is float})
        for row in read_metrics(run / "metrics.jsonl")
    ]


def test_a_tracker_gets_every_number_of_the_metrics_and_the_settings(recorder, tmp_path):
    assert cdcd_main(*TRAIN, "--out", tmp_path / "mine", "--training.tracker", "wandb") == 0
    [options] = recorder.started
    config = RunDirectory(tmp_path / "mine").config
    expected = {"project": "cdcd", "name": "mine", "config": flatten(config), "resume": "never"}
    assert options == expected
    assert options["config"]["training.tracker"] == "wandb"
    assert recorder.logged == numbers_of(tmp_path / "mine")
    assert [step for step, _ in recorder.logged] == [1, 2, 3, 4, 5, 6, 6]
    assert {name for _, numbers in recorder.logged for name in numbers} == {
        *("loss", "learning_rate", "tokens_per_second", "valid_loss")
    }
    assert recorder.ended == 1


def test_a_resumed_run_goes_on_where_the_tracker_can(recorder, run):
    more = ("--training.steps", 8, "--training.tracker", "wandb")
    assert cdcd_main("train", "--resume", "--out", run, *more) == 0
    assert [options["resume"] for options in recorder.started] == ["allow"]
    assert recorder.logged == [row for row in numbers_of(run) if row[0] > 6]


def test_a_run_that_is_broken_off_ends_its_tracker(recorder, tmp_path, monkeypatch):
    def fail(self, display):
        raise ValueError("broken off")

    monkeypatch.setattr("cdcd.training.trainer.Trainer._log", fail)
    assert cdcd_main(*TRAIN, "--out", tmp_path / "run", "--training.tracker", "wandb") == 2
    assert (len(recorder.started), recorder.ended) == (1, 1)


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_made(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    assert cdcd_main(*TRAIN, "--out", tmp_path / "run", "--training.tracker", name) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"training.tracker is {name}, which is not installed: pip install {name}" in line
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_does_not_start_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", Recorder(RuntimeError("no API key")))
    assert cdcd_main(*TRAIN, "--out", tmp_path / "run", "--training.tracker", "wandb") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "wandb did not start: no API key; set it up" in line
    assert "--training.tracker off" in line


def test_no_tracker_is_asked_for_by_default(recorder, tmp_path, monkeypatch):
    """One that is installed may send what it is given to another machine."""
    monkeypatch.setattr(trackers, "TensorBoard", lambda folder: None)
    assert cdcd_main(*TRAIN, "--out", tmp_path / "run") == 0
    assert recorder.started == []


def test_tensorboard_has_the_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is in the extra tracking")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert cdcd_main(*TRAIN, "--out", tmp_path / "run") == 0
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    rows = [
        (row["step"], row["loss"])
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if "loss" in row
    ]
    assert shown == [(step, pytest.approx(loss)) for step, loss in rows]


def test_trackio_has_the_numbers(tmp_path, monkeypatch):
    """The package itself, which keeps them in a database."""
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert cdcd_main(*TRAIN, "--out", tmp_path / "mine", "--training.tracker", "trackio") == 0
    with closing(sqlite3.connect(tmp_path / "trackio" / "cdcd.db")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = 'mine'")
        logged = [(step, json.loads(numbers)) for step, numbers in rows]
    assert logged == numbers_of(tmp_path / "mine")
