"""Attention of short sequences on a CPU: from projections to mixed values in one differentiable step.

There the arithmetic is cheap, and what costs is to copy between many small operations. Here queries,
keys and values are laid out once for all matrix products. The two halves of a head that RoPE rotates
are put side by side, which leaves q·k as it is, and so are rotated in place, as complex numbers.
"""

from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def mix_heads(
    projected: Float[Tensor, "batch seq three_widths"],
    cos: Float[Tensor, "seq half_dim"],
    sin: Float[Tensor, "seq half_dim"],
) -> Float[Tensor, "batch seq width"]:
    """Attention of every position to every other, from projected queries, keys and values."""
    rotation = torch.complex(cos.to(projected.dtype), sin.to(projected.dtype))
    dim = 2 * rotation.shape[-1]
    # Queries are scaled while they are rotated.
    rotations = torch.stack([dim**-0.5 * rotation, rotation])[:, None, None]
    num_heads = projected.shape[-1] // (3 * dim)
    return _MixHeads.apply(projected, rotations, num_heads)  # pyright: ignore[reportReturnType]


class _MixHeads(torch.autograd.Function):
    """softmax(q·k)·v with rotated q and k, and its gradient."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, rotations: Tensor, num_heads: int) -> Tensor:
        heads = _split(projected, num_heads)
        _pairs(heads).mul_(rotations)
        q, k, v = heads.flatten(1, 2)
        weights = torch.bmm(q, k.mT)
        torch.softmax(weights, dim=-1, out=weights)
        ctx.save_for_backward(heads, weights, rotations)
        mixed = torch.bmm(weights, v)
        return mixed.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        heads, weights, rotations = ctx.saved_tensors
        q, k, v = heads.flatten(1, 2)
        grad = grad.unflatten(-1, (heads.shape[2], -1)).transpose(1, 2).flatten(0, 1)
        grad_scores = torch.bmm(grad, v.mT)
        torch.ops.aten._softmax_backward_data.out(
            grad_scores, weights, -1, weights.dtype, grad_input=grad_scores
        )
        grad_heads = torch.empty_like(heads)
        grad_q, grad_k, grad_v = grad_heads.flatten(1, 2)
        torch.bmm(grad_scores, k, out=grad_q)
        torch.bmm(grad_scores.mT, q, out=grad_k)
        torch.bmm(weights.mT, grad, out=grad_v)
        _pairs(grad_heads).mul_(rotations.conj())
        return _join(grad_heads), None, None


def _split(
    projected: Float[Tensor, "batch seq three_widths"], num_heads: int
) -> Float[Tensor, "3 batch heads seq dim"]:
    """Queries, keys and values one after the other, the halves of the first two side by side."""
    parts = projected.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    heads = parts.new_empty(parts.shape)
    torch.complex(*parts[:2].chunk(2, dim=-1), out=_pairs(heads))
    heads[2] = parts[2]
    return heads


def _join(heads: Float[Tensor, "3 batch heads seq dim"]) -> Float[Tensor, "batch seq three_widths"]:
    """The inverse of `_split`."""
    parts, batch, num_heads, length, dim = heads.shape
    projected = heads.new_empty(batch, length, parts, num_heads, dim)
    q_and_k, pairs = projected[:, :, :2].permute(2, 0, 3, 1, 4), _pairs(heads)
    first, second = q_and_k.chunk(2, dim=-1)
    first.copy_(pairs.real)
    second.copy_(pairs.imag)
    projected[:, :, 2] = heads[2].transpose(1, 2)
    return projected.flatten(2)


def _pairs(
    heads: Float[Tensor, "3 batch heads seq dim"],
) -> Complex[Tensor, "2 batch heads seq half_dim"]:
    """The queries and keys among the heads as complex numbers."""
    return torch.view_as_complex(heads[:2].unflatten(-1, (-1, 2)))
