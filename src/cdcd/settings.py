"""Settings: frozen dataclasses to command-line options and JSON, and back.

A run's configuration is a dataclass of section dataclasses. `add_options` makes an option of each field
(`--section.field-name VALUE`), whose help is the docstring under the field; `chosen` returns those that a
user gave, and `override` puts them over a preset. `flatten` lists all settings by the same names.
"""

import argparse
import ast
import dataclasses
import difflib
import inspect
import math
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import (
    Any,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")


RENAMED = {
    "settle": "decoder mask-predict",
    "settle_temperature": "temperature of mask-predict",
    "settle_lengths": "num-lengths of mask-predict",
    "sureness": "confidence-weight of mask-predict",
}
"""Names of earlier versions."""


def unknown(category: str, name: str, known: Iterable[str]) -> ValueError:
    """Returns an error that names an unknown option, preset or other, and the nearest known one."""
    known = sorted(known)
    if former := RENAMED.get(name.lstrip("-").rpartition(".")[2].replace("-", "_")):
        return ValueError(f"unknown {category} {name}; it is {former} now")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return ValueError(f"unknown {category} {name}; {hint}")


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one line, the nearest option and exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            verb = getattr(parsed, "parser", self)
            options = [name for name in verb._option_string_actions if name.startswith("--")]
            verb.error(str(unknown("option", extra[0].split("=")[0], options)))
        return parsed


def check_ranges(
    config: Any,
    section: str = "",
    *,
    at_least: Mapping[int, Iterable[str]] | None = None,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    share: Iterable[str] = (),
    inner_share: Iterable[str] = (),
    below_one: Iterable[str] = (),
    above_zero: Iterable[str] = (),
) -> None:
    """Raises an error where a named field is out of its range; None is in every range.

    The ranges are x > 0 (positive), x ≥ 0 (not_negative), [0, 1] (share), (0, 1) (inner_share),
    [0, 1) (below_one) and (0, 1] (above_zero).
    """
    limits = [
        (names, lambda x, least=least: x >= least, f"be at least {least}")
        for least, names in (at_least or {}).items()
    ]
    limits += [
        (positive, lambda x: x > 0, "be positive"),
        (not_negative, lambda x: x >= 0, "not be negative"),
        (share, lambda x: 0 <= x <= 1, "be between 0 and 1"),
        (inner_share, lambda x: 0 < x < 1, "be between 0 and 1"),
        (below_one, lambda x: 0 <= x < 1, "be at least 0 and below 1"),
        (above_zero, lambda x: 0 < x <= 1, "be above 0 and at most 1"),
    ]
    for names, is_allowed, limit in limits:
        for name in names:
            value = getattr(config, name)
            if value is not None and not is_allowed(value):
                prefix = f"{section}." if section else ""
                raise ValueError(f"{prefix}{name} is {value}, it must {limit}")


Effects: TypeAlias = Sequence[tuple[bool, str, Sequence[str]]]
"""Settings, or whole sections, that have an effect only under a condition: whether it is met, the
condition in words, and the names."""


def refuse_without_effect(names: Iterable[str], effects: Effects) -> None:
    """Raises an error where one of the settings that a user gave would do nothing."""
    for name in names:
        for is_met, condition, settings in effects:
            if not is_met and (name in settings or name.split(".")[0] in settings):
                raise ValueError(f"{name} has no effect here: it needs {condition}; leave it out")


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(text)):
                docs[name] = inspect.cleandoc(str(text))
    return docs


def convert(value: Any, hint: Any) -> Any:
    """Checks a value, or the text of one, against a type hint, and returns the value."""
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in choices:
            raise unknown("choice", str(value), map(str, choices))
        return value
    if get_origin(hint) in (types.UnionType, Union):
        if value is None or value == "none":
            return None
        return convert(value, next(arg for arg in choices if arg is not type(None)))
    if hint is bool:
        names = {"true": True, "false": False, True: True, False: False}
        if value not in names:
            raise ValueError(f"{value!r} is neither true nor false")
        return names[value]
    if (
        hint in (int, float)
        and isinstance(value, int | float | str)
        and not isinstance(value, bool)
    ):
        return _number(value, hint)
    if hint is str and isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is not of type {getattr(hint, '__name__', hint)}")


def _number(value: int | float | str, hint: type[int] | type[float]) -> int | float:
    error = ValueError(f"{value!r} is not {'a whole' if hint is int else 'a finite'} number")
    try:
        number = hint(value)
    except (ValueError, OverflowError):
        raise error from None
    if not math.isfinite(number) or (isinstance(value, float) and number != value):
        raise error
    return number


def add_options(
    parser: argparse.ArgumentParser, cls: type, *, section: str = "", leave_out: Iterable[str] = ()
) -> None:
    """Adds one option for each field of a dataclass; nested dataclasses become sections."""
    hints, docs = get_type_hints(cls), field_docs(cls)
    group = parser
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if field.name in leave_out:
            continue
        if dataclasses.is_dataclass(hint):
            add_options(parser, hint, section=f"{section}{field.name}.")  # pyright: ignore[reportArgumentType]
            continue
        if group is parser and section:
            group = parser.add_argument_group(section.rstrip("."), inspect.getdoc(cls))
        group.add_argument(
            f"--{section}{field.name}".replace("_", "-"),
            dest=f"{section}{field.name}",
            type=_converter(hint),
            default=argparse.SUPPRESS,
            metavar=_metavar(hint),
            help=docs.get(field.name, "").replace("%", "%%"),
        )


def _converter(hint: Any) -> Any:
    def parse(text: str) -> Any:
        try:
            return convert(text, hint)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _metavar(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if get_origin(hint) in (types.UnionType, Union):
        return "|".join(map(_metavar, get_args(hint)))
    names = {bool: "true|false", int: "INT", float: "FLOAT", type(None): "none"}
    return names.get(hint, "TEXT")


def chosen(namespace: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Returns those fields of a dataclass that the user set, as {"section.field": value}."""
    given = vars(namespace)
    return {name: given[name] for name in _names(cls) if name in given}


def _names(cls: type, section: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from _names(hint, f"{section}{name}.")  # pyright: ignore[reportArgumentType]
        else:
            yield section + name


def override(config: T, changes: Mapping[str, Any]) -> T:
    """Returns a copy of `config` with changes {"section.field": value}, checked section by section."""
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    names = [field.name for field in dataclasses.fields(config)]  # pyright: ignore[reportArgumentType]
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if name not in names:
            raise unknown("setting", name, names)
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            own[name] = convert(value, get_type_hints(type(config))[name])
    own |= {name: override(getattr(config, name), inner) for name, inner in nested.items()}
    return dataclasses.replace(config, **own)  # pyright: ignore[reportArgumentType]


def flatten(config: Any, section: str = "") -> dict[str, Any]:
    """Returns all settings of a dataclass as {"section.field": value}."""
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        nested = dataclasses.is_dataclass(value)
        name = section + field.name
        settings |= flatten(value, f"{name}.") if nested else {name: value}
    return settings


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """Builds a dataclass from JSON, checking names and types; a missing field takes its default."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{values!r} is not a section of settings")
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise unknown("setting", name, hints)
        nested = dataclasses.is_dataclass(hints[name])
        arguments[name] = from_dict(hints[name], value) if nested else convert(value, hints[name])  # pyright: ignore[reportArgumentType]
    return cls(**arguments)
