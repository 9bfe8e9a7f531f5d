"""Logits: the largest tensor of a training step, so they are few, and held in float32 in parts only.

Given tokens need no prediction: the head and the loss work on the noisy positions alone. Their number
is bounded, not known, so shapes stay fixed, and given positions fill up what the noisy ones leave.

Logits in bfloat16 stay as they are. What is computed from them is computed in float32, for a part of the
positions at a time.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

PART = 2**13
"""Positions that are held in float32 at a time."""


def noisy_positions(is_noisy: Bool[Tensor, "batch seq"], count: int) -> Int[Tensor, " predicted"]:
    """Returns `count` positions of the flattened batch: the noisy ones in order, then given ones."""
    return torch.argsort((~is_noisy).flatten().to(torch.uint8), stable=True)[:count]


def take(
    values: Shaped[Tensor, "batch seq *rest"], positions: Int[Tensor, " predicted"] | None
) -> Shaped[Tensor, "predicted *rest"]:
    """Returns the values at some positions, of which none is taken twice; None: at all."""
    flat = values.flatten(0, 1)
    return flat if positions is None else _Take.apply(flat, positions)


def put(
    values: Shaped[Tensor, "predicted *rest"],
    positions: Int[Tensor, " predicted"] | None,
    shape: torch.Size,
) -> Shaped[Tensor, "batch seq *rest"]:
    """Returns a batch of a shape (batch, seq) with the values at their positions, and zeros elsewhere."""
    if positions is not None:
        zeros = values.new_zeros(shape.numel(), *values.shape[1:])
        values = zeros.index_copy(0, positions, values)
    return values.unflatten(0, shape)


class _Take(torch.autograd.Function):
    """Takes rows; their gradients are copied back, where torch would add them up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.num_values = len(values)
        return values.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        zeros = grads[0].new_zeros(ctx.num_values, *grads[0].shape[1:])
        return zeros.index_copy(0, positions, grads[0]), None


def in_parts(
    function: Callable[..., Tensor], *tensors: Tensor, even_compiled: bool = False
) -> Shaped[Tensor, "positions *rest"]:
    """Returns a function's values at all positions, computed for a part of them at a time.

    A compiled function takes all at once: its kernels hold no position in float32. `even_compiled` is
    for functions that need much memory all the same.
    """
    if torch.compiler.is_compiling() and not even_compiled:
        return function(*tensors)
    parts = zip(*(tensor.split(PART) for tensor in tensors), strict=True)
    return torch.cat([function(*part) for part in parts])


def cross_entropies(
    logits: Float[Tensor, "*batch vocab"], targets: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Returns −ln p of each target, in float32 or better."""
    rows, labels = logits.flatten(0, -2), targets.flatten()
    if logits.dtype == torch.bfloat16:
        nll = _CrossEntropies.apply(rows, labels)
    else:
        nll = F.cross_entropy(rows, labels, reduction="none")
    return nll.view_as(targets)


class _CrossEntropies(torch.autograd.Function):
    """Cross-entropy of bfloat16 logits; their gradient, softmax − one-hot, is made in bfloat16 at once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        normalisers = in_parts(lambda part: part.float().logsumexp(-1), logits)
        ctx.save_for_backward(logits, targets, normalisers)
        return normalisers - logits.gather(-1, targets[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return in_parts(_gradient, *ctx.saved_tensors, grads[0]), None


def _gradient(logits: Tensor, targets: Tensor, normalisers: Tensor, grads: Tensor) -> Tensor:
    columns = torch.arange(logits.shape[1], device=logits.device)
    probs = (logits.float() - normalisers[:, None]).exp()
    return ((probs - (columns == targets[:, None]).to(probs)) * grads[:, None]).to(logits.dtype)
