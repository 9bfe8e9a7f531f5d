"""Speed of sampling: whole batches through `fill`, with random weights.

Guidance is measured against none at the same steps, Heun against Euler at the same number of network
calls, and an autoregressive model of the same blocks beside them. The first batch of each row compiles
and captures network calls; its time is reported apart.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from cdcd.benchmarks.flops import decoding_flops, sampling_flops
from cdcd.benchmarks.measure import (
    TERA,
    environment,
    matrix_rate,
    out_of_memory_as_error,
    peak_memory,
    reset_peak_memory,
    timed,
)
from cdcd.benchmarks.shapes import describe, random_tokens, randomise, synthetic_tokenizer
from cdcd.config import RunConfig
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.autoregressive_text import AutoregressiveTextModel
from cdcd.inference.diffusion_text import DiffusionTextModel
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.settings import unknown
from cdcd.training.build import build_model

TextModel = DiffusionTextModel | AutoregressiveTextModel
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SampleBenchConfig:
    """Settings of the measurement of sampling."""

    batch: int = 64
    """Sequences at a time."""
    repeats: int = 5
    """Batches that are timed: their median is reported."""
    warmup: int = 1
    """Batches before them that are not timed; the first compiles and captures."""
    given: float = 0.25
    """Share of each sequence that is given: its beginning."""
    guidance: float = 2.0
    """Guidance scale of the guided samples."""
    compile: Literal["auto", "on", "graphs", "off"] | None = None
    """Treatment of the diffusion model's network calls; none: graphs on a GPU, off on a CPU."""
    matrix_size: int | None = None
    """Size of the matrix product that the rate is compared with; none: 8192 on a GPU, 2048 on a CPU."""
    rows: str | None = None
    """Names of the rows to measure, separated by commas; none: every row."""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "warmup"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if not 0 < self.given < 1:
            raise ValueError(f"given is {self.given}, it must be between 0 and 1")
        if self.guidance == 1:
            raise ValueError("guidance is 1, which is none: choose another scale")

    def select(self, known: list[str]) -> list[str]:
        """Returns the names of the rows to measure."""
        if self.rows is None:
            return known
        names = self.rows.split(",")
        for name in names:
            if name not in known:
                raise unknown("row", name, known)
        return names

    def mode(self, device: torch.device) -> str:
        """Returns how network calls are compiled and captured on a device."""
        return self.compile or ("graphs" if device.type == "cuda" else "off")


def new_text_model(config: RunConfig, *, compile: str = "auto") -> TextModel:
    """Builds a model with random weights."""
    device = choose_device(config.training.device)
    dtype, vocab_size = choose_dtype(config.training.dtype, device), config.data.vocab_size
    tokenizer = synthetic_tokenizer(vocab_size)
    model = build_model(config, vocab_size)
    randomise(model)
    if isinstance(model, AutoregressiveTextNetwork):
        return AutoregressiveTextModel(config, tokenizer, model.to(device), dtype=dtype)
    assert isinstance(model, DiffusionTextNetwork)
    warp = TimeWarp(config.warp, config.process).to(device)
    return DiffusionTextModel(
        config, tokenizer, model.to(device), warp, dtype=dtype, compile=compile
    )


