"""`cdcd completion`: prints what teaches a shell to complete commands, options and their choices."""

import argparse
from collections.abc import Iterator
from typing import Any


def completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="shell to complete in")


def completion(options: Any) -> None:
    """Prints the script of a shell."""
    from cdcd.cli.verbs import whole_parser

    try:
        import shtab
    except ImportError:
        raise ValueError("cdcd completion needs shtab: pip install shtab") from None
    parser = whole_parser()
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar[0] == "{":
            action.choices = action.metavar.strip("{}").split(",")
    print(shtab.complete(parser, options.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options of a parser and of the parsers below it."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for below in action.choices.values():
                yield from _actions(below)
