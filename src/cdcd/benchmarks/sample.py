"""Speed of sampling: whole batches through `fill`, with random weights.

Guidance is measured against none at the same steps, Heun against Euler at the same number of network
calls, and an autoregressive model of the same blocks beside them. The first batch of each row compiles
and captures network calls; its time is reported apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from cdcd.benchmarks.measure import (
    TERA,
    count_flops,
    matrix_rate,
    peak_memory,
    timed,
    watched_memory,
)
from cdcd.benchmarks.shapes import describe, random_tokens, synthetic_run
from cdcd.config import RunConfig
from cdcd.inference.load import load
from cdcd.inference.text_model import TextModel
from cdcd.networks.precision import choose_device
from cdcd.settings import Batch, Repeats, Settings, override, unknown

Row = tuple[str, int, dict[str, Any]]
"""The family of a row's model, the batch and the settings."""
GIVEN_SHARE = 4
"""One in so many tokens is given: the beginning of each sequence."""
GUIDANCE_SCALE = 2.0
COUNTED_SAMPLES = 2
"""Samples whose operations are counted; those of a batch are proportional to its size."""


@dataclass(frozen=True, kw_only=True)
class SampleBenchConfig(Settings):
    """Settings of the measurement of sampling."""

    batch: Batch = 64
    """Sequences at a time."""
    repeats: Repeats = 5
    """Batches that are timed, after one that compiles and captures: their median is reported."""
    compile: Literal["auto", "on", "graphs", "off"] | None = None
    """Treatment of the diffusion model's network calls; none: graphs on a GPU, off on a CPU."""
    rows: str | None = None
    """Names of the rows to measure, separated by commas; none: every row."""


def load_random(config: RunConfig, **options: Any) -> TextModel:
    """Loads a model with random weights."""
    device = choose_device(config.training.device)
    with TemporaryDirectory() as folder, watched_memory(device, describe(config)):
        return load(synthetic_run(config, folder).path, device=device.type, **options)


def fill_work(model: TextModel, num_given: int, batch: int, settings: Any) -> Callable[[], Any]:
    """Returns the work of sampling one batch, of which the first tokens are given."""
    tokens = random_tokens(model.config, batch).to(model.device)
    is_noisy = (torch.arange(tokens.shape[1]) >= num_given).expand(batch, -1).to(model.device)
    return lambda: model.fill(tokens, is_noisy, [(0, i) for i in range(batch)], settings)


def time_fill(
    model: TextModel, plain: TextModel, repeats: int, batch: int, changes: dict[str, Any]
) -> dict[str, Any]:
    """Times whole batches under some settings, and counts the operations in a model that is not compiled."""
    settings, length = model.settings(changes), model.config.data.length
    num_given = max(1, length // GIVEN_SHARE)
    num_drawn = num_calls = length - num_given
    if model.config.model == "diffusion":
        num_calls = settings.num_evaluations * (1 + (settings.guidance_scale != 1))
    counted = count_flops(fill_work(plain, num_given, COUNTED_SAMPLES, settings))
    flops, work = counted * batch // COUNTED_SAMPLES, fill_work(model, num_given, batch, settings)
    with watched_memory(model.device, f"{batch} samples of {describe(model.config)}"):
        first = timed(work, model.device, repeats=1)
        timing = timed(work, model.device, repeats=repeats)
    return {
        "settings": changes,
        "batch": batch,
        "tokens": batch * num_drawn,
        "network_calls": num_calls,
        "seconds": timing,
        "tokens_per_s": batch * num_drawn / timing["median"],
        "flops": flops,
        "tflops": flops / timing["median"] / TERA,
        "first_call_s": first["median"],
        "peak_memory": peak_memory(model.device),
    }


def rows_to_measure(config: RunConfig, bench: SampleBenchConfig) -> dict[str, Row]:
    """Returns the chosen rows by their names, those of one model together."""
    even = max(2, config.sampling.num_steps + config.sampling.num_steps % 2)
    euler = {"solver": "euler", "num_steps": even}
    rows: dict[str, Row] = {
        "euler": ("diffusion", bench.batch, euler),
        "guided": ("diffusion", bench.batch, euler | {"guidance_scale": GUIDANCE_SCALE}),
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


def bench_sample(config: RunConfig, bench: SampleBenchConfig) -> dict[str, Any]:
    """Measures everything that `cdcd bench sample` reports."""
    if config.model != "diffusion":
        raise ValueError(
            f"bench sample measures diffusion and autoregressive models: leave out --model {config.model}"
        )
    device = choose_device(config.training.device)
    mode = bench.compile or ("graphs" if device.type == "cuda" else "off")
    table, matrix = rows_to_measure(config, bench), matrix_rate(device)
    rows: dict[str, dict[str, Any]] = {}
    for family, group in groupby(table.items(), lambda item: item[1][0]):
        own = override(config, {"model": family})
        model = load_random(own, compile=mode if family == "diffusion" else "auto")
        plain = load_random(own, compile="off", dtype="float32")
        for name, (_, batch, changes) in group:
            row = time_fill(model, plain, bench.repeats, batch, changes)
            rows[name] = row | {"ratio": row["tflops"] / matrix["tflops"]}
    return {"compile": mode, "rows": rows, "matrix": matrix}
