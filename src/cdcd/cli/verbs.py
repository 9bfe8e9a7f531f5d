"""The verbs of the command line, and how one is run."""

import importlib
import io
import os
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import partial
from typing import Any

import cdcd
from cdcd._version import __version__
from cdcd.cli.errors import exit_code, quietly
from cdcd.cli.interrupts import Interruptible
from cdcd.cli.messages import say
from cdcd.cli.parser import HELP_ALL, Parser


@dataclass(frozen=True)
class Verb:
    """A command: the function of its name in a module of this package, and the one that adds its options."""

    name: str
    module: str
    text: str
    usage: str
    options: str = "options"
    """Module of the function `NAME_options`, which imports little."""
    has_settings: bool = True
    """True where fields of settings are among the options."""

    def action(self) -> Any:
        """Imports the verb's function."""
        return getattr(importlib.import_module(f"cdcd.cli.{self.module}"), self.name)

    def add_options(self, parser: Parser, *, whole: bool) -> None:
        """Adds the verb's options, where not `whole` those that matter most."""
        module = importlib.import_module(f"cdcd.cli.{self.options}")
        function = getattr(module, f"{self.name}_options")
        function(parser, whole=whole) if self.has_settings else function(parser)


VERBS = [
    Verb(
        "train",
        "train",
        "train a model, resume a run or tune one",
        "--preset NAME --data PATH --out RUN [--resume [auto]] [--section.field VALUE …]",
    ),
    Verb(
        "distill",
        "distill",
        "teach a diffusion model of text to sample in fewer steps",
        "RUN --out RUN [--distillation.num-steps INT] [--section.field VALUE …]",
    ),
    Verb(
        "sample",
        "generate",
        "generate text, with or without a prompt",
        "RUN [--prompt TEXT] [--num-samples INT] [--seed INT] [--watch] [--setting VALUE …]",
    ),
    Verb(
        "infill",
        "generate",
        "fill the gaps of a text",
        "RUN TEXT [--num-samples INT] [--seed INT] [--watch] [--setting VALUE …]",
    ),
    Verb(
        "translate",
        "translate",
        "translate a text, line by line",
        "RUN --source FILE|- [--out FILE] [--num-samples INT] [--long split|refuse] [--setting VALUE …]",
    ),
    Verb(
        "info",
        "info",
        "describe a run",
        "RUN [--json]",
        has_settings=False,
    ),
    Verb(
        "plot",
        "plot",
        "draw a run: training curves, time warp, a sample while it is denoised",
        "RUN [--out FOLDER] [--prompt TEXT] [--seed INT]",
        has_settings=False,
    ),
    Verb(
        "evaluate",
        "evaluate",
        "measure texts or translations of runs, beside real ones and a baseline's",
        "RUN [RUN …] [--judge RUN|hf:NAME] [--baseline RUN] [--sweep NAME=VALUE,VALUE …] [--counts INT,INT]",
    ),
    Verb(
        "serve",
        "serve",
        "start the playground: a page, and an interface for programs",
        "[RUN …] [--port INT] [--host ADDRESS]",
        options="playground_options",
        has_settings=False,
    ),
    Verb(
        "models",
        "shipping",
        "list the installed models",
        "[--json]",
        options="shipping",
        has_settings=False,
    ),
    Verb(
        "export",
        "shipping",
        "write the model of a run into a folder to give to others, with a card",
        "RUN --out FOLDER [--weights bfloat16|int8] [--facts FILE] [--report FILE …]",
        options="shipping",
        has_settings=False,
    ),
    Verb(
        "push",
        "shipping",
        "upload a model with its card to the Hugging Face hub",
        "RUN hf:OWNER/NAME [--weights bfloat16|int8] [--facts FILE] [--report FILE …]",
        options="shipping",
        has_settings=False,
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
        "measure the speed of training and of sampling on this machine",
        "train|sample [--shape NAME] [--section.field VALUE …]",
    ),
    Verb(
        "reproduce",
        "reproduce",
        "reproduce the paper's tables and figures, and judge its findings",
        "[TABLE|FIGURE …] --scale tiny|small|paper [--data DATA] --out OUT [--list] [--dry-run]",
        options="reproduce",
        has_settings=False,
    ),
    Verb(
        "demo",
        "demo",
        "show what installed models can do, or train a small one on the CPU and show it",
        "[--train [--out RUN]]",
        has_settings=False,
    ),
    Verb(
        "completion",
        "completion",
        "print the completion of commands and options for a shell",
        "bash|zsh|tcsh",
        options="completion",
        has_settings=False,
    ),
]


def run(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code; a user's mistake is one line on stderr and exit code 2."""
    # Some CPUs die of an illegal instruction in bfloat16 matrix products unless oneDNN is held back.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    return quietly(partial(_run, arguments))


def _run(arguments: Sequence[str]) -> int:
    used = used_verb(arguments)
    program = "cdcd" if used is None else f"cdcd {used.name}"
    parsed: list[Any] = []

    def parse() -> int:
        known = ["--help" if word == HELP_ALL else word for word in arguments]
        parsed.append(build_parser(arguments).parse_args(known))
        return 0

    # All ranks of torchrun have the same command line: one of them complains about it.
    is_main = int(os.environ.get("RANK", "0")) == 0
    with nullcontext() if is_main else redirect_stderr(io.StringIO()):
        code = exit_code(parse, program, arguments)
    if code or used is None:
        return code
    [options] = parsed
    code = exit_code(partial(_act, used, options), options.parser.prog, arguments)
    from cdcd.training.distributed import leave

    return leave(code)


def _act(verb: Verb, options: Any) -> int:
    action = verb.action()
    from cdcd.files import warnings_in_one_line
    from cdcd.training.distributed import SaidElsewhere
    from cdcd.training.monitoring import Stopped

    with Interruptible(), warnings_in_one_line():
        try:
            action(options)
        except SaidElsewhere as said:
            stopped = said.__cause__
            return 128 + stopped.signal_number if isinstance(stopped, Stopped) else 2
        except Stopped as stopped:
            say(f"\n{stopped}")
            return 128 + stopped.signal_number
    return 0


def used_verb(arguments: Sequence[str]) -> Verb | None:
    """Returns the verb that arguments name, if there is one."""
    name = next((word for word in arguments if not word.startswith("-")), None)
    return next((verb for verb in VERBS if verb.name == name), None)


def build_parser(arguments: Sequence[str]) -> Parser:
    """Builds the parser of all verbs, with the options of the one that is used: few of them for `--help`."""
    whole = not {"-h", "--help"} & set(arguments)
    return _parser([used_verb(arguments)], whole=whole)


def whole_parser() -> Parser:
    """Builds the parser of all verbs with all of their options."""
    return _parser(VERBS, whole=True)


def _parser(complete: Sequence[Verb | None], *, whole: bool) -> Parser:
    parser = Parser(prog="cdcd", description=cdcd.__doc__)
    parser.add_argument("--version", action="version", version=f"cdcd {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        about = verb.text[0].upper() + verb.text[1:] + "."
        own = parsers.add_parser(verb.name, help=verb.text, description=about)
        if verb in complete:
            own.set_defaults(parser=own)
            verb.add_options(own, whole=whole)
        own.usage = f"cdcd {verb.name} {verb.usage}"
    return parser
