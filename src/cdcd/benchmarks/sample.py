"""How fast sampling is: whole batches through `fill`, random weights.

Network calls are compiled and captured in the first batch of each row, whose time is reported apart.

Guidance is measured against none at the same steps, Heun against Euler at the same number of network
calls, and an autoregressive model of the same blocks beside them.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from cdcd.benchmarks.flops import decoding_flops, sampling_flops
from cdcd.benchmarks.measure import (
    TERA,
    MatrixRate,
    Timing,
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
from cdcd.inference.generation import AutoregressiveTextModel, DiffusionTextModel
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.settings import override, unknown
from cdcd.training.build import build_model


@dataclass(frozen=True, kw_only=True)
class SampleBenchConfig:
    """How sampling is measured."""

    batch: int = 64
    """Sequences at a time."""
    repeats: int = 5
    """Batches that are timed: their median is reported."""
    warmup: int = 1
    """Batches before them that are not; the first compiles and captures."""
    given: float = 0.25
    """Share of each sequence that is given: its beginning."""
    guidance: float = 2.0
    """Guidance scale of the guided samples."""
    compile: Literal["auto", "on", "graphs", "off"] | None = None
    """How network calls of the diffusion model are made fast; none: graphs on a GPU, off on a CPU."""
    matrix_size: int | None = None
    """Size of the matrix product that the rate is compared with; none: 8192 on a GPU, 2048 on a CPU."""
    rows: str | None = None
    """What to measure, by the names of the rows, separated by commas; none: everything."""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "warmup"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if not 0 < self.given < 1:
            raise ValueError(f"given is {self.given}, it must be between 0 and 1")
        if self.guidance == 1:
            raise ValueError("guidance is 1, which is none: choose another scale")

    def chosen(self, known: list[str]) -> list[str]:
        """The names of the rows to measure."""
        if self.rows is None:
            return known
        wanted = self.rows.split(",")
        for name in wanted:
            if name not in known:
                raise unknown("row", name, known)
        return wanted

    def mode(self, device: torch.device) -> str:
        return self.compile or ("graphs" if device.type == "cuda" else "off")


def new_text_model(
    config: RunConfig, *, compile: str = "auto"
) -> DiffusionTextModel | AutoregressiveTextModel:
    """A model with random weights."""
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


def num_given(config: RunConfig, share: float) -> int:
    """Given tokens of a sequence: at least one given, at least one to generate."""
    return min(max(1, round(share * config.data.length)), config.data.length - 1)


def time_fill(
    model: DiffusionTextModel | AutoregressiveTextModel,
    bench: SampleBenchConfig,
    *,
    batch: int,
    **settings: Any,
) -> dict[str, Any]:
    """Time whole batches under some settings."""
    config = model.config
    given = num_given(config, bench.given)
    tokens = random_tokens(config, batch).to(model.device)
    is_noisy = (torch.arange(config.data.length) >= given).expand(batch, -1).to(model.device)
    chosen: Any = model.settings(settings)
    places = [(0, i) for i in range(batch)]

    def work() -> None:
        model.fill(tokens, is_noisy, places, chosen)

    with out_of_memory_as_error(f"{batch} samples of {describe(config)}"):
        _forget_recordings(model)
        reset_peak_memory(model.device)
        first = timed(work, model.device, repeats=1, warmup=0)
        timing = timed(work, model.device, repeats=bench.repeats, warmup=bench.warmup - 1)
    return {
        "settings": settings,
        **_rates(model, batch, given, chosen, timing),
        "first_call_s": first.median,
        "memory": peak_memory(model.device),
    }


def _forget_recordings(model: DiffusionTextModel | AutoregressiveTextModel) -> None:
    """Those of earlier rows are no part of this one's memory."""
    if isinstance(model, DiffusionTextModel) and model.recorder is not None:
        model.recorder.forget()


