"""`cdcd bench train`, `cdcd bench sample` and `cdcd bench scaling`."""

import argparse
from pathlib import Path
from typing import Any

from cdcd.settings import add_options, chosen


def bench_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.benchmarks.sample import SampleBenchConfig
    from cdcd.benchmarks.scaling import ScalingBenchConfig
    from cdcd.benchmarks.shapes import SHAPES
    from cdcd.benchmarks.train import TrainBenchConfig
    from cdcd.config import RunConfig
    from cdcd.presets import TEXT

    verbs = parser.add_subparsers(metavar="train|sample|scaling", required=True, dest="bench_verb")
    for name, settings, text in (
        ("train", TrainBenchConfig, "whole training steps on random tokens"),
        ("sample", SampleBenchConfig, "whole batches of samples of random weights"),
        ("scaling", ScalingBenchConfig, "both against width, depth, length, vocabulary and batch"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.set_defaults(parser=verb, bench_settings=settings)
        verb.add_argument("--shape", metavar="NAME", help=f"one of {', '.join(SHAPES)}")
        verb.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(TEXT)}")
        verb.add_argument("--threads", metavar="INT", type=int, help="CPU threads")
        verb.add_argument("--json", action="store_true", help="print only the line of JSON")
        verb.add_argument("--out", metavar="FILE", type=Path, help="file the JSON here")
        add_options(verb, settings)
        add_options(verb, RunConfig)
    train, scaling = (verbs.choices[name] for name in ("train", "scaling"))
    for name, text in (
        ("--compare-self-conditioning", "measure what self-conditioning costs"),
        ("--profile", "show the operations that take most of a step's time"),
    ):
        train.add_argument(name, action="store_true", help=text)
    scaling.add_argument("--plot", metavar="FILE", type=Path, help="draw the curves here")


def bench(options: Any) -> None:
    import torch

    from cdcd.benchmarks import report, sample, scaling, shapes, train
    from cdcd.config import RunConfig

    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}, it must be at least 1")
        torch.set_num_threads(options.threads)
    settings = options.bench_settings(**chosen(options, options.bench_settings))
    default = "A" if torch.cuda.is_available() else "demo"
    if options.bench_verb == "scaling" and default == "demo":
        default = "tiny"
    changes = chosen(options, RunConfig)
    name, config = shapes.choose_config(options.shape, options.preset, changes, default=default)
    if options.bench_verb == "train":
        result = train.bench_train(
            name,
            config,
            settings,
            compare_self_conditioning=options.compare_self_conditioning,
            profile=options.profile,
        )
    elif options.bench_verb == "sample":
        result = sample.bench_sample(name, config, settings)
    else:
        result = scaling.bench_scaling(name, config, settings)
        if options.plot is not None:
            scaling.plot_scaling(result, options.plot)
    report.publish(result, json_only=options.json, out=options.out)
