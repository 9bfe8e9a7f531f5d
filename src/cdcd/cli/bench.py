"""`cdcd bench train` and `cdcd bench sample`."""

import argparse
from pathlib import Path
from typing import Any

from cdcd.settings import add_options, chosen


def bench_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.benchmarks.sample import SampleBenchConfig
    from cdcd.benchmarks.shapes import SHAPES
    from cdcd.benchmarks.train import TrainBenchConfig
    from cdcd.config import RunConfig

    verbs = parser.add_subparsers(metavar="train|sample", required=True, dest="bench_verb")
    for name, settings, text in (
        ("train", TrainBenchConfig, "whole training steps on random tokens"),
        ("sample", SampleBenchConfig, "whole batches of samples of random weights"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.set_defaults(parser=verb, bench_settings=settings)
        shapes = f"{', '.join(SHAPES)} (default: A on a GPU, else demo)"
        verb.add_argument("--shape", "--preset", metavar="NAME", help=f"one of {shapes}")
        verb.add_argument("--threads", metavar="INT", type=int, help="number of CPU threads")
        verb.add_argument("--json", action="store_true", help="print only the line of JSON")
        verb.add_argument(
            "--out", metavar="FILE", type=Path, help="write the JSON to this file too"
        )
        add_options(verb, settings)
        add_options(verb, RunConfig)


def bench(options: Any) -> None:
    import torch

    from cdcd.benchmarks import report, sample, shapes, train
    from cdcd.config import RunConfig

    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}, it must be at least 1")
        torch.set_num_threads(options.threads)
    settings = options.bench_settings(**chosen(options, options.bench_settings))
    default = "A" if torch.cuda.is_available() else "demo"
    name, config = shapes.choose_config(options.shape or default, chosen(options, RunConfig))
    measure = train.bench_train if options.bench_verb == "train" else sample.bench_sample
    report.publish(measure(name, config, settings), json_only=options.json, out=options.out)
