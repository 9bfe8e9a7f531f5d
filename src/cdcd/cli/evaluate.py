"""`cdcd evaluate`."""

import argparse
from pathlib import Path
from typing import Any

from cdcd.cli.shared import chosen_settings, device_options, setting_options
from cdcd.settings import add_options, chosen


def evaluate_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.evaluation.evaluate import EvaluationConfig

    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="runs; several of one kind are averaged"
    )
    parser.add_argument(
        "--judge", metavar="RUN|hf:NAME", required=True, help="autoregressive run, or model by name"
    )
    parser.add_argument("--baseline", metavar="RUN", type=Path, help="autoregressive baseline")
    parser.add_argument("--data", metavar="PATH", help="the runs' text, where it has moved")
    for name, text in (
        ("--sweep", "sampling settings to sweep; several make a grid"),
        ("--baseline-sweep", "the baseline's settings (default: nucleus=0.8,0.9,0.95,1)"),
    ):
        parser.add_argument(
            name, metavar="NAME=VALUE,VALUE", action="append", default=[], help=text
        )
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="default: RUN/evaluation")
    device_options(parser)
    add_options(parser, EvaluationConfig)
    setting_options(parser)


def evaluate(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.evaluate import Evaluation, EvaluationConfig, sweep_settings
    from cdcd.evaluation.report import print_report, write_report

    settings = sweep_settings(options.sweep)
    baseline = sweep_settings(options.baseline_sweep or ["nucleus=0.8,0.9,0.95,1.0"])
    evaluation = Evaluation(
        options.runs,
        options.judge,
        EvaluationConfig(**chosen(options, EvaluationConfig)),
        baseline=options.baseline,
        data=options.data,
        settings=chosen_settings(options),
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
        console=Console(stderr=True),
    )
    report = evaluation.report(settings, baseline)
    console = Console(highlight=False)
    # A table that is piped into a file needs no window.
    print_report(report, console if console.is_terminal else Console(highlight=False, width=200))
    for path in write_report(report, options.out or options.runs[0] / "evaluation"):
        print(path)
