"""How fast a run trains: the Trainer's own loop on random tokens, whole steps and nothing left out.

Draws, both passes of the network, clipping, optimiser, moving average, warp and the lines of
metrics.jsonl are all inside of what is timed. The device is waited for only at the ends of stretches of
steps, so that it is kept as busy as in a real run.
"""

import gc
import sys
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

from cdcd.benchmarks.flops import forward_flops, num_read, step_flops
from cdcd.benchmarks.measure import (
    TERA,
    Timing,
    environment,
    matrix_rate,
    out_of_memory_as_error,
    peak_memory,
    process_age,
    reset_peak_memory,
    synchronise,
)
from cdcd.benchmarks.shapes import describe, synthetic_run
from cdcd.config import RunConfig
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.settings import override
from cdcd.training.trainer import Trainer

PROFILED_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class TrainBenchConfig:
    """How training is measured."""

    steps: int = 50
    """Steps that are timed, in all."""
    warmup: int = 10
    """Steps before them that are not."""
    repeats: int = 5
    """Equal stretches that the timed steps are cut into: their median is reported."""
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


class Enough(Exception):  # noqa: N818
    """All steps are timed; the run is not validated and saved."""


class TimedTrainer(Trainer):
    """A Trainer that reads the clock after some steps, and then stops."""

    marks: list[int]

    def train_step(self) -> Tensor:
        # Asked for one step more than the last: its line of metrics is written.
        if self.step >= self.marks[-1]:
            raise Enough
        loss = super().train_step()
        if self.step == 1:
            self.first_step_at, self.first_step_age = self._now(), process_age()
        if self.step in self.marks:
            self.times.append(self._now())
        return loss

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()

    def measure(self, marks: list[int]) -> Timing:
        """Seconds a step, between one mark and the next."""
        self.marks, self.times = marks, []
        with suppress(Enough):
            self.train()
        spans = zip(self.times, self.times[1:], strict=False)
        stretch = marks[1] - marks[0]
        return Timing.of([(end - start) / stretch for start, end in spans])


@dataclass(frozen=True)
class Measured:
    """One configuration's speed."""

    seconds_per_step: Timing
    memory: dict[str, int]
    build_to_first_step: float
    launch_to_first_step: float | None
    profile: dict[str, Any] | None = None


def measure_training(
    config: RunConfig, bench: TrainBenchConfig, *, profile: bool = False
) -> Measured:
    """Train a new run on random tokens in a temporary folder, and time it."""
    device = choose_device(config.training.device)
    config = _without_interruptions(config, bench.marks[-1])
    forget_compiled()
    with (
        out_of_memory_as_error(describe(config)),
        tempfile.TemporaryDirectory(prefix="cdcd-bench-") as folder,
    ):
        reset_peak_memory(device)
        started = time.perf_counter()
        run, (train, valid) = synthetic_run(config, Path(folder))
        trainer = TimedTrainer(run, train, valid, console=Console(file=StringIO()))
        timing = trainer.measure(bench.marks)
        return Measured(
            timing,
            peak_memory(device),
            trainer.first_step_at - started,
            trainer.first_step_age,
            profile_steps(trainer, timing.median) if profile else None,
        )


def _without_interruptions(config: RunConfig, steps: int) -> RunConfig:
    """No validation, no checkpoint, and an end that is not reached."""
    changes = {"validate_every": 0, "checkpoint_every": 0, "patience": 0}
    changes |= {"steps": max(config.training.steps, steps + 1)}
    return override(config, {f"training.{name}": value for name, value in changes.items()})


def forget_compiled() -> None:
    """Free what was compiled for earlier shapes: torch stops compiling after a few of them."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()


def profile_steps(trainer: TimedTrainer, plain_seconds: float) -> dict[str, Any]:
    """Where the time of a step goes: by operation, and what is left for Python between them."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    trainer.marks = [trainer.step + PROFILED_STEPS]
    with profile(activities=activities) as profiler:
        started = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            trainer.train_step()
        seconds = (trainer._now() - started) / PROFILED_STEPS
    return profile_summary(profiler.key_averages(), seconds, plain_seconds, trainer.device)


