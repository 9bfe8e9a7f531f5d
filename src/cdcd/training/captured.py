"""A training step captured once as a CUDA graph, and replayed.

A step of a small model is over a thousand small kernels: launching them one by one takes longer than
running them. A graph launches all at once, but always on the same memory, so a step's inputs are
copied to fixed places. What changes from step to step besides (the learning rate) lies in tensors.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cdcd.networks.capture import capture

WARMUP = 3
"""Steps before the capture: they compile, and make the optimiser's state."""

Learn = Callable[[Tensor, Any], tuple[Tensor, ...]]
"""One update from a batch and its draws."""

Record = Callable[[Callable[[], tuple[Tensor, ...]]], Callable[[], tuple[Tensor, ...]]]
"""Turns work on tensors at fixed places, without doing it, into a way to do it again and again."""


class CapturedStep:
    """Does the first steps as they are, and then replays a recording of one."""

    def __init__(self, learn: Learn, record: Record = capture) -> None:
        self.learn, self.record = learn, record
        self.seen = 0
        self.places: tuple[Tensor, Any] | None = None
        self.replay: Callable[[], tuple[Tensor, ...]] | None = None

    def __call__(self, tokens: Tensor, drawn: Any) -> tuple[Tensor, ...]:
        if self.seen < WARMUP:
            self.seen += 1
            return self.learn(tokens, drawn)
        if self.replay is None:
            self.places = places = tokens.clone(), map_tensors(torch.clone, drawn)
            self.replay = self.record(lambda: self.learn(*places))
        assert self.places is not None
        copy_into(self.places, (tokens, drawn))
        # The next replay overwrites what this one returns.
        return tuple(found.clone() for found in self.replay())


def map_tensors(function: Callable[[Tensor], Tensor], drawn: Any) -> Any:
    """A copy of draws with a function applied to each of their tensors."""
    if drawn is None:
        return None
    assert is_dataclass(drawn)
    values = {field.name: getattr(drawn, field.name) for field in fields(drawn)}
    changed = {name: function(value) for name, value in values.items() if value is not None}
    return replace(drawn, **changed)  # pyright: ignore[reportArgumentType]


def copy_into(places: tuple[Tensor, Any], inputs: tuple[Tensor, Any]) -> None:
    """Copy a batch and its draws to their places."""
    places[0].copy_(inputs[0])
    if inputs[1] is not None:
        for field in fields(inputs[1]):
            if (value := getattr(inputs[1], field.name)) is not None:
                getattr(places[1], field.name).copy_(value)
