"""Speed of training: the Trainer's own steps on random tokens, whole, with nothing left out.

Data, draws, both passes of the network, clipping, optimiser, moving average and warp are all timed. The
clock waits for the device only at the ends of stretches of steps, so that the device is kept as busy as in
a real run.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from cdcd.benchmarks.measure import (
    TERA,
    count_flops,
    matrix_rate,
    now,
    peak_memory,
    timed,
    watched_memory,
)
from cdcd.benchmarks.shapes import describe, random_tokens, synthetic_run
from cdcd.config import RunConfig
from cdcd.data.sequences import InMemory
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.settings import Repeats, Settings, override
from cdcd.training.trainer import Trainer

NUM_BATCHES, NUM_VALID = 4, 8
COUNTED_ROWS = 8
"""Rows of the smaller of two batches whose operations are counted."""


@dataclass(frozen=True, kw_only=True)
class TrainBenchConfig(Settings):
    """Settings of the measurement of training."""

    steps: Repeats = 50
    """Steps that are timed, in all."""
    warmup: Repeats = 10
    """Steps before them that are not timed; the first compiles."""
    repeats: Repeats = 5
    """Equal stretches of the timed steps; their median is reported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps % self.repeats:
            raise ValueError(f"steps ({self.steps}) must be a multiple of repeats ({self.repeats})")


def new_trainer(config: RunConfig, folder: str) -> Trainer:
    """Returns the Trainer of a new run on random tokens."""
    tokens = random_tokens(config, NUM_BATCHES * config.training.batch_size)
    train, valid = InMemory(tokens), InMemory(tokens[:NUM_VALID])
    return Trainer(synthetic_run(config, folder), train, valid, console=Console(quiet=True))


def time_steps(config: RunConfig, bench: TrainBenchConfig) -> dict[str, Any]:
    """Trains a new run in a temporary folder, and times it."""
    device = choose_device(config.training.device)
    with watched_memory(device, describe(config)), TemporaryDirectory() as folder:
        started = now(device)
        trainer = new_trainer(config, folder)

        def train(num_steps: int) -> None:
            for _ in range(num_steps):
                trainer.train_step()

        train(1)
        first_step_at = now(device)
        train(bench.warmup - 1)
        stretch = bench.steps // bench.repeats
        timing = timed(lambda: train(stretch), device, repeats=bench.repeats, parts=stretch)
        return {
            "seconds_per_step": timing,
            "build_to_first_step_s": first_step_at - started,
            "peak_memory": peak_memory(device),
        }


def step_flops(config: RunConfig) -> int:
    """Counts the operations of a training step, from those of two small batches.

    They grow linearly with the rows of the batch, apart from Muon's own.
    """
    rows = config.training.batch_size
    if rows <= 2 * COUNTED_ROWS:
        return _counted_step(config, rows)
    one, two = (_counted_step(config, times * COUNTED_ROWS) for times in (1, 2))
    return one + (two - one) * (rows - COUNTED_ROWS) // COUNTED_ROWS


def _counted_step(config: RunConfig, rows: int) -> int:
    changes = {"batch_size": rows, "accumulate": 1, "compile": "off", "dtype": "float32"}
    config = override(config, {f"training.{name}": value for name, value in changes.items()})
    with TemporaryDirectory() as folder:
        return count_flops(new_trainer(config, folder).train_step)


def bench_train(config: RunConfig, bench: TrainBenchConfig) -> dict[str, Any]:
    """Measures everything that `cdcd bench train` reports."""
    device, batch_size = choose_device(config.training.device), config.training.batch_size
    measured, flops, matrix = time_steps(config, bench), step_flops(config), matrix_rate(device)
    seconds, tokens = measured["seconds_per_step"]["median"], batch_size * config.data.length
    tflops = flops / seconds / TERA
    return measured | {
        "dtype": str(choose_dtype(config.training.dtype, device)).removeprefix("torch."),
        "tokens_per_step": tokens,
        "steps_per_s": 1 / seconds,
        "tokens_per_s": tokens / seconds,
        "flops_per_step": flops,
        "tflops": tflops,
        "ratio": tflops / matrix["tflops"],
        "matrix": matrix,
    }
