"""Compares residual streams in bfloat16 and in float32: training loss, validation loss and speed.

    python scripts/residual_stream.py residual.json --steps 2000 --set network.num_blocks=24

A network of 24 blocks is trained twice under autocast, with the same draws. The last line that is printed
is JSON.
"""

import argparse
import json
import tempfile
from io import StringIO
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich.console import Console

from cdcd.config import RunConfig
from cdcd.networks import precision
from cdcd.presets import preset
from cdcd.settings import override
from cdcd.training import run as runs
from cdcd.training.logging import read_metrics

SETTINGS = {
    "data.num_documents": 50_000,
    "network.num_blocks": 24,
    "network.width": 512,
    "network.num_heads": 8,
    "training.batch_size": 256,
    "training.optimiser": "adam",
    "training.learning_rate": 3e-4,
    "training.warmup_steps": 200,
    "training.decay_steps": 0,
    "training.dtype": "bfloat16",
    "training.validate_every": 0,
    "training.checkpoint_every": 0,
}
"""The measured run: the tales of preset `demo`, and a deep network."""


def measure(config: RunConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Trains one run with its residual streams in a dtype."""
    precision.residual_dtype = dtype
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        trainer = runs.start(config, out, console=Console(file=StringIO()))
        valid_loss = trainer.train()
        rows = [row for row in read_metrics(out / "metrics.jsonl") if "tokens_per_second" in row]
    last = rows[-max(1, len(rows) // 10) :]
    return {
        "residual": str(dtype).removeprefix("torch."),
        "train_loss": fmean(row["loss"] for row in last),
        "valid_loss": valid_loss,
        # The first half compiles and warms up.
        "tokens_per_s": median(row["tokens_per_second"] for row in rows[len(rows) // 2 :]),
    }


def main() -> None:
    """Measures both dtypes and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of each run")
    parser.add_argument("--model", default="diffusion", choices=["diffusion", "autoregressive"])
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="setting of the runs"
    )
    options = parser.parse_args()
    changes = SETTINGS | {"training.steps": options.steps}
    changes |= dict(item.split("=", 1) for item in options.set)
    config = override(preset("demo", options.model), changes)
    results = [measure(config, dtype) for dtype in (torch.bfloat16, torch.float32)]
    report = {"model": options.model, "torch": torch.__version__, "changes": changes}
    text = json.dumps(report | {"results": results})
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