def profile_summary(
    events: Any, seconds: float, plain_seconds: float, device: torch.device
) -> dict[str, Any]:
    """Operations by their own time a step, most expensive first.

    A profile slows every operation down a little: the share left for Python is of the profiled step.
    """
    kind = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = [
        {
            "operation": event.key,
            "seconds_per_step": getattr(event, kind) / 1e6 / PROFILED_STEPS,
            "calls_per_step": event.count / PROFILED_STEPS,
        }
        for event in events
    ]
    rows.sort(key=lambda row: -row["seconds_per_step"])
    inside = sum(row["seconds_per_step"] for row in rows)
    return {
        "seconds_per_step": seconds,
        "seconds_per_step_unprofiled": plain_seconds,
        "seconds_in_operations": inside,
        "share_outside_operations": max(0.0, 1 - inside / seconds),
        "calls_per_step": sum(row["calls_per_step"] for row in rows),
        "operations": rows[:20],
    }


def bench_train(
    name: str,
    config: RunConfig,
    bench: TrainBenchConfig,
    *,
    compare_self_conditioning: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Everything that `cdcd bench train` reports."""
    device = choose_device(config.training.device)
    if compare_self_conditioning and not self_conditioned(config):
        raise ValueError("there is no self-conditioning to compare with: it is off in this shape")
    measured = measure_training(config, bench, profile=profile)
    result = training_result(config, measured)
    if compare_self_conditioning:
        result["self_conditioning"] = _compare(config, bench, measured, result)
    rate = matrix_rate(device, bench.matrix_size)
    return {
        "benchmark": "train",
        "shape": name,
        "description": describe(config),
        **result,
        "matrix": rate.as_dict(),
        "matrix_tflops": rate.tflops,
        "ratio": result["tflops"] / rate.tflops,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }


def self_conditioned(config: RunConfig) -> bool:
    """Whether some rows get a first prediction."""
    objective = config.objective
    shared = objective.self_conditioned_share > 0
    return config.model == "diffusion" and objective.self_conditioning and shared


def training_result(config: RunConfig, measured: Measured) -> dict[str, Any]:
    """Rates that follow from seconds a step."""
    device = choose_device(config.training.device)
    vocab_size, rows = config.data.vocab_size, config.training.batch_size
    flops, seconds = step_flops(config, vocab_size), measured.seconds_per_step.median
    tokens = rows * config.data.length
    result = {
        "device": device.type,
        "dtype": str(choose_dtype(config.training.dtype, device)).removeprefix("torch."),
        "tokens_per_step": tokens,
        "seconds_per_step": measured.seconds_per_step.as_dict(),
        "steps_per_s": 1 / seconds,
        "tokens_per_s": tokens / seconds,
        "flops_per_step": flops,
        "flops_of_forward": forward_flops(config, vocab_size, rows, num_read(config)[0]),
        "tflops": flops["total"] / seconds / TERA,
        "peak_memory": measured.memory,
        "build_to_first_step_s": measured.build_to_first_step,
        "launch_to_first_step_s": measured.launch_to_first_step,
    }
    return result if measured.profile is None else result | {"profile": measured.profile}


def _compare(
    config: RunConfig, bench: TrainBenchConfig, on: Measured, result: dict[str, Any]
) -> dict[str, Any]:
    """The same run without the first predictions: what they cost."""
    without = override(config, {"objective.self_conditioning": False})
    off = measure_training(without, bench).seconds_per_step
    flops = result["flops_per_step"]
    extra = flops["self_conditioning"] + flops["interpolation"]
    return {
        "seconds_per_step_off": off.as_dict(),
        "share_of_step": 1 - off.median / on.seconds_per_step.median,
        "share_of_flops": extra / flops["total"],
    }
