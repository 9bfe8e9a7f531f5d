"""The positions of a batch that are predicted: noisy ones, gathered before the last layers.

Given tokens need no prediction, so the network's last block, its head and the loss work on the noisy
positions alone. Their number is bounded, not known: shapes stay fixed, and where there is room for
more, given positions follow. No position is selected twice, so gradients flow back by a gather too.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Some positions of a batch, in order, the noisy ones first."""

    positions: Int[Tensor, " selected"]
    """Places in the flattened batch."""
    ranks: Int[Tensor, " all"]
    """The place of every position in the selection; those not selected come after it."""
    length: int
    """Positions of a sequence."""

    def take(self, values: Shaped[Tensor, "batch seq *rest"]) -> Shaped[Tensor, "selected *rest"]:
        """The values at the selected positions."""
        return _Take.apply(values.flatten(0, 1), self.positions, self.ranks)

    def take_rows(self, values: Float[Tensor, "batch *rest"]) -> Float[Tensor, "selected *rest"]:
        """For each selected position, the value of its sequence."""
        return _TakeRows.apply(values, self.positions, self.ranks, self.length)

    def put(self, values: Shaped[Tensor, "selected *rest"]) -> Shaped[Tensor, "batch seq *rest"]:
        """The values at their positions, zero at those that are not selected."""
        spread = _Put.apply(values, self.positions, self.ranks)
        return spread.unflatten(0, (-1, self.length))


def select_noisy(is_noisy: Bool[Tensor, "batch seq"], most: int | None = None) -> Selection:
    """The noisy positions of a batch that has at most `most` of them; None: all may be noisy."""
    order = torch.argsort((~is_noisy).flatten().to(torch.uint8), stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device)
    return Selection(order[:most], ranks, is_noisy.shape[1])


def _spread(values: Tensor, ranks: Tensor) -> Tensor:
    is_selected = ranks < len(values)
    found = values.index_select(0, ranks.clamp(max=len(values) - 1))
    return torch.where(is_selected.view(-1, *[1] * (values.ndim - 1)), found, 0)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor, ranks: Tensor) -> Tensor:
        ctx.save_for_backward(ranks)
        return values.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _spread(grads[0], *ctx.saved_tensors), None, None


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor, ranks: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(ranks)
        ctx.length = length
        return values.index_select(0, positions // length)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        spread = _spread(grads[0], *ctx.saved_tensors)
        return spread.unflatten(0, (-1, ctx.length)).sum(1), None, None, None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor, ranks: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        return _spread(values, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (positions,) = ctx.saved_tensors
        return grads[0].index_select(0, positions), None, None
