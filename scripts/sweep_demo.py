"""Sweeps settings of the demo preset, each judged by the exact grammar.

    python scripts/sweep_demo.py results/demo_sweep.json --workers 8 --seeds 0 1 2 \
        --set objective.self_conditioned_share=0.5,0.75,1.0 --set warp.temperature=0.8,1.0

Every combination of the given values runs with every seed, on the GPU if there is one. The JSON file
has one row for each run; the table comes last.
"""

import argparse
import itertools
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cdcd.inference.load import load
from cdcd.inference.text_model import Canvas
from cdcd.languages.tales_quality import count_tokens, judge_tales
from cdcd.presets import preset
from cdcd.settings import override
from cdcd.training import corpora
from cdcd.training import run as runs

NUM_STORIES = 128


def run_one(changes: dict[str, Any]) -> dict[str, Any]:
    """Trains and judges one configuration."""
    torch.set_num_threads(1)
    config = override(preset("demo"), changes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        loss = runs.start(config, out, console=Console(file=StringIO())).train()
        model = load(out, dtype="float32")
    split = corpora.load_documents(config)
    canvas = Canvas((None,) * model.length)
    texts = [
        g.text for g in model.generate(canvas, num_samples=NUM_STORIES, batch_size=NUM_STORIES)
    ]
    data = split.valid[:NUM_STORIES]
    num_tokens = min(count_tokens(texts), count_tokens(data))
    judged = judge_tales(texts, set(split.train), num_tokens=num_tokens)
    reference = judge_tales(data, set(), num_tokens=num_tokens)
    return {
        "changes": changes,
        "valid_loss": loss,
        "quality": asdict(judged),
        "data_entropy": reference.entropy,
    }


def combinations(settings: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """Lists every combination of `name=value,value` settings with every seed."""
    names = [setting.split("=", 1)[0] for setting in settings]
    values = [setting.split("=", 1)[1].split(",") for setting in settings]
    return [
        dict(zip(names, combination, strict=True)) | {"training.seed": seed}
        for combination in itertools.product(*values)
        for seed in seeds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    jobs = combinations(options.set, options.seeds)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run_one, jobs))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    record = {
        "device": device,
        "torch": torch.__version__,
        "preset": asdict(preset("demo")),
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=1))
    for row in rows:
        quality = row["quality"]
        ratio = quality["entropy"] / row["data_entropy"]
        print(
            f"parse {quality['parse_share']:.3f}  references {quality['reference_share']:.3f}  "
            f"entropy {ratio:.3f} of the data's  copied {quality['copied_share']:.3f}  {row['changes']}"
        )


if __name__ == "__main__":
    main()
