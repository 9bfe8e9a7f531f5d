"""How speed and memory change with the shape: one axis at a time around a base shape.

The ideal line is that of constant FLOP/s: the base shape's tokens a second, times the base's operations a
token, over the point's. Above it, larger shapes use the device better.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdcd.benchmarks.flops import step_flops
from cdcd.benchmarks.measure import OutOfMemory, environment, matrix_rate
from cdcd.benchmarks.sample import SampleBenchConfig, time_steps
from cdcd.benchmarks.shapes import describe
from cdcd.benchmarks.train import TrainBenchConfig, measure_training, training_result
from cdcd.config import RunConfig
from cdcd.networks.precision import choose_device
from cdcd.settings import override

AXES = ("width", "depth", "length", "vocabulary", "batch")
SAMPLING_AXES = ("steps", "length")


@dataclass(frozen=True, kw_only=True)
class ScalingBenchConfig:
    """What is varied, and how it is measured."""

    factors: str = "0.5,1,2,4"
    """Multiples of the base shape at which each axis is measured."""
    axes: str = ",".join(AXES)
    """Axes of the training curves."""
    steps: int = 10
    """Steps that are timed at each point."""
    warmup: int = 3
    """Steps before them that are not."""
    repeats: int = 5
    """Stretches that the timed steps are cut into."""
    sampling: bool = True
    """Measure the time of sampling too, against steps and length."""
    matrix_size: int | None = None
    """Size of the matrix product that the rate is compared with; none: 8192 on a GPU, 2048 on a CPU."""

    def __post_init__(self) -> None:
        for axis in self.axis_names:
            if axis not in AXES:
                raise ValueError(f"unknown axis {axis}; known: {', '.join(AXES)}")
        if any(factor <= 0 for factor in self.multiples):
            raise ValueError(f"factors are {self.factors}, they must be positive")
        _ = self.training

    @property
    def axis_names(self) -> list[str]:
        return [axis.strip() for axis in self.axes.split(",") if axis.strip()]

    @property
    def multiples(self) -> list[float]:
        try:
            return [float(factor) for factor in self.factors.split(",")]
        except ValueError:
            raise ValueError(f"factors are {self.factors!r}, not numbers like 0.5,1,2") from None

    @property
    def training(self) -> TrainBenchConfig:
        return TrainBenchConfig(steps=self.steps, warmup=self.warmup, repeats=self.repeats)


def scaled(config: RunConfig, axis: str, factor: float) -> RunConfig:
    """The base shape with one axis multiplied; a wider network has more heads, not larger ones."""
    network, data = config.network, config.data

    def times(value: int, least: int = 1) -> int:
        return max(least, round(value * factor))

    heads = times(network.num_heads)
    changes: dict[str, dict[str, Any]] = {
        "width": {
            "network.num_heads": heads,
            "network.width": heads * (network.width // network.num_heads),
        },
        "depth": {"network.num_blocks": times(network.num_blocks)},
        "length": {"data.length": times(data.length, 2)},
        "vocabulary": {"data.vocab_size": times(data.vocab_size, 8)},
        "batch": {
            "training.batch_size": times(config.training.batch_size),
            "training.accumulate": 1,
        },
    }
    return override(config, changes[axis])


def axis_value(config: RunConfig, axis: str) -> int:
    """Where a shape lies on an axis."""
    return {
        "width": config.network.width,
        "depth": config.network.num_blocks,
        "length": config.data.length,
        "vocabulary": config.data.vocab_size,
        "batch": config.training.batch_size,
    }[axis]


def shapes_along(config: RunConfig, axis: str, factors: Sequence[float]) -> list[RunConfig]:
    """Distinct shapes along an axis, smallest first; the base is always among them."""
    found = {axis_value(config, axis): config}
    for factor in factors:
        shape = scaled(config, axis, factor)
        found.setdefault(axis_value(shape, axis), shape)
    return [found[value] for value in sorted(found)]


class Curves:
    """Measures each shape once; the base is on every axis."""

    def __init__(self, bench: ScalingBenchConfig) -> None:
        self.bench = bench
        self.known: dict[RunConfig, dict[str, Any]] = {}

    def point(self, config: RunConfig) -> dict[str, Any]:
        if config not in self.known:
            self.known[config] = self._measure(config)
        return self.known[config]

    def _measure(self, config: RunConfig) -> dict[str, Any]:
        try:
            result = training_result(config, measure_training(config, self.bench.training))
        except OutOfMemory as error:
            return {"error": str(error)}
        names = ("seconds_per_step", "steps_per_s", "tokens_per_s", "tflops", "peak_memory")
        flops = result["flops_per_step"]["total"]
        shown = {name: result[name] for name in names}
        return shown | {"flops_per_token": flops / result["tokens_per_step"]}

    def axis(self, config: RunConfig, axis: str) -> list[dict[str, Any]]:
        """Points along an axis, each with the tokens a second of constant FLOP/s."""
        base = self.point(config)
        if "error" in base:
            raise ValueError(f"the base shape does not fit: {base['error']}")
        constant = base["tokens_per_s"] * base["flops_per_token"]
        points = []
        for shape in shapes_along(config, axis, self.bench.multiples):
            ideal = constant / _flops_per_token(shape)
            value = {"value": axis_value(shape, axis), "ideal_tokens_per_s": ideal}
            points.append(value | self.point(shape))
        return points


def _flops_per_token(config: RunConfig) -> float:
    tokens = config.training.batch_size * config.data.length
    return step_flops(config, config.data.vocab_size)["total"] / tokens


def sampling_curves(
    config: RunConfig, bench: ScalingBenchConfig, batch: int = 8
) -> dict[str, list[dict[str, Any]]]:
    """Seconds a batch against the number of steps and against the length."""
    own = SampleBenchConfig(batch=batch, repeats=min(3, bench.repeats))
    steps = config.sampling.num_steps
    counts = sorted({steps, *(max(1, round(steps * factor)) for factor in bench.multiples)})
    by_steps: list[dict[str, Any]] = [
        {"value": count} | time_steps(config, own, count) for count in counts
    ]
    by_length: list[dict[str, Any]] = [
        {"value": shape.data.length} | time_steps(shape, own, steps)
        for shape in shapes_along(config, "length", bench.multiples)
    ]
    curves = {"steps": by_steps, "length": by_length}
    for axis, base in (("steps", steps), ("length", config.data.length)):
        known = next(point for point in curves[axis] if point["value"] == base)
        for point in curves[axis]:
            share = point["flops"] / known["flops"]
            point["ideal_seconds"] = known["seconds"]["median"] * share
    return curves


def bench_scaling(name: str, config: RunConfig, bench: ScalingBenchConfig) -> dict[str, Any]:
    """Everything that `cdcd bench scaling` reports."""
    if bench.sampling and config.model == "autoregressive":
        raise ValueError("the sampling curves are those of diffusion models: add --sampling false")
    device = choose_device(config.training.device)
    curves = Curves(bench)
    training = {axis: curves.axis(config, axis) for axis in bench.axis_names}
    sampling = sampling_curves(config, bench) if bench.sampling else {}
    rate = matrix_rate(device, bench.matrix_size)
    return {
        "benchmark": "scaling",
        "shape": name,
        "description": describe(config),
        "device": device.type,
        "training": training,
        "sampling": sampling,
        "matrix": rate.as_dict(),
        "matrix_tflops": rate.tflops,
        "bench": asdict(bench),
        "environment": environment(device),
        "config": asdict(config),
    }


def _label_values(axis: Any, values: Sequence[float]) -> None:
    """Numbers at 1, 2, 5, 10, …, of which at least a factor of four is seen, so that no panel is empty."""
    from matplotlib.ticker import EngFormatter, FixedLocator

    room = max(1.1, 2 / (max(values) / min(values)) ** 0.5)
    low, high = min(values) / room, max(values) * room
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    axis.yaxis.set_major_locator(FixedLocator([mark for mark in marks if low <= mark <= high]))
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_ylim(low, high)


def plot_scaling(result: dict[str, Any], path: Path) -> None:
    """Log–log: what was measured, beside the line of constant FLOP/s."""
    from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure

    panels = [("training", axis, "tokens/s") for axis in result["training"]]
    panels += [("sampling", axis, "seconds a batch") for axis in result["sampling"]]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, (3.4 * columns, 3.0 * rows))
    for axis, (kind, name, label) in zip(axes, panels, strict=False):
        points = [point for point in result[kind][name] if "error" not in point]
        x = [point["value"] for point in points]
        is_training = kind == "training"
        ideal = [point[f"ideal_{'tokens_per_s' if is_training else 'seconds'}"] for point in points]
        measured = [
            point["tokens_per_s"] if is_training else point["seconds"]["median"] for point in points
        ]
        axis.plot(x, ideal, "--", color=GREY, label="constant FLOP/s")
        axis.plot(x, measured, "o-", color=BLUE if is_training else ORANGE, label="measured")
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel=label, title=f"{kind}: {name}")
        axis.minorticks_off()
        axis.set_xticks(x, [str(value) for value in x])
        _label_values(axis, [*ideal, *measured])
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