def _rates(
    model: DiffusionTextModel | AutoregressiveTextModel,
    batch: int,
    given: int,
    chosen: Any,
    timing: Timing,
) -> dict[str, Any]:
    config = model.config
    vocab_size, tokens = config.data.vocab_size, batch * (config.data.length - given)
    if isinstance(model, DiffusionTextModel):
        guided = chosen.guidance_scale != 1.0
        evaluations = chosen.num_evaluations * (1 + guided)
        flops = sampling_flops(config, vocab_size, batch, chosen, guided=guided)
    else:
        evaluations = config.data.length - given
        flops = decoding_flops(config, vocab_size, batch, given)
    return {
        "model": config.model,
        "batch": batch,
        "tokens": tokens,
        "network_calls": evaluations,
        "seconds": timing.as_dict(),
        "seconds_per_call": timing.median / evaluations,
        "tokens_per_s": tokens / timing.median,
        "flops": flops,
        "tflops": flops / timing.median / TERA,
    }


def bench_sample(name: str, config: RunConfig, bench: SampleBenchConfig) -> dict[str, Any]:
    """Everything that `cdcd bench sample` reports."""
    if config.model == "autoregressive":
        raise ValueError("bench sample measures both models: leave out --model autoregressive")
    device = choose_device(config.training.device)
    rows = measured_rows(config, bench)
    rate = matrix_rate(device, bench.matrix_size)
    _compare_with(rows, rate)
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
        "matrix": rate.as_dict(),
        "matrix_tflops": rate.tflops,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }


def measured_rows(config: RunConfig, bench: SampleBenchConfig) -> dict[str, dict[str, Any]]:
    """The rows that are asked for."""
    mode = bench.mode(choose_device(config.training.device))
    diffusion, autoregressive = diffusion_settings(config, bench), autoregressive_settings(bench)
    wanted = bench.chosen([*diffusion, *autoregressive])
    rows: dict[str, dict[str, Any]] = {}
    for settings, kind, compiled in (
        (diffusion, config, mode),
        (autoregressive, replace(config, model="autoregressive"), "auto"),
    ):
        names = [name for name in settings if name in wanted]
        if names:
            with out_of_memory_as_error(describe(kind)):
                model = new_text_model(kind, compile=compiled)
            rows |= {name: time_fill(model, bench, **settings[name]) for name in names}
    return rows


def diffusion_settings(config: RunConfig, bench: SampleBenchConfig) -> dict[str, dict[str, Any]]:
    """Euler, guided, Heun at equal network calls, and a single sequence."""
    steps = config.sampling.num_steps
    even = max(2, steps + steps % 2)
    euler = {"batch": bench.batch, "solver": "euler", "num_steps": even}
    return {
        "euler": euler,
        "guided": euler | {"guidance_scale": bench.guidance},
        "heun": euler | {"solver": "heun", "num_steps": even // 2},
        "batch 1": euler | {"batch": 1},
    }


def autoregressive_settings(bench: SampleBenchConfig) -> dict[str, dict[str, Any]]:
    """The same blocks, decoding."""
    return {
        "autoregressive": {"batch": bench.batch},
        "autoregressive batch 1": {"batch": 1},
    }


def _compare_with(rows: dict[str, dict[str, Any]], rate: MatrixRate) -> None:
    for row in rows.values():
        row["ratio"] = row["tflops"] / rate.tflops


def _median(rows: dict[str, dict[str, Any]], name: str) -> float | None:
    return rows[name]["seconds"]["median"] if name in rows else None


def _ratio(rows: dict[str, dict[str, Any]], above: str, below: str) -> float | None:
    numerator, denominator = _median(rows, above), _median(rows, below)
    return None if numerator is None or denominator is None else numerator / denominator


def time_steps(config: RunConfig, bench: SampleBenchConfig, num_steps: int) -> dict[str, Any]:
    """A batch by Euler's method, for the scaling curves: captured on a GPU, but not compiled."""
    model = new_text_model(override(config, {"sampling.num_steps": num_steps}))
    return time_fill(model, bench, batch=bench.batch, solver="euler", num_steps=num_steps)
