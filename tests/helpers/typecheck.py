"""The run-time checks of types and shapes: the first calls of every function in every test.

jaxtyping and beartype check a call in some 50 µs, so trainings of hundreds of steps would spend
more on the checks than on their arithmetic. A function's calls differ in their first batches; what
follows has the same types and shapes.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

CHECKED_CALLS = 8
"""The number of checked calls of each function in each test."""
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""The type checker: an int is a float, as for static checkers."""
_jaxtyped = jaxtyping.jaxtyped
_counters: list[list[int]] = []
"""The numbers of calls of the functions that have been called in this test."""


def check_anew() -> None:
    """Lets the first calls of every function be checked again."""
    for calls in _counters:
        calls[0] = 0
    _counters.clear()


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Stands in for jaxtyping's decorator of this name, which its import hook applies."""
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(function, type):
        return _checked_at_first(function, typechecker)
    if is_dataclass(function) and "__init__" in vars(function):
        function.__init__ = _checked_at_first(function.__init__, typechecker)
    return function


def _checked_at_first(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    """Wraps a function so that its first calls are checked; the first of all builds the check."""
    calls, checked = [0], []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or calls[0] >= CHECKED_CALLS:
            return function(*args, **kwargs)
        if not checked:
            checked.append(_jaxtyped(function, typechecker=typechecker))
        if not calls[0]:
            _counters.append(calls)
        calls[0] += 1
        return checked[0](*args, **kwargs)

    return call
