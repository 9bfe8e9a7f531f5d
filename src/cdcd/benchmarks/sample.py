"""Speed of sampling: whole batches through `fill`, with random weights.

Guidance is measured against none at the same steps, Heun against Euler at the same number of network
calls, and an autoregressive model of the same blocks beside them. The first batch of each row compiles
and captures network calls; its time is reported apart.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from cdcd.benchmarks.measure import (
    TERA,
    count_flops,
    environment,
    matrix_rate,
    out_of_memory_as_error,
    peak_memory,
    reset_peak_memory,
    timed,
)
from cdcd.benchmarks.shapes import describe, random_tokens, synthetic_run
from cdcd.config import RunConfig
from cdcd.inference.load import load
from cdcd.inference.text_model import TextModel
from cdcd.networks.precision import choose_device
from cdcd.settings import Batch, OpenShare, Repeats, Scale, Settings, Size, unknown

Row = dict[str, Any]

COUNTED_SAMPLES = 2
"""Samples whose operations are counted; those of a batch are proportional to its size."""


@dataclass(frozen=True, kw_only=True)
class SampleBenchConfig(Settings):
    """Settings of the measurement of sampling."""

    batch: Batch = 64
    """Sequences at a time."""
    repeats: Repeats = 5
    """Batches that are timed, after one that compiles and captures: their median is reported."""
    given: OpenShare = 0.25
    """Share of each sequence that is given: its beginning."""
    guidance: Scale = 2.0
    """Guidance scale of the guided samples."""
    compile: Literal["auto", "on", "graphs", "off"] | None = None
    """Treatment of the diffusion model's network calls; none: graphs on a GPU, off on a CPU."""
    matrix_size: Size | None = None
    """Size of the matrix product that the rate is compared with; none: 8192 on a GPU, 2048 on a CPU."""
    rows: str | None = None
    """Names of the rows to measure, separated by commas; none: every row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guidance == 1:
            raise ValueError("guidance is 1, which is none: choose another scale")


def load_random(config: RunConfig, **options: Any) -> TextModel:
    """Loads a model with random weights."""
    with TemporaryDirectory() as folder, out_of_memory_as_error(describe(config)):
        run, _ = synthetic_run(config, Path(folder))
        return load(run.path, device=config.training.device, **options)


def fill_work(model: TextModel, num_given: int, batch: int, settings: Any) -> Callable[[], Any]:
    """Returns the work of sampling one batch, of which the first tokens are given."""
    tokens = random_tokens(model.config, batch).to(model.device)
    is_noisy = (torch.arange(tokens.shape[1]) >= num_given).expand(batch, -1).to(model.device)
    return lambda: model.fill(tokens, is_noisy, [(0, i) for i in range(batch)], settings)


def time_fill(
    model: TextModel, plain: TextModel, bench: SampleBenchConfig, batch: int, changes: Row
) -> Row:
    """Times whole batches under some settings, and counts the operations in a model that is not compiled."""
    settings, length = model.settings(changes), model.config.data.length
    num_given = min(max(1, round(bench.given * length)), length - 1)
    work = fill_work(model, num_given, batch, settings)
    counted = count_flops(fill_work(plain, num_given, COUNTED_SAMPLES, settings))
    with out_of_memory_as_error(f"{batch} samples of {describe(model.config)}"):
        reset_peak_memory(model.device)
        first = timed(work, model.device, repeats=1)
        timing = timed(work, model.device, repeats=bench.repeats)
    num_calls, seconds = length - num_given, timing["median"]
    tflops = counted * batch // COUNTED_SAMPLES / seconds / TERA
    if model.config.model == "diffusion":
        num_calls = settings.num_evaluations * (1 + (settings.guidance_scale != 1))
    return {
        "settings": changes,
        "batch": batch,
        "tokens": batch * (length - num_given),
        "network_calls": num_calls,
        "seconds": timing,
        "tokens_per_s": batch * (length - num_given) / seconds,
        "flops": counted * batch // COUNTED_SAMPLES,
        "tflops": tflops,
        "first_call_s": first["median"],
        "peak_memory": peak_memory(model.device),
    }


def rows_to_measure(config: RunConfig, bench: SampleBenchConfig) -> dict[str, tuple[str, int, Row]]:
    """Returns the family of the model, the batch and the settings of each row, by its name."""
    even = max(2, config.sampling.num_steps + config.sampling.num_steps % 2)
    euler: Row = {"solver": "euler", "num_steps": even}
    rows: dict[str, tuple[str, int, Row]] = {
        "euler": ("diffusion", bench.batch, euler),
        "guided": ("diffusion", bench.batch, euler | {"guidance_scale": bench.guidance}),
        "heun": ("diffusion", bench.batch, {"solver": "heun", "num_steps": even // 2}),
        "batch 1": ("diffusion", 1, euler),
        "autoregressive": ("autoregressive", bench.batch, {}),
        "autoregressive batch 1": ("autoregressive", 1, {}),
    }
    names = bench.rows.split(",") if bench.rows else list(rows)
    for name in names:
        if name not in rows:
            raise unknown("row", name, rows)
    return {name: row for name, row in rows.items() if name in names}


def bench_sample(name: str, config: RunConfig, bench: SampleBenchConfig) -> dict[str, Any]:
    """Measures everything that `cdcd bench sample` reports."""
    if config.model == "autoregressive":
        raise ValueError("bench sample measures both models: leave out --model autoregressive")
    device = choose_device(config.training.device)
    mode = bench.compile or ("graphs" if device.type == "cuda" else "off")
    rows: dict[str, Row] = {}
    table = rows_to_measure(config, bench)
    rate = matrix_rate(device, bench.matrix_size)
    for family in dict.fromkeys(family for family, _, _ in table.values()):
        own = replace(config, model=family)
        model = load_random(own, compile=mode if family == "diffusion" else "auto")
        plain = load_random(own, compile="off", dtype="float32")
        for row_name, (row_family, batch, changes) in table.items():
            if row_family == family:
                row = time_fill(model, plain, bench, batch, changes)
                rows[row_name] = row | {"ratio": row["tflops"] / rate["tflops"]}
    return {
        "benchmark": "sample",
        "shape": name,
        "description": describe(config),
        "device": device.type,
        "compile": mode,
        "rows": rows,
        "matrix": rate,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }
