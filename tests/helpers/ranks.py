"""Jobs for several ranks: tiny trainings that every rank runs one after another.

A job starts a run, goes on with one ("resume") or distils one ("teacher"). "fault" breaks the exchange between the ranks, to
show that the tests would notice; "stop_at" sends the last rank a signal at a step.
"""

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from tiny import silent, tiny_config
from torch import Tensor, nn

from cdcd.training import run as runs
from cdcd.training import trainer as trainers
from cdcd.training.distributed import ALONE, World, join
from cdcd.training.parallel import Engine, whole

FAULTS = {
    "each rank divides by its own targets": (World, "sum", lambda self, x: x * self.size),
    "every rank draws the first rows": (World, "rows", lambda self, n: slice(0, n // self.size)),
    "gradients are averaged": (Engine, "backward", lambda self, loss: loss.backward()),
    "each rank fits its own warp": (World, "gather", lambda self, rows: rows),
}


def train(job: dict[str, Any], world: World = ALONE) -> Path:
    """Runs a job and writes the norm of every gradient to RUN/norms.json."""
    out = Path(job["out"])
    with mock.patch.object(*FAULTS[job["fault"]]) if "fault" in job else nullcontext():
        if job.get("resume"):
            trainer = runs.resume(out, changes=job["changes"], console=silent(), world=world)
        elif "teacher" in job:
            teacher = Path(job["teacher"])
            trainer = runs.distil(
                teacher, out, changes=job["changes"], console=silent(), world=world
            )
        else:
            trainer = runs.start(tiny_config(job["changes"]), out, console=silent(), world=world)
        with recorded_norms() as norms:
            if "stop_at" not in job:
                trainer.train()
            else:
                train_and_stop(trainer, job["stop_at"])
    if world.is_main:
        (out / "norms.json").write_text(json.dumps(norms))
    return out


def train_and_stop(trainer: trainers.Trainer, step: int) -> None:
    """Trains until the last rank gets a signal, and writes each rank's message to RUN/stopped-RANK."""
    one_step, world = trainer.train_step, trainer.world

    def and_signal() -> Tensor:
        loss = one_step()
        if trainer.step == step and world.rank == world.size - 1:
            signal.raise_signal(signal.SIGTERM)
        return loss

    trainer.train_step = and_signal
    try:
        trainer.train()
    except trainers.Stopped as stopped:
        (trainer.run.path / f"stopped-{world.rank}").write_text(str(stopped))


@contextmanager
def recorded_norms() -> Iterator[list[float]]:
    """Records the norm of every gradient: Adam ignores it, so the losses alone would not tell."""
    norms, clip = [], nn.utils.clip_grad_norm_

    def record(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
        parameters = list(parameters)
        gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
        norms.append(float(nn.utils.get_total_norm([whole(g) for g in gradients])))
        return clip(parameters, max_norm)

    with mock.patch.object(nn.utils, "clip_grad_norm_", record):
        yield norms


def run_on_rank(jobs: list[dict[str, Any]]) -> None:
    """Runs all jobs on one of the ranks."""
    with join() as world:
        for job in jobs:
            train(job, world)
