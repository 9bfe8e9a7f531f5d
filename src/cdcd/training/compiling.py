"""Compiling the loss, or each block of a sharded model, by `torch.compile`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

OPTIONS = {"triton.autotune_pointwise": False}
"""Options of torch's compiler: element-wise kernels are compiled once, not in several versions of which
the fastest is taken. That shortened the start on an H200 and cost nothing in the steps."""


def is_compiled(mode: str, device: torch.device) -> bool:
    """Returns whether the loss is compiled; `auto` does so on a GPU."""
    return mode in ("on", "graphs") or (mode == "auto" and device.type == "cuda")


def is_graphed(mode: str, device: torch.device) -> bool:
    """Returns whether whole steps are captured as CUDA graphs; `auto` does so on a GPU."""
    return device.type == "cuda" and mode in ("auto", "graphs")


def compiled(
    function: Callable[..., tuple[Tensor, Tensor]], mode: str, device: torch.device
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns a loss function, compiled where the configuration says so."""
    if not is_compiled(mode, device):
        return function
    return torch.compile(function, dynamic=False, options={**OPTIONS})


def compile_blocks(blocks: nn.Module, mode: str, device: torch.device) -> None:
    """Compiles each block by itself: gathering its weights before and after cannot be compiled."""
    if is_compiled(mode, device):
        for block in blocks.children():
            block.forward = torch.compile(block.forward, dynamic=False, options={**OPTIONS})
