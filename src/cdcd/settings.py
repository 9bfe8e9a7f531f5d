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
import itertools
import math
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
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


MOST_NAMED = 20
"""Names that a message lists."""


def unknown(category: str, name: str, known: Iterable[str]) -> ValueError:
    """Returns an error that names an unknown option, preset or other, and the nearest known one."""
    known = sorted(known)
    if former := RENAMED.get(name.lstrip("-").rpartition(".")[2].replace("-", "_")):
        return ValueError(f"unknown {category} {name}; it is {former} now")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    more = f" and {len(known) - MOST_NAMED} others" if len(known) > MOST_NAMED else ""
    listed = ", ".join(known[:MOST_NAMED]) + more
    hint = f"did you mean {near[0]}?" if near else f"known: {listed}"
    return ValueError(f"unknown {category} {name}; {hint}")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The range of a number, both ends finite; without the ends in `without`, with the numbers in `also`."""

    least: int | float
    most: int | float
    without: tuple[int, ...] = ()
    also: tuple[int, ...] = ()

    def broken_by(self, number: int | float) -> str | None:
        """Returns the limit that a number breaks, in words."""
        if number in self.also:
            return None
        if not number >= self.least or (number == self.least and number in self.without):
            limit = "above" if self.least in self.without else "at least"
            return f"{limit} {_digits(self.least)}{self._besides()}"
        if not number <= self.most or (number == self.most and number in self.without):
            return f"{'below' if self.most in self.without else 'at most'} {_digits(self.most)}"
        return None

    def __str__(self) -> str:
        without = f", without {' and '.join(map(_digits, self.without))}" if self.without else ""
        return f"from {_digits(self.least)} to {_digits(self.most)}{without}{self._besides()}"

    def _besides(self) -> str:
        return f", or {' or '.join(map(_digits, self.also))}" if self.also else ""


def _digits(number: int | float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


Share = Annotated[float, Bounds(0, 1)]
OpenShare = Annotated[float, Bounds(0, 1, without=(0, 1))]
PositiveShare = Annotated[float, Bounds(0, 1, without=(0,))]
BelowOne = Annotated[float, Bounds(0, 1, without=(1,))]
"""Also of shares that must leave something."""
Rate = Annotated[float, Bounds(0, 1_000, without=(0,))]
Temperature = Annotated[float, Bounds(0.001, 1_000)]
Greedy = Annotated[float, Bounds(0.001, 1_000, also=(0,))]
"""A temperature at which 0 takes the most probable; the logits are divided by others."""
Scale = Annotated[float, Bounds(-1_000, 1_000)]
Weight = Annotated[float, Bounds(0, 1_000_000)]
Seed = Annotated[int, Bounds(0, 2**63 - 1)]
Size = Annotated[int, Bounds(1, 65_536)]
"""Units, heads and tokens of one sequence."""
Length = Annotated[int, Bounds(2, 65_536)]
Batch = Annotated[int, Bounds(1, 1_048_576)]
Repeats = Annotated[int, Bounds(1, 1_000_000)]
"""Steps of sampling, samples, seeds: work that is done again and again."""
Processes = Annotated[int, Bounds(1, 4_096)]
"""Processes and threads that work side by side."""
Count = Annotated[int, Bounds(1, 1_000_000_000)]
"""Steps of training, or documents, of which there is at least one."""
Steps = Annotated[int, Bounds(0, 1_000_000_000)]
Large = Annotated[int, Bounds(1, 1 << 40)]
"""Bytes and tokens of a corpus."""
VocabSize = Annotated[int, Bounds(2, 1 << 24)]


class Settings:
    """The base of all dataclasses of settings: a number is checked against the bounds in its type."""

    section = ""

    def __init_subclass__(cls, *, section: str = "") -> None:
        cls.section = f"{section}." if section else ""

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            value, bounds = getattr(self, name), bounds_of(hint)
            if bounds and value is not None and (limit := bounds.broken_by(value)):
                raise ValueError(f"{self.section}{name} is {value}, it must be {limit}")
            if value == "":
                raise ValueError(f"{self.section}{name} is empty; give a value or leave it out")


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, with their bounds."""
    return get_type_hints(cls, include_extras=True)


def bounds_of(hint: Any) -> Bounds | None:
    """Returns the bounds in a type, also in one that may be none."""
    if get_origin(hint) is Annotated:
        return next(each for each in hint.__metadata__ if isinstance(each, Bounds))
    return next(filter(None, map(bounds_of, get_args(hint))), None) if _is_union(hint) else None


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (types.UnionType, Union)


Effects: TypeAlias = Sequence[tuple[bool, str, Sequence[str]]]
"""Settings, or whole sections, that have an effect only under a condition: whether it is met, the
condition in words, and the names."""


