"""A run that was stopped, killed or broken goes on as if nothing had happened, bit for bit."""

import os
import random
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forks import end_of, fork, fork_cdcd, wait_for
from interruptions import SEVEN, assert_same_run, stop_after
from tiny import cdcd_main, metrics, resume_tiny, start_tiny, tiny_options, train_tiny

import cdcd
from cdcd.training import tasks
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.monitoring import Stopped

ADAPTED = {
    "embedding.normalise": False,
    "embedding.init_scale": 2.0,
    "embedding.l2_penalty": 0.1,
    "embedding.l2_adapted": True,
}
LONG = {"training.steps": 80, "training.checkpoint_every": 0}


@pytest.fixture(
    scope="module",
    params=[{}, {"training.accumulate": 2}, {"training.optimiser": "muon"}, ADAPTED],
    ids=["adam", "accumulate", "muon", "adapted"],
)
def uninterrupted(request, tmp_path_factory):
    whole = tmp_path_factory.mktemp("uninterrupted") / "whole"
    return request.param, train_tiny(whole, SEVEN | request.param)


@pytest.mark.parametrize("stop", [1, 5, 6])
def test_stopped_and_resumed_is_uninterrupted(tmp_path, monkeypatch, uninterrupted, stop):
    changes, whole = uninterrupted
    trainer = start_tiny(tmp_path / "stopped", SEVEN | changes)
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Stopped, match=f"stopped at step {stop} and saved"):
            trainer.train()
    assert RunDirectory(tmp_path / "stopped").steps()[-1] == stop
    resume_tiny(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole)


def test_the_state_compared_covers_everything_that_trains(tmp_path):
    """A power check: a step changes every group of tensors that the tests above compare."""
    run = RunDirectory(train_tiny(tmp_path / "run", SEVEN))
    before, after = (run.load(step, with_optimiser=True) for step in (5, 7))
    for group in ("model.", "average.", "warp."):
        changed = [
            name
            for name, tensor in after.weights.items()
            if name.startswith(group) and not torch.equal(tensor, before.weights[name])
        ]
        assert changed, group
    for group in ("model.adam.exp_avg.", "model.adam.exp_avg_sq.", "model.adam.step.", "warp.adam"):
        changed = [
            name
            for name, tensor in after.optimiser.items()
            if name.startswith(group) and not torch.equal(tensor, before.optimiser[name])
        ]
        assert changed, group


def test_an_adapted_weight_grows_where_the_variance_is_too_large(tmp_path):
    run = RunDirectory(train_tiny(tmp_path / "run", SEVEN | ADAPTED))
    weight = run.load(7).weights["model.embedding.log_l2_weight"].exp()
    assert 1.005 * 0.1 < float(weight) < 1.05 * 0.1


def test_a_signal_in_the_last_step_lets_the_run_finish(tmp_path, monkeypatch):
    whole = train_tiny(tmp_path / "whole", SEVEN)
    trainer = start_tiny(tmp_path / "run", SEVEN)
    stop_after(monkeypatch, 7)
    trainer.train()
    assert_same_run(tmp_path / "run", whole)


def test_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train_tiny(tmp_path / "run")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path):
    changes = {"training.steps": 3, "training.clip_norm": 0.0, "training.learning_rate": 1e-3}
    one, two = (
        RunDirectory(
            train_tiny(tmp_path / f"{parts}", changes | {"training.accumulate": parts})
        ).load()
        for parts in (1, 2)
    )
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=2e-5, msg=name)


# Processes of their own and real signals


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("long") / "whole", LONG)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(tmp_path, long_run, number, code):
    run, output = tmp_path / "my run", tmp_path / "output"
    process = fork_cdcd("train", "--out", run, *tiny_options(LONG), output=output)
    log = run / "metrics.jsonl"
    wait_for(lambda: not process.is_alive() or (log.exists() and log.stat().st_size > 0))
    assert process.pid is not None
    os.kill(process.pid, number)
    assert end_of(process) == [code], output.read_text()
    assert "Traceback" not in output.read_text()
    [(step, command)] = re.findall(
        r"stopped at step (\d+) and saved; go on with: (.*)", output.read_text()
    )
    assert 0 < int(step) < 80
    assert cdcd_main(*shlex.split(command)[1:]) == 0
    assert_same_run(run, long_run)


