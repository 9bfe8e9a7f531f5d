"""Reports of benchmarks: a table, one line of JSON, and a file where one is asked for."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GIGA = 1e9
NOISY = 0.25
"""Spread above which the tables say that something else was using the machine."""


def publish(result: dict[str, Any], *, json_only: bool = False, out: Path | None = None) -> None:
    """Prints a result, and files it."""
    if not json_only:
        console = Console(highlight=False)
        # A table in a file is not cut to the width of a window.
        console = console if console.is_terminal else Console(highlight=False, width=160)
        facts, make = result["environment"], {"train": _train_table, "sample": _sample_table}
        hardware = facts["gpu"] or f"{facts['cpu']}, {facts['threads']} threads"
        title = f"{result['shape']}: {result['description']}; {hardware}"
        console.print(make[result["benchmark"]](result, title))
    print(json.dumps(result), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _seconds(timing: dict[str, Any]) -> str:
    text = f"{timing['median'] * 1e3:.4g} ms ± {timing['spread'] / 2:.0%}"
    return f"{text} (not quiet)" if timing["spread"] > NOISY else text


def _rate(tflops: float) -> str:
    return f"{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOP/s"


def _train_table(result: dict[str, Any], title: str) -> Table:
    table, matrix = _new_table(f"Training {title}", "", "measured"), result["matrix"]
    for row in (
        ("tokens a second", f"{result['tokens_per_s']:,.0f}"),
        ("steps a second", f"{result['steps_per_s']:.3g}"),
        ("a step", _seconds(result["seconds_per_step"])),
        ("operations a step", f"{result['flops_per_step'] / GIGA:,.2f} GFLOP"),
        ("achieved", _rate(result["tflops"])),
        (f"matrix product, {matrix['dtype']} {matrix['size']}³", _rate(matrix["tflops"])),
        ("ratio", f"{result['ratio']:.1%}"),
        ("peak memory", f"{result['peak_memory'] / GIGA:.2f} GB"),
        ("new run to first step", f"{result['build_to_first_step_s']:.1f} s"),
    ):
        table.add_row(*row)
    return table


def _sample_table(result: dict[str, Any], title: str) -> Table:
    columns = ("batch", "network calls", "a batch", "tokens/s", "achieved", "ratio")
    table = _new_table(f"Sampling {title}", "", *columns, "first batch", "memory")
    for name, row in result["rows"].items():
        table.add_row(
            name,
            str(row["batch"]),
            str(row["network_calls"]),
            _seconds(row["seconds"]),
            f"{row['tokens_per_s']:,.0f}",
            _rate(row["tflops"]),
            f"{row['ratio']:.1%}",
            f"{row['first_call_s']:.3g} s",
            f"{row['peak_memory'] / GIGA:.2f} GB",
        )
    table.caption = (
        f"compile {result['compile']}; matrix product {_rate(result['matrix']['tflops'])}"
    )
    return table
