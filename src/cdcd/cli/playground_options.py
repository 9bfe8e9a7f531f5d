"""The options of `serve`, and those by which `sample` and `infill` do what the playground does."""

import argparse
import json
from pathlib import Path
from typing import Annotated, Any

from cdcd.settings import Bounds, add_number, argument

Port = Annotated[int, Bounds(0, 65_535)]
Places = Annotated[int, Bounds(1, 10_000)]


def add_playground_options(parser: argparse.ArgumentParser) -> None:
    """Adds changes from a step on, watching, and the replay."""
    parser.add_argument(
        "--change",
        metavar="JSON",
        type=_change,
        action="append",
        default=[],
        help="what is different from a step on, of tokens (by position), seed and settings: "
        '{"step": 40, "tokens": {"3": "dog"}, "seed": 1, "settings": {"score_temperature": 0.8}}',
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show the text, of several the first, while it becomes certain, where stdout is a terminal",
    )
    parser.add_argument(
        "--replay",
        metavar="FILE.html",
        type=argument(Path),
        help="write a page that shows every step of the sample, complete in one file",
    )


def _change(text: str) -> Any:
    from cdcd.inference.changes import read_change

    try:
        return read_change(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=argument(Path),
        help="runs, installed models or hf:owner/name; all installed models if none is named",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        type=argument(str),
        default="127.0.0.1",
        help="address to listen at; others than this machine's own need the token that is printed "
        "(CDCD_TOKEN in the environment chooses it)",
    )
    add_number(parser, "--port", Port, "port to listen at; 0: a free one", default=8642)
    add_number(parser, "--queue", Places, "requests that may wait for a model", default=128)
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to run on"
    )
