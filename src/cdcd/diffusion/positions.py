"""The positions of a batch that are predicted: the noisy ones, taken out before the network's head.

Given tokens need no prediction, so the head and the loss work on the noisy positions alone. Their number
is bounded, not known: shapes stay fixed, and given positions fill up what the noisy ones leave.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def noisy_positions(is_noisy: Bool[Tensor, "batch seq"], count: int) -> Int[Tensor, " predicted"]:
    """Returns `count` positions of the flattened batch: the noisy ones in order, then given ones."""
    return torch.argsort((~is_noisy).flatten().to(torch.uint8), stable=True)[:count]


def take(
    values: Shaped[Tensor, "batch seq *rest"], positions: Int[Tensor, " predicted"] | None
) -> Shaped[Tensor, "predicted *rest"]:
    """Returns the values at some positions; None: at all."""
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
    """Takes rows of which none is taken twice: their gradients are copied back, where torch would add."""

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
