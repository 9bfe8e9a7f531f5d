"""Muon against Adam at equal time: steps and seconds to the same loss at fixed noise levels.

    python scripts/optimisers.py DATASET OUT [--option …]

DATASET is a prepared data set (`scripts/captions.sh DATA OUT prepare` makes one of captions); OUT gets the
runs and optimisers.json. Further options go to `cdcd train`. The learning rate is constant after its
warm-up, so that every validation is a fair end. Seconds are those of the training steps alone. Losses are
means over the validation's fixed noise levels: those over the warp's own would compare other levels.
"""

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = {
    "muon 0.002": {"optimiser": "muon", "learning-rate": 2e-3, "steps": 1000},
    "adam 0.001": {"optimiser": "adam", "learning-rate": 1e-3, "steps": 1600},
    "adam 0.0005": {"optimiser": "adam", "learning-rate": 5e-4, "steps": 1600},
}
SETTINGS = {"warmup-steps": 100, "decay-steps": 0, "validate-every": 100, "checkpoint-every": 0}
SETTINGS |= {"batch-size": 512, "average-decay": 0.99, "valid-sequences": 1024}
MODEL = (
    "--preset small --data.length 32 --network.num-blocks 8 --network.width 512 --network.num-heads 8 "
    "--embedding.dim 128 --embedding.init-scale 0.05"
)


def train(data: str, out: Path, settings: dict[str, object], more: list[str]) -> None:
    options = [f"--training.{name}={value}" for name, value in (SETTINGS | settings).items()]
    command = [*shlex.split(os.environ.get("CDCD", "cdcd")), "train", "--data", data]
    command += ["--out", str(out), *shlex.split(MODEL), *options, *more]
    subprocess.run(command, check=True)


def curve(out: Path, tokens_per_step: int) -> dict[str, object]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    seconds = tokens_per_step / statistics.median(speeds)
    losses = {
        row["step"]: statistics.mean(level["loss"] for level in row["validation"]["levels"])
        for row in rows
        if "validation" in row
    }
    return {
        "seconds_per_step": seconds,
        "last_levels": next(row["validation"] for row in rows[::-1] if "validation" in row)[
            "levels"
        ],
        "validation": [
            {"step": step, "seconds": step * seconds, "loss": loss} for step, loss in losses.items()
        ],
    }


def reached(found: dict, loss: float) -> dict | None:
    return next((point for point in found["validation"] if point["loss"] <= loss), None)


def main() -> None:
    data, out, *more = sys.argv[1:]
    curves = {}
    for name, settings in RUNS.items():
        folder = Path(out) / name.replace(" ", "_")
        if not folder.exists():
            train(data, folder, settings, more)
        config = json.loads((folder / "config.json").read_text())["config"]
        tokens = config["training"]["batch_size"] * config["data"]["length"]
        curves[name] = {"config": config} | curve(folder, tokens)
    best = {
        name: min(point["loss"] for point in found["validation"]) for name, found in curves.items()
    }
    levels = sorted({math.ceil(1000 * loss) / 1000 for loss in best.values()}, reverse=True)
    table = {
        str(level): {name: reached(found, level) for name, found in curves.items()}
        for level in levels
    }
    content = {"curves": curves, "best": best, "first_reached": table}
    (Path(out) / "optimisers.json").write_text(json.dumps(content, indent=1))
    for level, points in table.items():
        told = (
            f"{name}: " + (f"step {p['step']}, {p['seconds']:.1f} s" if p else "not reached")
            for name, p in points.items()
        )
        print(f"validation loss {level}:  " + ";  ".join(told))


if __name__ == "__main__":
    main()
