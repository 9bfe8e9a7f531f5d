"""Runs that are stopped on the way, and the comparison with the run that was not."""

import signal
from pathlib import Path

import pytest
import torch
from tiny import contents, metrics

from cdcd.training.checkpoint import RunDirectory
from cdcd.training.trainer import Trainer

SEVEN = {
    "training.steps": 7,
    "training.log_every": 3,
    "training.validate_every": 4,
    "training.checkpoint_every": 5,
}
"""Logging, validation and checkpoints fall on different steps, so that a stop cuts through all."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, number: int = signal.SIGTERM) -> None:
    """Raises a real signal during step `steps` of the training that follows."""
    step = Trainer.train_step

    def and_signal(trainer: Trainer) -> torch.Tensor:
        loss = step(trainer)
        if trainer.step == steps:
            signal.raise_signal(number)
        return loss

    monkeypatch.setattr(Trainer, "train_step", and_signal)


def assert_same_run(run: Path, expected: Path) -> None:
    """Asserts equal last checkpoints, byte for byte, and equal metrics."""
    last = RunDirectory(expected).steps()[-1]
    assert RunDirectory(run).steps()[-1] == last
    files = contents(RunDirectory(run).folder(last))
    assert files == contents(RunDirectory(expected).folder(last))
    assert set(files) == {"weights.safetensors", "optimiser.safetensors", "checkpoint.json"}
    assert metrics(run) == metrics(expected)
