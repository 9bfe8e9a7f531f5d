"""What a benchmark says: a table, one line of JSON, and a file where one is asked for."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GIGA = 1e9
NOISY = 0.25
"""A spread above this is marked in the tables: something else was using the machine."""


def publish(result: dict[str, Any], *, json_only: bool = False, out: Path | None = None) -> None:
    """Print a result, and file it."""
    if not json_only:
        console = Console(highlight=False)
        # A table that is piped into a file needs no window.
        console = console if console.is_terminal else Console(highlight=False, width=160)
        for table in TABLES[result["benchmark"]](result):
            console.print(table)
    print(json.dumps(result), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _where(result: dict[str, Any]) -> str:
    found = result["environment"]
    return found.get("gpu") or f"{found['cpu']}, {found['threads']} threads"


def _seconds(timing: dict[str, Any]) -> str:
    shown = f"{timing['median'] * 1e3:.4g} ms ± {timing['spread'] / 2:.0%}"
    return f"{shown} (not quiet)" if timing["spread"] > NOISY else shown


def _memory(memory: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / GIGA:.2f} GB" for name, size in memory.items())


def _rate(tflops: float) -> str:
    return f"{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.1f} GFLOP/s"


def _train_tables(result: dict[str, Any]) -> list[Table]:
    table = _new_table(f"Training {result['shape']}: {result['description']}", "", _where(result))
    launch = result["launch_to_first_step_s"]
    flops = result["flops_per_step"]
    rows = [
        ("tokens a second", f"{result['tokens_per_s']:,.0f}"),
        ("steps a second", f"{result['steps_per_s']:.3g}"),
        ("a step", _seconds(result["seconds_per_step"])),
        ("operations a step", f"{flops['total'] / GIGA:,.2f} GFLOP"),
        *[(f"  {n}", f"{v / flops['total']:.1%}") for n, v in flops.items() if n != "total"],
        ("achieved", _rate(result["tflops"])),
        (
            f"matrix product, {result['matrix']['dtype']} {result['matrix']['size']}³",
            _rate(result["matrix_tflops"]),
        ),
        ("ratio", f"{result['ratio']:.1%}"),
        ("peak memory", _memory(result["peak_memory"])),
        ("launch to first step", "unknown" if launch is None else f"{launch:.1f} s"),
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
    return [table, *([_profile_table(result["profile"])] if "profile" in result else [])]


def _profile_table(profile: dict[str, Any]) -> Table:
    title = (
        f"Profile: {profile['seconds_per_step'] * 1e3:.1f} ms a step "
        f"({profile['seconds_per_step_unprofiled'] * 1e3:.1f} ms without profiling), "
        f"{profile['calls_per_step']:.0f} operations, "
        f"{profile['share_outside_operations']:.0%} of the time outside of them (Python)"
    )
    table = _new_table(title, "operation", "ms a step", "share", "calls a step")
    for row in profile["operations"]:
        table.add_row(
            row["operation"],
            f"{row['seconds_per_step'] * 1e3:.2f}",
            f"{row['seconds_per_step'] / profile['seconds_per_step']:.1%}",
            f"{row['calls_per_step']:.1f}",
        )
    return table


def _sample_tables(result: dict[str, Any]) -> list[Table]:
    table = _new_table(
        f"Sampling {result['shape']}: {result['description']}; {_where(result)}; "
        f"matrix product {_rate(result['matrix_tflops'])}",
        "",
        "batch",
        "network calls",
        "a batch",
        "tokens/s",
        "achieved",
        "ratio",
        "first batch",
        "memory",
    )
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
    table.caption = (
        f"compile {result['compile']}; guided / unguided time {result['guidance_ratio']:.2f}; Heun / Euler at equal calls "
        f"{result['heun_ratio']:.2f}"
    )
    return [table]


def _scaling_tables(result: dict[str, Any]) -> list[Table]:
    training = _new_table(
        f"Scaling around {result['shape']}: {result['description']}; {_where(result)}",
        "axis",
        "value",
        "tokens/s",
        "at constant FLOP/s",
        "a step",
        "achieved",
        "memory",
    )
    for axis, points in result["training"].items():
        for point in points:
            cells = ["out of memory", "", "", "", ""]
            if "error" not in point:
                cells = [
                    f"{point['tokens_per_s']:,.0f}",
                    f"{point['ideal_tokens_per_s']:,.0f}",
                    _seconds(point["seconds_per_step"]),
                    _rate(point["tflops"]),
                    _memory(point["peak_memory"]),
                ]
            training.add_row(axis, str(point["value"]), *cells)
        training.add_section()
    return [training, *([_sampling_table(result)] if result["sampling"] else [])]


def _sampling_table(result: dict[str, Any]) -> Table:
    table = _new_table(
        "Sampling", "axis", "value", "a batch", "at constant FLOP/s", "tokens/s", "achieved"
    )
    for axis, points in result["sampling"].items():
        for point in points:
            table.add_row(
                axis,
                str(point["value"]),
                _seconds(point["seconds"]),
                f"{point['ideal_seconds'] * 1e3:.4g} ms",
                f"{point['tokens_per_s']:,.0f}",
                _rate(point["tflops"]),
            )
        table.add_section()
    return table


TABLES = {"train": _train_tables, "sample": _sample_tables, "scaling": _scaling_tables}
