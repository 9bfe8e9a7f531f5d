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
        console.print(TABLES[result["benchmark"]](result))
    print(json.dumps(result), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _hardware(result: dict[str, Any]) -> str:
    facts = result["environment"]
    return facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"


def _seconds(timing: dict[str, Any]) -> str:
    text = f"{timing['median'] * 1e3:.4g} ms ± {timing['spread'] / 2:.0%}"
    return f"{text} (not quiet)" if timing["spread"] > NOISY else text


def _memory(memory: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / GIGA:.2f} GB" for name, size in memory.items())


def _rate(tflops: float) -> str:
    return f"{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOP/s"


def _train_table(result: dict[str, Any]) -> Table:
    title = f"Training {result['shape']}: {result['description']}"
    table = _new_table(title, "", _hardware(result))
    flops, matrix = result["flops_per_step"], result["matrix"]
    rows = [
        ("tokens a second", f"{result['tokens_per_s']:,.0f}"),
        ("steps a second", f"{result['steps_per_s']:.3g}"),
        ("a step", _seconds(result["seconds_per_step"])),
        ("operations a step", f"{flops['total'] / GIGA:,.2f} GFLOP"),
        *[(f"  {n}", f"{v / flops['total']:.1%}") for n, v in flops.items() if n != "total"],
        ("achieved", _rate(result["tflops"])),
        (f"matrix product, {matrix['dtype']} {matrix['size']}³", _rate(matrix["tflops"])),
        ("ratio", f"{result['ratio']:.1%}"),
        ("peak memory", _memory(result["peak_memory"])),
        ("new run to first step", f"{result['build_to_first_step_s']:.1f} s"),
    ]
    if "self_conditioning" in result:
        compared = result["self_conditioning"]
        rows += [
            ("without self-conditioning, a step", _seconds(compared["seconds_per_step_off"])),
            ("self-conditioning, of the step", f"{compared['share_of_step']:.1%}"),
            ("self-conditioning, of the operations", f"{compared['share_of_flops']:.1%}"),
        ]
    for row in rows:
        table.add_row(*row)
    return table


def _sample_table(result: dict[str, Any]) -> Table:
    title = (
        f"Sampling {result['shape']}: {result['description']}; {_hardware(result)}; "
        f"matrix product {_rate(result['matrix_tflops'])}"
    )
    columns = ("batch", "network calls", "a batch", "tokens/s", "achieved", "ratio")
    table = _new_table(title, "", *columns, "first batch", "memory")
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
            _memory(row["memory"]),
        )
    caption = [f"compile {result['compile']}"]
    for text, name in (
        ("guided / unguided time", "guidance_ratio"),
        ("Heun / Euler at equal calls", "heun_ratio"),
    ):
        if result[name] is not None:
            caption.append(f"{text} {result[name]:.2f}")
    table.caption = "; ".join(caption)
    return table


TABLES = {"train": _train_table, "sample": _sample_table}
