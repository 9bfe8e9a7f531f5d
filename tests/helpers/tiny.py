"""Tiny runs for tests: a model of a few thousand weights, trained in a fraction of a second."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.cli import main
from cdcd.cli.effects import effects
from cdcd.config import RunConfig
from cdcd.presets import demo, numerals
from cdcd.settings import override, refuse_without_effect
from cdcd.training import run as runs

TINY = {
    "data.num_documents": 200,
    "data.length": 24,
    "process.t_max": 50.0,
    "embedding.dim": 8,
    "embedding.init_scale": 0.01,
    "network.width": 32,
    "network.num_blocks": 1,
    "network.num_heads": 2,
    "network.time_units": 16,
    "warp.num_bins": 10,
    "training.steps": 6,
    "training.seed": 0,
    "training.optimiser": "adam",
    "training.learning_rate": 2e-3,
    "training.batch_size": 8,
    "training.warmup_steps": 0,
    "training.decay_steps": 0,
    "training.log_every": 1,
    "training.validate_every": 0,
    "training.valid_sequences": 4,
    "training.checkpoint_every": 2,
    "sampling.num_steps": 4,
    "sampling.score_temperature": 1.0,
}

TINY_TRANSLATION = {
    "data.num_documents": 200,
    "embedding.dim": 8,
    "seq2seq.width": 16,
    "seq2seq.hidden": 24,
    "seq2seq.num_encoder_blocks": 1,
    "seq2seq.num_decoder_blocks": 2,
    "seq2seq.num_heads": 2,
    "seq2seq.time_units": 16,
    "warp.num_bins": 10,
} | {name: value for name, value in TINY.items() if name.startswith(("training.", "sampling."))}


def tiny_translation(changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The numerals preset made tiny."""
    changes = dict(changes or {})
    base = numerals(changes.get("model", "diffusion"))
    return override(base, TINY_TRANSLATION | changes)


def tiny_config(changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The demo preset made tiny; that of numerals, where the changes have `task` translation."""
    if (changes or {}).get("task") == "translation":
        return tiny_translation(changes)
    return override(demo(), TINY | dict(changes or {}))


def tiny_options(changes: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the same configuration as options of `cdcd train`, without tiny settings of no effect."""
    changes = dict(changes or {})
    is_translation = changes.get("task") == "translation"
    tiny = TINY_TRANSLATION if is_translation else TINY
    basis = {name: changes[name] for name in ("task", "data.source") if name in changes}
    if changes.get("model") in ("autoregressive", "masked"):
        basis["model"] = changes["model"]
    config = tiny_config(basis)
    options = ["--preset", "numerals" if is_translation else "demo"]
    for name, value in (tiny | changes).items():
        if name in changes or has_effect(name, config):
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


def has_effect(name: str, config: RunConfig) -> bool:
    """Returns whether `cdcd train` accepts a setting in a configuration."""
    try:
        refuse_without_effect([name], effects(config))
    except ValueError:
        return False
    return True


def start_tiny(out: Path, changes: Mapping[str, Any] | None = None) -> runs.Trainer:
    """A tiny run before its first step, silent."""
    return runs.start(tiny_config(changes), out, console=silent())


def train_tiny(out: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Train a tiny run into `out`."""
    start_tiny(out, changes).train()
    return out


def resume_tiny(out: Path, **arguments: Any) -> None:
    """Go on with a run to its end, silently."""
    runs.resume(out, console=silent(), **arguments).train()


def silent() -> Console:
    return Console(file=StringIO())


def cdcd_main(*arguments: object) -> int:
    """The exit code of a command, whether it returns or its parser exits."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        return int(stopped.code or 0)


def cdcd_process(*arguments: object) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "cdcd", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]
