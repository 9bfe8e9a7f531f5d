"""Reports of benchmarks: a table, one line of JSON, and a file where one is asked for."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cdcd.benchmarks.measure import environment
from cdcd.benchmarks.shapes import describe
from cdcd.config import RunConfig
from cdcd.networks.precision import choose_device

NOISY = 0.25
"""Spread above which the tables say that something else was using the machine."""


def _seconds(timing: dict[str, Any]) -> str:
    text = f"{timing['median'] * 1e3:.4g} ms ± {timing['spread'] / 2:.0%}"
    return f"{text} (not quiet)" if timing["spread"] > NOISY else text


def _rate(tflops: float) -> str:
    return f"{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOP/s"


QUANTITIES = {
    "batch": ("batch", str),
    "network calls": ("network_calls", str),
    "tokens a second": ("tokens_per_s", "{:,.0f}".format),
    "steps a second": ("steps_per_s", "{:.3g}".format),
    "a step": ("seconds_per_step", _seconds),
    "a batch": ("seconds", _seconds),
    "operations a step": ("flops_per_step", lambda flops: f"{flops / 1e9:,.2f} GFLOP"),
    "achieved": ("tflops", _rate),
    "of the matrix rate": ("ratio", "{:.1%}".format),
    "peak memory": ("peak_memory", lambda size: f"{size / 1e9:.2f} GB"),
    "new run to first step": ("build_to_first_step_s", "{:.1f} s".format),
    "first batch": ("first_call_s", "{:.3g} s".format),
}
"""The lines of a table: the name in the JSON of each quantity, and its format."""


def completed(
    benchmark: str, shape: str, config: RunConfig, settings: Any, measured: dict[str, Any]
) -> dict[str, Any]:
    """Returns what was measured with all that makes it comparable."""
    device = choose_device(config.training.device)
    return measured | {
        "benchmark": benchmark,
        "shape": shape,
        "description": describe(config),
        "device": device.type,
        "bench": asdict(settings),
        "environment": environment(device),
        "config": asdict(config),
    }


def publish(result: dict[str, Any], *, json_only: bool = False, out: Path | None = None) -> None:
    """Prints a result, and files it."""
    if not json_only:
        console = Console(highlight=False)
        # A table in a file is not cut to the width of a window.
        console = console if console.is_terminal else Console(highlight=False, width=160)
        console.print(_table(result))
    print(json.dumps(result), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _table(result: Mapping[str, Any]) -> Table:
    """Returns a table with a column for each row of settings that was measured."""
    facts, matrix = result["environment"], result["matrix"]
    hardware = facts["gpu"] or f"{facts['cpu']}, {facts['threads']} threads"
    title = f"bench {result['benchmark']} {result['shape']}: {result['description']}; {hardware}"
    table = Table(title=title, title_justify="left")
    columns = result.get("rows", {"measured": result})
    for number, name in enumerate(("", *columns)):
        table.add_column(name, justify="right" if number else "left")
    for name, (key, write) in QUANTITIES.items():
        if all(key in column for column in columns.values()):
            table.add_row(name, *(write(column[key]) for column in columns.values()))
    table.caption = (
        f"matrix product, {matrix['dtype']} {matrix['size']}³: {_rate(matrix['tflops'])}"
    )
    return table
