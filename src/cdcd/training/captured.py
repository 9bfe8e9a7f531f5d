"""A training step captured once as a CUDA graph, and replayed.

A step of a small model is over a thousand small kernels: launching them one by one takes longer than
running them. A graph launches all at once, but always on the same memory, so a step's inputs are copied
to fixed buffers. Everything else that changes from step to step (the learning rate) is in tensors.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from cdcd.networks.capture import capture

WARMUP = 3
"""Steps before the capture: they compile, and make the optimiser's state."""

Parts = list[tuple[Tensor, Any]]
"""The parts of a batch, each with its random inputs: a dataclass of tensors, or None."""
Results = tuple[Tensor, Tensor, Tensor | None]
"""The mean loss, and the losses and noise levels of all sequences."""

Record = Callable[[Callable[[], Results]], Callable[[], Results]]
"""Makes from a computation on fixed buffers, without running it, a function that repeats it."""


class CapturedStep:
    """An update of the model whose first steps run as they are; a recording of one is replayed after."""

    def __init__(self, update: Callable[[Parts], Results], record: Record = capture) -> None:
        self.update, self.record = update, record
        self.num_steps = 0
        self.buffers: list[Tensor] = []
        self.replay: Callable[[], Results] | None = None

    def __call__(self, parts: Parts) -> Results:
        if self.num_steps < WARMUP:
            self.num_steps += 1
            return self.update(parts)
        if self.replay is None:
            self.buffers = list(tensors_of(parts))
            self.replay = self.record(lambda: self.update(parts))
        for buffer, tensor in zip(self.buffers, tensors_of(parts), strict=True):
            if buffer is not tensor:
                buffer.copy_(tensor)
        # The next replay overwrites what this one returns.
        mean, losses, t = self.replay()
        return mean.clone(), losses.clone(), None if t is None else t.clone()


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Returns the tensors in lists, tuples and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value):
        yield from tensors_of([getattr(value, field.name) for field in fields(value)])
