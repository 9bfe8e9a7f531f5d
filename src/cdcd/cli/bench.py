"""`cdcd bench train` and `cdcd bench sample`."""

import argparse
from pathlib import Path
from typing import Any

import torch

from cdcd.benchmarks.report import completed, publish
from cdcd.benchmarks.sample import SampleBenchConfig, bench_sample
from cdcd.benchmarks.shapes import SHAPES, choose_config
from cdcd.benchmarks.train import TrainBenchConfig, bench_train
from cdcd.config import RunConfig
from cdcd.settings import Processes, add_number, add_options, argument, chosen

BENCHMARKS = {
    "train": (TrainBenchConfig, bench_train, "time training steps on random tokens"),
    "sample": (SampleBenchConfig, bench_sample, "time batches of samples of random weights"),
}


def bench_options(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="train|sample", required=True)
    for name, (settings, _, text) in BENCHMARKS.items():
        verb = verbs.add_parser(name, help=text, description=f"{text.capitalize()}.")
        verb.usage = f"cdcd bench {name} [--shape NAME] [--out FILE] [--section.field VALUE …]"
        verb.set_defaults(parser=verb, benchmark=name)
        shapes = f"{', '.join(SHAPES)} (default: A on a GPU, else demo)"
        verb.add_argument("--shape", "--preset", metavar="NAME", help=f"one of {shapes}")
        add_number(verb, "--threads", Processes, "number of CPU threads")
        verb.add_argument("--json", action="store_true", help="print only the line of JSON")
        verb.add_argument(
            "--out", metavar="FILE", type=argument(Path), help="write the JSON to this file too"
        )
        add_options(verb, settings)
        add_options(verb, RunConfig, leave_out={"distillation"})


def bench(options: Any) -> None:
    """Measures the speed of a shape, and prints it."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    settings_class, measure, _ = BENCHMARKS[options.benchmark]
    settings = settings_class(**chosen(options, settings_class))
    default = "A" if torch.cuda.is_available() else "demo"
    shape, config = choose_config(options.shape or default, chosen(options, RunConfig))
    measured: Any = measure(config, settings)
    result = completed(options.benchmark, shape, config, settings, measured)
    publish(result, json_only=options.json, out=options.out)
