"""`cdcd info`, `cdcd plot` and `cdcd demo`."""

import argparse
import json
from pathlib import Path
from typing import Any


def info_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def info(options: Any) -> None:
    from cdcd.cli.display import describe, print_description

    description = describe(options.run)
    if options.json:
        print(json.dumps(description, indent=2))
    else:
        print_description(description)


def plot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, help="where to save (default: in RUN)"
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", default="", help="prompt of the denoising sample"
    )
    parser.add_argument(
        "--seed", metavar="INT", type=int, default=0, help="seed of the denoising sample"
    )


def plot(options: Any) -> None:
    from cdcd.cli.display import draw_run

    for path in draw_run(options.run, options.out, prompt=options.prompt, seed=options.seed):
        print(path)


def demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="RUN", type=Path, default=Path("runs/demo"), help="run directory"
    )


def demo(options: Any) -> None:
    from cdcd.cli.demo import show_demo

    show_demo(options.out)
