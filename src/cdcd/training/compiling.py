"""What of a run is compiled, and how compiling starts early and is not done twice.

A loss is traced by one Python thread, and the kernels for a GPU that come out of it are compiled by
other processes meanwhile. Those need seconds to start: kernels that are there before them are
compiled one after the other. What was compiled is kept on disk, for the next run of the same shape.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def is_compiled(mode: str, device: torch.device) -> bool:
    """Whether the loss is compiled; `auto` does so on a GPU."""
    return mode in ("on", "graphs") or (mode == "auto" and device.type == "cuda")


def is_graphed(mode: str, device: torch.device) -> bool:
    """Whether whole steps are captured as CUDA graphs; `auto` does so on a GPU."""
    return device.type == "cuda" and mode in ("auto", "graphs")


def start_workers(mode: str, device: torch.device) -> None:
    """Start the processes that compile kernels, while data and weights are still to be read."""
    if is_compiled(mode, device) and device.type == "cuda":
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def compiled(
    function: Callable[..., tuple[Tensor, Tensor]], mode: str, device: torch.device
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A loss function compiled as the configuration says."""
    if not is_compiled(mode, device):
        return function
    keep_traced()
    compile_untuned()
    return torch.compile(function, dynamic=False)


def compile_blocks(blocks: nn.Module, mode: str, device: torch.device) -> None:
    """Compile each block by itself: gathering its weights before and after cannot be compiled."""
    if is_compiled(mode, device):
        for block in blocks.children():
            block.forward = torch.compile(block.forward, dynamic=False)


def keep_traced() -> None:
    """Let torch keep graphs with gradients of our own (`autograd.Function`) on disk.

    By default it traces and differentiates them anew in every run. Their key is the traced graph,
    in which both passes of such a function are written out.
    """
    from torch._functorch import config

    caching: Any = config
    caching.autograd_cache_allow_custom_autograd_functions = True


def compile_untuned() -> None:
    """Compile each element-wise kernel once, not in several ways of which the fastest is taken.

    On an H200 that saves a quarter of the time to a run's first step and costs nothing in the steps.
    """
    from torch._inductor import config

    kernels: Any = config.triton
    kernels.autotune_pointwise = False
