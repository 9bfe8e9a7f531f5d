"""Speed of training: the Trainer's own loop on random tokens, whole steps with nothing left out.

Draws, both passes of the network, clipping, optimiser, moving average, warp and the lines of
metrics.jsonl are all timed. The clock waits for the device only at the ends of stretches of steps, so
that the device is kept as busy as in a real run.
"""

import gc
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from cdcd.benchmarks.flops import forward_flops, num_read, num_self_conditioned, step_flops
from cdcd.benchmarks.measure import (
    TERA,
    Timing,
    environment,
    matrix_rate,
    out_of_memory_as_error,
    peak_memory,
    reset_peak_memory,
    synchronise,
)
from cdcd.benchmarks.shapes import describe, synthetic_run
from cdcd.config import RunConfig
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.settings import override
from cdcd.training.compiling import is_compiled
from cdcd.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainBenchConfig:
    """Settings of the measurement of training."""

    steps: int = 50
    """Steps that are timed, in all."""
    warmup: int = 10
    """Steps before them that are not timed."""
    repeats: int = 5
    """Equal stretches of the timed steps; their median is reported."""
    matrix_size: int | None = None
    """Size of the matrix product that the rate is compared with; none: 8192 on a GPU, 2048 on a CPU."""

    def __post_init__(self) -> None:
        for name in ("steps", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.warmup < 1:
            raise ValueError(
                f"warmup is {self.warmup}, it must be at least 1: the first step compiles"
            )
        if self.steps % self.repeats:
            raise ValueError(f"steps ({self.steps}) must be a multiple of repeats ({self.repeats})")

    @property
    def marks(self) -> list[int]:
        """The steps after which the clock is read, from the end of the warm-up to the last."""
        stretch = self.steps // self.repeats
        return [self.warmup + i * stretch for i in range(self.repeats + 1)]


class Finished(Exception):  # noqa: N818
    """Raised when all steps are timed, so that the run is neither validated nor saved."""


class TimedTrainer(Trainer):
    """A Trainer that reads the clock after the steps in `marks`, and then stops."""

    marks: list[int]

    def train_step(self) -> Tensor:
        # One call more than steps: the last step's line of metrics is written before it.
        if self.step >= self.marks[-1]:
            raise Finished
        loss = super().train_step()
        if self.step == 1:
            self.first_step_at = self._now()
        if self.step in self.marks:
            self.times.append(self._now())
        return loss

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()

    def measure(self, marks: list[int]) -> Timing:
        """Returns the seconds of a step, between one mark and the next."""
        self.marks, self.times = marks, []
        with suppress(Finished):
            self.train()
        spans = zip(self.times, self.times[1:], strict=False)
        stretch = marks[1] - marks[0]
        return Timing.of([(end - start) / stretch for start, end in spans])


@dataclass(frozen=True)
class Measurement:
    """The speed of one configuration."""

    timing: Timing
    """Seconds of a step."""
    memory: dict[str, int]
    build_to_first_step: float
    """Seconds from an empty folder to the end of the first step, which compiles."""


def measure_training(config: RunConfig, bench: TrainBenchConfig) -> Measurement:
    """Trains a new run on random tokens in a temporary folder, and times it."""
    device = choose_device(config.training.device)
    config = _without_interruptions(config, bench.marks[-1])
    if is_compiled(config.training.compile, device):
        torch.compiler.reset()  # torch compiles a function for a few shapes only
    gc.collect()
    with (
        out_of_memory_as_error(describe(config)),
        tempfile.TemporaryDirectory(prefix="cdcd-bench-") as folder,
    ):
        reset_peak_memory(device)
        started = time.perf_counter()
        run, (train, valid) = synthetic_run(config, Path(folder))
        trainer = TimedTrainer(run, train, valid, console=Console(file=StringIO()))
        timing = trainer.measure(bench.marks)
        return Measurement(timing, peak_memory(device), trainer.first_step_at - started)


def _without_interruptions(config: RunConfig, steps: int) -> RunConfig:
    """Drops validation and checkpoints, and moves the end beyond the timed steps."""
    changes = {"validate_every": 0, "checkpoint_every": 0, "patience": 0}
    changes |= {"steps": max(config.training.steps, steps + 1)}
    return override(config, {f"training.{name}": value for name, value in changes.items()})


def bench_train(
    name: str,
    config: RunConfig,
    bench: TrainBenchConfig,
    *,
    compare_self_conditioning: bool = False,
) -> dict[str, Any]:
    """Measures everything that `cdcd bench train` reports."""
    device = choose_device(config.training.device)
    if compare_self_conditioning and not num_self_conditioned(config):
        raise ValueError("there is no self-conditioning to compare with: it is off in this shape")
    measured = measure_training(config, bench)
    vocab_size, rows = config.data.vocab_size, config.training.batch_size
    flops, seconds = step_flops(config, vocab_size), measured.timing.median
    compared = {}
    if compare_self_conditioning:
        compared = {"self_conditioning": _cost_of_self_conditioning(config, bench, seconds)}
    rate = matrix_rate(device, bench.matrix_size)
    tokens, tflops = rows * config.data.length, flops["total"] / seconds / TERA
    return {
        "benchmark": "train",
        "shape": name,
        "description": describe(config),
        "device": device.type,
        "dtype": str(choose_dtype(config.training.dtype, device)).removeprefix("torch."),
        "tokens_per_step": tokens,
        "seconds_per_step": measured.timing.as_dict(),
        "steps_per_s": 1 / seconds,
        "tokens_per_s": tokens / seconds,
        "flops_per_step": flops,
        "flops_of_forward": forward_flops(config, vocab_size, rows, num_read(config)[0]),
        "tflops": tflops,
        "peak_memory": measured.memory,
        "build_to_first_step_s": measured.build_to_first_step,
        **compared,
        "matrix": asdict(rate),
        "matrix_tflops": rate.tflops,
        "ratio": tflops / rate.tflops,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }


def _cost_of_self_conditioning(
    config: RunConfig, bench: TrainBenchConfig, seconds: float
) -> dict[str, Any]:
    """Times the same run without the first predictions, and compares the two."""
    without = override(config, {"objective.self_conditioning": False})
    off = measure_training(without, bench).timing
    flops = step_flops(config, config.data.vocab_size)
    extra = flops["self_conditioning"] + flops["interpolation"]
    return {
        "seconds_per_step_off": off.as_dict(),
        "share_of_step": 1 - off.median / seconds,
        "share_of_flops": extra / flops["total"],
    }
