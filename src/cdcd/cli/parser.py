"""The parser of the command line, and the short help, which imports neither torch nor the settings."""

import argparse
import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import cdcd
from cdcd import settings
from cdcd.cli.errors import UsageError
from cdcd.settings import add_option, docs_of, unknown

HELP_ALL = "--help-all"


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one line and the nearest name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse would ignore that nobody reads it.
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            error = unknown(
                "command" if is_command else "choice", str(value), map(str, action.choices)
            )
            raise argparse.ArgumentError(None if is_command else action, str(error))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if no_value := next((word for word in args if re.fullmatch(r"--[^=]+=--", word)), None):
            # argparse takes the second -- for the end of the options, and the value for an empty list.
            self.error(f"{no_value.removesuffix('=--')} is --, which is no value of any option")
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            verb = getattr(parsed, "parser", self)
            options = [name for name in verb._option_string_actions if name.startswith("--")]
            verb.error(str(unknown("option", extra[0].split("=")[0], options)))
        return parsed


Fields = Mapping[tuple[str, str], Sequence[str]]
"""The fields that a short help shows: (file, class) with "section.field" names."""


def add_main_fields(parser: argparse.ArgumentParser, fields: Fields) -> None:
    """Adds the options of a few fields, read from the source of their classes."""
    about = f"{parser.prog} {HELP_ALL} shows all of them."
    group = parser.add_argument_group("the settings that matter most", about)
    for (file, class_name), options in fields.items():
        definition = _definition(Path(cdcd.__file__).parent / file, class_name)
        docs = docs_of(definition)
        names = [option.rpartition(".")[2] for option in options]
        hints = _types(definition, names)
        for option, name in zip(options, names, strict=True):
            add_option(group, option, hints[name], docs[name])


def _definition(path: Path, name: str) -> ast.ClassDef:
    module = ast.parse(path.read_text(encoding="utf-8"))
    return next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name)


def _types(definition: ast.ClassDef, names: Sequence[str]) -> dict[str, Any]:
    """Returns the types of some fields of a class, made of those that `cdcd.settings` defines or imports."""
    annotations = {
        field.target.id: ast.unparse(field.annotation)
        for field in definition.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    fields = type(definition.name, (), {"__annotations__": {n: annotations[n] for n in names}})
    return get_type_hints(fields, dict(vars(settings)), include_extras=True)
