"""The command line: `cdcd VERB RUN …`. Every verb is a call into the library."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import cdcd
from cdcd._version import __version__
from cdcd.settings import Parser


@dataclass(frozen=True)
class Verb:
    """A command, made of the functions `NAME` and `NAME_options` of a module of this package."""

    name: str
    module: str
    text: str
    usage: str

    def function(self, suffix: str = "") -> Any:
        """Imports the verb's function, or with the suffix `_options` the one that adds its options."""
        return getattr(importlib.import_module(f"cdcd.cli.{self.module}"), self.name + suffix)


VERBS = [
    Verb(*row)
    for row in (
        (
            "train",
            "train",
            "train a model, resume a run or tune one",
            "--preset NAME --data PATH --out RUN [--resume [auto]] [--section.field VALUE …]",
        ),
        (
            "sample",
            "generate",
            "generate text, with or without a prompt",
            "RUN [--prompt TEXT] [--num-samples INT] [--seed INT] [--setting VALUE …]",
        ),
        (
            "infill",
            "generate",
            "fill the gaps of a text",
            "RUN TEXT [--num-samples INT] [--seed INT] [--setting VALUE …]",
        ),
        (
            "translate",
            "translate",
            "translate a text, line by line",
            "RUN --source FILE|- [--out FILE] [--num-samples INT] [--long split|refuse] "
            "[--setting VALUE …]",
        ),
        ("info", "info", "describe a run", "RUN [--json]"),
        (
            "plot",
            "plot",
            "draw a run: training curves, time warp, a sample while it is denoised",
            "RUN [--out FOLDER] [--prompt TEXT] [--seed INT]",
        ),
        (
            "evaluate",
            "evaluate",
            "measure texts or translations of runs, beside real ones and a baseline's",
            "RUN [RUN …] [--judge RUN|hf:NAME] [--baseline RUN] [--sweep NAME=VALUE,VALUE …] "
            "[--counts INT,INT]",
        ),
        (
            "data",
            "data",
            "prepare a corpus for training, or check a prepared one",
            "prepare --source PATH --out FOLDER [--setting VALUE …] | verify FOLDER",
        ),
        (
            "bench",
            "bench",
            "measure the speed of training and of sampling on this machine",
            "train|sample [--shape NAME] [--section.field VALUE …]",
        ),
        (
            "reproduce",
            "reproduce",
            "reproduce the paper's tables and figures, and judge its findings",
            "[TABLE|FIGURE …] --scale tiny|small|paper [--data DATA] --out OUT [--list] [--dry-run]",
        ),
        ("demo", "demo", "train a small model on the CPU and show its samples", "[--out RUN]"),
    )
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake is one line on stderr and exit code 2."""
    # Some CPUs die of an illegal instruction in bfloat16 matrix products unless oneDNN is held back.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # All ranks of torchrun have the same command line: one of them complains about it.
    is_main = int(os.environ.get("RANK", "0")) == 0
    with nullcontext() if is_main else redirect_stderr(io.StringIO()):
        options = build_parser(given).parse_args(given)
    from cdcd.files import warnings_in_one_line
    from cdcd.training.distributed import leave

    with warnings_in_one_line():
        return leave(_run(options))


def _run(options: Any) -> int:
    from cdcd.training.distributed import SaidElsewhere
    from cdcd.training.monitoring import Stopped

    try:
        options.action(options)
    except SaidElsewhere as said:
        stopped = said.__cause__
        return 128 + stopped.signal_number if isinstance(stopped, Stopped) else 2
    except Stopped as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("CDCD_TRACEBACK"):
            raise
        print(f"{options.parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def build_parser(arguments: Sequence[str]) -> Parser:
    """Builds the parser of all verbs, with the options of the one that is used; the others' would load torch."""
    used = next((word for word in arguments if not word.startswith("-")), None)
    parser = Parser(prog="cdcd", description=cdcd.__doc__)
    parser.add_argument("--version", action="version", version=f"cdcd {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        about = verb.text[0].upper() + verb.text[1:] + "."
        own = parsers.add_parser(verb.name, help=verb.text, description=about)
        if verb.name == used:
            own.set_defaults(action=verb.function(), parser=own)
            verb.function("_options")(own)
        own.usage = f"cdcd {verb.name} {verb.usage}"
    return parser