BUSY = {
    "training.steps": 10_000,
    "training.checkpoint_every": 1,
    "training.validate_every": 0,
    "training.keep_checkpoints": 2,
}


def assert_absent_or_whole(run: Path) -> None:
    """Nothing there, or a run that loads, samples and goes on."""
    if not run.exists():
        train_tiny(run)
        return
    model = cdcd.load(run)
    assert len(model.generate(model.prompt_canvas(""), num_samples=2)) == 2
    step = RunDirectory(run).steps()[-1]
    resume_tiny(run, changes={"training.steps": step + 3})
    assert RunDirectory(run).steps()[-1] == step + 3
    assert not list((run / "checkpoints").glob(".*"))
    rows = [row["step"] for row in metrics(run) if "loss" in row]
    assert rows == list(range(1, step + 4))


@pytest.mark.parametrize(
    "moment",
    [".run.building-*", "run/checkpoints", "run/checkpoints/.step-*.writing"],
    ids=["creating", "created", "checkpointing"],
)
def test_a_killed_process_leaves_nothing_or_a_whole_run(tmp_path, moment):
    options = tiny_options(BUSY)
    process = fork_cdcd("train", "--out", tmp_path / "run", *options, output=tmp_path / "output")
    wait_for(lambda: any(tmp_path.glob(moment)))
    process.kill()
    assert end_of(process) == [-signal.SIGKILL]
    assert_absent_or_whole(tmp_path / "run")


@pytest.mark.parametrize("seed", range(5))
def test_kills_at_random_moments(tmp_path, seed):
    process = fork(train_tiny, tmp_path / "run", BUSY, output=tmp_path / "output")
    time.sleep(random.Random(seed).uniform(0.02, 0.4))
    process.kill()
    assert end_of(process) == [-signal.SIGKILL]
    assert_absent_or_whole(tmp_path / "run")


@pytest.mark.parametrize("name", [".step-00000009.writing", ".step-00000002.deleting"])
def test_left_over_temporaries_are_never_checkpoints(tmp_path, name):
    run = train_tiny(tmp_path / "run")
    left_over = run / "checkpoints" / name
    left_over.mkdir()
    (left_over / "weights.safetensors").write_bytes(b"half")
    assert RunDirectory(run).steps() == [2, 4, 6]
    assert_absent_or_whole(run)
    assert not left_over.exists()


# Broken numbers


def test_a_loss_that_is_not_finite_names_step_level_and_checkpoint(tmp_path, monkeypatch):
    loss, levels = tasks.training_loss, []

    def poisoned(*args, **kwargs):
        losses = loss(*args, **kwargs)
        levels.append(float(args[3].t[2]))
        if len(levels) != 4:
            return losses
        per_sequence = losses.per_sequence.clone()
        per_sequence[2] = torch.nan
        return replace(losses, total=losses.total * torch.nan, per_sequence=per_sequence)

    monkeypatch.setattr(tasks, "training_loss", poisoned)
    trainer = start_tiny(tmp_path / "run", {"training.log_every": 100, "training.steps": 20})
    with pytest.raises(ValueError, match="the loss is not finite at step 3") as caught:
        trainer.train()
    assert f"at noise level t = {levels[3]:.3g};" in str(caught.value)
    assert_last_good(tmp_path / "run", str(caught.value), step=2)


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    """The loss of step 3 is finite, but its update is not; the checkpoint after it must not exist."""
    trainer = start_tiny(tmp_path / "run")
    step = trainer.optimiser.step

    def poisoned() -> None:
        if trainer.step == 3:
            trainer.model.head.bias.grad.fill_(torch.nan)
        step()

    monkeypatch.setattr(trainer.optimiser, "step", poisoned)
    with pytest.raises(ValueError, match="not finite after step 4") as caught:
        trainer.train()
    assert_last_good(tmp_path / "run", str(caught.value), step=2)


def assert_last_good(run: Path, message: str, *, step: int) -> None:
    assert f"the last good checkpoint is {RunDirectory(run).folder(step)}" in message
    assert f"cdcd train --resume --out {run}" in message
    assert RunDirectory(run).steps()[-1] == step
    saved = RunDirectory(run).load(with_optimiser=True)
    assert all(t.isfinite().all() for t in (saved.weights | saved.optimiser).values())
    assert cdcd.load(run).complete()
