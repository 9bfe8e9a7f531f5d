"""Faster steps: the loss compiled, and on a GPU a whole step captured once as a CUDA graph and replayed.

A step of a small model is over a thousand small kernels: launching them one by one takes longer than
running them. A graph launches all at once, but always on the same memory, so a step's inputs are copied
to fixed buffers. Everything else that changes from step to step (the learning rate) is in tensors.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cdcd.networks.capture import capture, tensors_of

T = TypeVar("T")

WARMUP = 3
"""Steps before the capture: they compile, and make the optimiser's state."""

Parts = list[tuple[Tensor, Any]]
"""The parts of a batch, each with its random inputs: a dataclass of tensors, or None."""
Results = tuple[Tensor, Tensor, Tensor | None]
"""The mean loss, and the losses and noise levels of all sequences."""

Record = Callable[[Callable[[], Results]], Callable[[], Results]]
"""Makes from a computation on fixed buffers, without running it, a function that repeats it."""

OPTIONS = {"triton.autotune_pointwise": False}
"""Options of torch's compiler: element-wise kernels are compiled once, not in several versions of which
the fastest is taken. That shortened the start on an H200 and cost nothing in the steps."""


def is_compiled(mode: str, device: torch.device) -> bool:
    """Returns whether the loss is compiled; `auto` does so on a GPU."""
    return mode in ("on", "graphs") or (mode == "auto" and device.type == "cuda")


def is_graphed(mode: str, device: torch.device) -> bool:
    """Returns whether whole steps are captured as CUDA graphs; `auto` does so on a GPU."""
    return device.type == "cuda" and mode in ("auto", "graphs")


def compiled(function: Callable[..., T], mode: str, device: torch.device) -> Callable[..., T]:
    """Returns a function, compiled where the configuration says so."""
    if not is_compiled(mode, device):
        return function
    return torch.compile(function, dynamic=False, options={**OPTIONS})


def compile_blocks(blocks: nn.Module, mode: str, device: torch.device) -> None:
    """Compiles each block by itself: gathering its weights before and after cannot be compiled."""
    for block in blocks.children():
        block.forward = compiled(block.forward, mode, device)


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
            self.buffers = tensors_of(parts)
            self.replay = self.record(lambda: self.update(parts))
        for buffer, tensor in zip(self.buffers, tensors_of(parts), strict=True):
            if buffer is not tensor:
                buffer.copy_(tensor)
        # The next replay overwrites what this one returns.
        mean, losses, t = self.replay()
        return mean.clone(), losses.clone(), None if t is None else t.clone()
