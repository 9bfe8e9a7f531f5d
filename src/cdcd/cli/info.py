"""`cdcd info`: describes a run."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdcd.cli.effects import effects
from cdcd.cli.messages import printable
from cdcd.config import RunConfig, read_config
from cdcd.inference.names import open_named
from cdcd.settings import flatten
from cdcd.training.build import build_model
from cdcd.training.logging import read_metrics


def info(options: Any) -> None:
    """Prints the size, the state and the configuration of a run."""
    description = describe(options.run)
    if options.json:
        print(json.dumps(description, indent=2))
    else:
        print_description(description)


def describe(path: Path) -> dict[str, Any]:
    """Returns the size, the state and the configuration of a run."""
    run = open_named(path)
    with torch.device("meta"):
        model = build_model(run.config, run.vocab_size)
    steps = run.steps()
    # A run that stopped early has lines beyond the checkpoint that it kept.
    last = steps[-1] if steps else 0
    metrics = [row for row in read_metrics(run.metrics_path) if row["step"] <= last]

    def last_logged(name: str) -> Any:
        return next((row[name] for row in reversed(metrics) if name in row), None)

    return {
        "run": str(path),
        "task": run.config.task,
        "model": run.config.model,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": run.vocab_size,
        "checkpoints": steps,
        "step": steps[-1] if steps else None,
        **{name: last_logged(name) for name in ("loss", "valid_loss", "tokens_per_second")},
        "bytes": sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file()),
        "config": asdict(run.config),
    }


def print_description(description: dict[str, Any]) -> None:
    """Prints a description as tables: the run, then the settings that are not those by default."""
    console = Console(highlight=False)
    config = read_config(description.pop("config"))
    _print_table(console, description.pop("run"), description)
    _print_table(console, "\nsettings that differ from the defaults", own_settings(config))
    console.print("\nall settings: --json", markup=False)


def own_settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings that have an effect in a configuration and differ from the defaults."""
    unused = {name for is_met, _, names in effects(config) if not is_met for name in names}
    defaults = flatten(RunConfig())
    return {
        name: value
        for name, value in flatten(config).items()
        if value != defaults[name] and not {name, name.partition(".")[0]} & unused
    }


def _print_table(console: Console, title: str, values: Mapping[str, Any]) -> None:
    table = Table(show_header=False, box=None, title=Text(printable(title)), title_justify="left")
    for name, value in values.items():
        table.add_row(f"  {name}", Text(printable(_readable(value))))
    console.print(table)


def _readable(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)