def time_fill(model: TextModel, bench: SampleBenchConfig, *, batch: int, **settings: Any) -> Row:
    """Times whole batches under some settings."""
    config, length = model.config, model.config.data.length
    given = min(max(1, round(bench.given * length)), length - 1)
    tokens = random_tokens(config, batch).to(model.device)
    is_noisy = (torch.arange(length) >= given).expand(batch, -1).to(model.device)
    resolved: Any = model.settings(settings)
    seed_paths = [(0, i) for i in range(batch)]

    def work() -> None:
        model.fill(tokens, is_noisy, seed_paths, resolved)

    with out_of_memory_as_error(f"{batch} samples of {describe(config)}"):
        if isinstance(model, DiffusionTextModel) and model.recorder is not None:
            # Calls recorded for earlier rows are no part of this one's memory.
            model.recorder.forget()
        reset_peak_memory(model.device)
        first = timed(work, model.device, repeats=1, warmup=0)
        timing = timed(work, model.device, repeats=bench.repeats, warmup=bench.warmup - 1)
    num_calls, flops = _work_of(model, batch, given, resolved)
    num_tokens, seconds = batch * (length - given), timing.median
    return {
        "settings": settings,
        "model": config.model,
        "batch": batch,
        "tokens": num_tokens,
        "network_calls": num_calls,
        "seconds": timing.as_dict(),
        "seconds_per_call": seconds / num_calls,
        "tokens_per_s": num_tokens / seconds,
        "flops": flops,
        "tflops": flops / seconds / TERA,
        "first_call_s": first.median,
        "memory": peak_memory(model.device),
    }


def _work_of(model: TextModel, batch: int, given: int, settings: Any) -> tuple[int, int]:
    """Counts the network calls and the operations of a batch."""
    config, vocab_size = model.config, model.config.data.vocab_size
    if isinstance(model, AutoregressiveTextModel):
        return config.data.length - given, decoding_flops(config, vocab_size, batch, given)
    guided = settings.guidance_scale != 1.0
    num_calls = settings.num_evaluations * (1 + guided)
    return num_calls, sampling_flops(config, vocab_size, batch, settings, guided=guided)


def bench_sample(name: str, config: RunConfig, bench: SampleBenchConfig) -> dict[str, Any]:
    """Measures everything that `cdcd bench sample` reports."""
    if config.model == "autoregressive":
        raise ValueError("bench sample measures both models: leave out --model autoregressive")
    device = choose_device(config.training.device)
    rows = measure_rows(config, bench)
    rate = matrix_rate(device, bench.matrix_size)
    for row in rows.values():
        row["ratio"] = row["tflops"] / rate.tflops
    return {
        "benchmark": "sample",
        "shape": name,
        "description": describe(config),
        "device": device.type,
        "compile": bench.mode(device),
        "rows": rows,
        "guidance_ratio": _ratio(rows, "guided", "euler"),
        "heun_ratio": _ratio(rows, "heun", "euler"),
        "batch_1_latency_s": _median(rows, "batch 1"),
        "matrix": asdict(rate),
        "matrix_tflops": rate.tflops,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }


def measure_rows(config: RunConfig, bench: SampleBenchConfig) -> dict[str, Row]:
    """Measures the rows that the settings ask for, by name."""
    even = max(2, config.sampling.num_steps + config.sampling.num_steps % 2)
    euler: Row = {"batch": bench.batch, "solver": "euler", "num_steps": even}
    diffusion: dict[str, Row] = {
        "euler": euler,
        "guided": euler | {"guidance_scale": bench.guidance},
        "heun": euler | {"solver": "heun", "num_steps": even // 2},
        "batch 1": euler | {"batch": 1},
    }
    autoregressive: dict[str, Row] = {
        "autoregressive": {"batch": bench.batch},
        "autoregressive batch 1": {"batch": 1},
    }
    selected = bench.select([*diffusion, *autoregressive])
    rows: dict[str, Row] = {}
    for settings, own_config, mode in (
        (diffusion, config, bench.mode(choose_device(config.training.device))),
        (autoregressive, replace(config, model="autoregressive"), "auto"),
    ):
        names = [name for name in settings if name in selected]
        if names:
            with out_of_memory_as_error(describe(own_config)):
                model = new_text_model(own_config, compile=mode)
            rows |= {name: time_fill(model, bench, **settings[name]) for name in names}
    return rows


def _median(rows: dict[str, Row], name: str) -> float | None:
    return rows[name]["seconds"]["median"] if name in rows else None


def _ratio(rows: dict[str, Row], above: str, below: str) -> float | None:
    numerator, denominator = _median(rows, above), _median(rows, below)
    return None if numerator is None or denominator is None else numerator / denominator