def refuse_without_effect(names: Iterable[str], effects: Effects) -> None:
    """Raises an error where one of the settings that a user gave would do nothing."""
    for name in names:
        for is_met, condition, settings in effects:
            if not is_met and (name in settings or name.split(".")[0] in settings):
                raise ValueError(f"{name} has no effect here: it needs {condition}; leave it out")


def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return docs_of(body)


def docs_of(definition: ast.ClassDef) -> dict[str, str]:
    """Returns the docstring under each field of a class, from its source."""
    docs = {}
    for field, after in itertools.pairwise(definition.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(text)):
                docs[name] = inspect.cleandoc(str(text))
    return docs


def convert(value: Any, hint: Any) -> Any:
    """Checks a value, or the text of one, against a type, and returns the value; its bounds are not checked."""
    choices = get_args(hint)
    if get_origin(hint) is Annotated:
        return convert(value, choices[0])
    if get_origin(hint) is Literal:
        if value not in choices:
            raise unknown("choice", str(value), map(str, choices))
        return value
    if _is_union(hint):
        if value is None or value == "none":
            return None
        return convert(value, next(arg for arg in choices if arg is not type(None)))
    if hint is bool:
        if not isinstance(value, bool) and value not in ("true", "false"):
            raise ValueError(f"{value!r} is neither true nor false")
        return value in (True, "true")
    if hint in (int, float) and type(value) in (int, float, str):
        return _number(value, hint)
    if hint is str and isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is not of type {getattr(hint, '__name__', hint)}")


def _number(value: int | float | str, hint: type[int] | type[float]) -> int | float:
    try:
        number = hint(value)
        if math.isfinite(number) and (number == value or not isinstance(value, float)):
            return number
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{value!r} is not {'a whole' if hint is int else 'a finite'} number")


def add_options(
    parser: argparse.ArgumentParser, cls: type, *, section: str = "", leave_out: Iterable[str] = ()
) -> None:
    """Adds one option for each field of a dataclass; nested dataclasses become sections."""
    hints, docs = hints_of(cls), field_docs(cls)
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
        add_option(group, f"{section}{field.name}", hint, docs.get(field.name, ""))


def add_option(parser: Any, name: str, hint: Any, doc: str) -> None:
    """Adds the option of one field, which is absent from the result where it is not given."""
    parser.add_argument(
        f"--{name}".replace("_", "-"),
        dest=name,
        # Its bounds are checked with the whole section: the message names both.
        type=argument(hint, None),
        default=argparse.SUPPRESS,
        metavar=_metavar(hint),
        help=_help(doc, hint),
    )


def add_number(parser: Any, name: str, hint: Any, text: str, **more: Any) -> None:
    """Adds an option that is a bounded number, and no field of a dataclass."""
    parser.add_argument(
        name,
        metavar=_metavar(hint),
        type=argument(hint, bounds_of(hint)),
        help=_help(text, hint),
        **more,
    )


def argument(hint: Any, bounds: Bounds | None = None) -> Callable[[str], Any]:
    """Returns the function that reads a command-line argument of a type; none is empty."""

    def parse(text: str) -> Any:
        if not text:
            raise argparse.ArgumentTypeError("it is empty")
        try:
            value: Any = Path(text) if hint is Path else convert(text, hint)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if bounds and (limit := bounds.broken_by(value)):
            raise argparse.ArgumentTypeError(f"it is {value}, it must be {limit}")
        return value

    return parse


def _help(doc: str, hint: Any) -> str:
    bounds = bounds_of(hint)
    stop = "." if doc.endswith(".") else ""
    return (f"{doc.rstrip('.')} ({bounds}){stop}" if bounds else doc).replace("%", "%%")


def _metavar(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if get_origin(hint) is Annotated:
        return _metavar(get_args(hint)[0])
    if _is_union(hint):
        return "|".join(map(_metavar, get_args(hint)))
    names = {bool: "true|false", int: "INT", float: "FLOAT", type(None): "none"}
    return names.get(hint, "TEXT")


def chosen(namespace: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Returns those fields of a dataclass that the user set, as {"section.field": value}."""
    given = vars(namespace)
    return {name: given[name] for name in _names(cls) if name in given}


def _names(cls: type, section: str = "") -> Iterator[str]:
    for name, hint in hints_of(cls).items():
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
            own[name] = _converted(name, value, hints_of(type(config))[name])
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
    hints = hints_of(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise unknown("setting", name, hints)
        nested = dataclasses.is_dataclass(hints[name])
        arguments[name] = (
            from_dict(hints[name], value) if nested else _converted(name, value, hints[name])
        )
    return cls(**arguments)


def _converted(name: str, value: Any, hint: Any) -> Any:
    try:
        return convert(value, hint)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
