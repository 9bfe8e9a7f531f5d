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

# Some CPUs die of an illegal instruction in bfloat16 matrix products unless oneDNN is held back.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@dataclass(frozen=True)
class Verb:
    """A command: its functions `NAME` and `NAME_options` stand in a module of this package."""

    name: str
    module: str
    text: str
    usage: str

    def function(self, suffix: str = "") -> Any:
        return getattr(importlib.import_module(f"cdcd.cli.{self.module}"), self.name + suffix)


VERBS = (
    Verb(
        "train",
        "train",
        "train a model, resume a run or fine-tune one",
        "--preset NAME --data PATH --out RUN [--resume [auto]] [--section.field VALUE …]",
    ),
    Verb(
        "sample",
        "generate",
        "generate text, with or without a prompt",
        "RUN [--prompt TEXT] [--num-samples INT] [--seed INT] [--setting VALUE …]",
    ),
    Verb(
        "infill",
        "generate",
        "fill the gaps of a text",
        "RUN TEXT [--num-samples INT] [--seed INT] [--setting VALUE …]",
    ),
    Verb(
        "translate",
        "translate",
        "translate a text, line by line",
        "RUN --source FILE|- [--out FILE] [--num-samples INT] [--long split|refuse] [--setting VALUE …]",
    ),
    Verb("info", "look", "describe a run", "RUN [--json]"),
    Verb(
        "plot",
        "look",
        "draw a run: time warping, training curves, a denoising sample",
        "RUN [--out FOLDER] [--prompt TEXT] [--seed INT]",
    ),
    Verb(
        "evaluate",
        "evaluate",
        "measure samples of runs beside real text and a baseline, before a judge; or translations",
        "RUN [RUN …] [--judge RUN|hf:NAME] [--baseline RUN] [--sweep NAME=VALUE,VALUE …] "
        "[--counts INT,INT]",
    ),
    Verb(
        "data",
        "data",
        "prepare a corpus for training, or check a prepared one",
        "prepare --source PATH --out FOLDER [--setting VALUE …] | verify FOLDER",
    ),
    Verb(
        "bench",
        "bench",
        "measure the speed of training and sampling here",
        "train|sample|scaling [--shape NAME | --preset NAME] [--section.field VALUE …]",
    ),
    Verb("demo", "look", "train a small model on the CPU and show what it can do", "[--out RUN]"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line on stderr and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # All ranks of torchrun have the same command line: one of them complains about it.
    is_main = int(os.environ.get("RANK", "0")) == 0
    with nullcontext() if is_main else redirect_stderr(io.StringIO()):
        options = build_parser(given).parse_args(given)
    from cdcd.training.distributed import leave

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
    """All verbs, and the options of the one that is used: those of the others would have to load torch."""
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
