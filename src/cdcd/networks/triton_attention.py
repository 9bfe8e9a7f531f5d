"""Attention of short sequences on a GPU: RoPE, scores, softmax and the weighted sum in one kernel.

Attention kernels are built for long sequences: they work through the keys tile by tile. Up to a
hundred positions or so, a head's queries, keys and values fit into one tile, and what costs is moving
them to and from memory. So one program takes one head of one sequence, reads the projections as the
linear layer left them, and writes what the next layer reads. The backward pass computes the attention
weights again, which is cheaper than reading them.
"""

# Kernels are compiled, not run as Python: the types of triton do not describe their calls.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
"""Warps of a program. Trying several numbers at the start would take longer than they save."""


@triton.jit
def _load_halves(pointers, step, is_inside):
    """Loads a tile of rows, as the two halves of each that RoPE rotates into each other."""
    first = tl.load(pointers, mask=is_inside, other=0.0)
    second = tl.load(pointers + step, mask=is_inside, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _rotate(first, second, cos, sin):
    return first * cos - second * sin, first * sin + second * cos


@triton.jit
def _weights(q1, q2, k1, k2, is_key, scale):
    """Returns softmax(q·k), row by row."""
    scores = (tl.dot(q1, tl.trans(k1)) + tl.dot(q2, tl.trans(k2))) * scale
    scores = tl.where(is_key[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _kernel(
    projected, cos_table, sin_table, mixed, grad_projected, length, scale,
    num_heads: tl.constexpr, half_dim: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Writes `mixed`; or, where `grad_projected` is given, reads in `mixed` its gradient and writes that."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, half, dim = tl.arange(0, block), tl.arange(0, half_dim), tl.arange(0, 2 * half_dim)
    is_row = rows < length
    is_inside = is_row[:, None]
    width = num_heads * 2 * half_dim
    row_starts = (sequence * length + rows) * 3 * width + head * 2 * half_dim
    half_offsets = row_starts[:, None] + half[None, :]
    whole_offsets = row_starts[:, None] + dim[None, :]
    table_offsets = rows[:, None] * half_dim + half[None, :]
    cos = tl.load(cos_table + table_offsets, mask=is_inside, other=0.0)
    sin = tl.load(sin_table + table_offsets, mask=is_inside, other=0.0)
    dtype = projected.dtype.element_ty
    q1, q2 = _load_halves(projected + half_offsets, half_dim, is_inside)
    q1, q2 = _rotate(q1, q2, cos, sin)
    k1, k2 = _load_halves(projected + half_offsets + width, half_dim, is_inside)
    k1, k2 = _rotate(k1, k2, cos, sin)
    q1, q2, k1, k2 = q1.to(dtype), q2.to(dtype), k1.to(dtype), k2.to(dtype)
    weights = _weights(q1, q2, k1, k2, is_row, scale)
    v = tl.load(projected + whole_offsets + 2 * width, mask=is_inside, other=0.0)
    mixed_starts = (sequence * length + rows) * width + head * 2 * half_dim
    mixed_pointers = mixed + mixed_starts[:, None] + dim[None, :]
    if grad_projected is None:
        values = tl.dot(weights.to(dtype), v)
        tl.store(mixed_pointers, values.to(dtype), mask=is_inside)
    else:
        grad = tl.load(mixed_pointers, mask=is_inside, other=0.0)
        grad_v = tl.dot(tl.trans(weights.to(dtype)), grad)
        tl.store(grad_projected + whole_offsets + 2 * width, grad_v.to(dtype), mask=is_inside)
        grad_weights = tl.dot(grad, tl.trans(v))
        inner = tl.sum(weights * grad_weights, axis=1)
        grad_scores = (weights * (grad_weights - inner[:, None]) * scale).to(dtype)
        # A rotation's gradient is the rotation back.
        g1, g2 = _rotate(tl.dot(grad_scores, k1), tl.dot(grad_scores, k2), cos, -sin)
        q_pointers = grad_projected + half_offsets
        tl.store(q_pointers, g1.to(dtype), mask=is_inside)
        tl.store(q_pointers + half_dim, g2.to(dtype), mask=is_inside)
        back = tl.trans(grad_scores)
        g1, g2 = _rotate(tl.dot(back, q1), tl.dot(back, q2), cos, -sin)
        k_pointers = q_pointers + width
        tl.store(k_pointers, g1.to(dtype), mask=is_inside)
        tl.store(k_pointers + half_dim, g2.to(dtype), mask=is_inside)


def _launch(
    projected: Tensor, cos: Tensor, sin: Tensor, mixed: Tensor, grad_projected: Tensor | None = None
) -> None:
    batch, length, three_widths = projected.shape
    half = cos.shape[1]
    heads = three_widths // (6 * half)
    block = max(16, triton.next_power_of_2(length))
    scale = (2 * half) ** -0.5
    _kernel[(batch, heads)](
        projected, cos.contiguous(), sin.contiguous(), mixed, grad_projected, length, scale,
        num_heads=heads, half_dim=half, block=block, num_warps=WARPS,
    )  # fmt: skip


@torch.library.custom_op("cdcd::mix_heads", mutates_args=())
def mix_heads(projected: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns mixed values (batch, seq, width) from the projections (batch, seq, 3 × width).

    `cos` and `sin` are float32 tables (seq, half a head's units); the number of heads follows.
    """
    projected = projected.contiguous()
    batch, length, three_widths = projected.shape
    mixed = projected.new_empty(batch, length, three_widths // 3)
    _launch(projected, cos, sin, mixed)
    return mixed


@mix_heads.register_fake
def _(projected: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return projected.new_empty(*projected.shape[:2], projected.shape[2] // 3)


@torch.library.custom_op("cdcd::mix_heads_backward", mutates_args=())
def mix_heads_backward(projected: Tensor, cos: Tensor, sin: Tensor, grad: Tensor) -> Tensor:
    """Returns the gradient of `mix_heads` with respect to the projections."""
    projected = projected.contiguous()
    grad_projected = torch.empty_like(projected)
    _launch(projected, cos, sin, grad.contiguous(), grad_projected)
    return grad_projected


@mix_heads_backward.register_fake
def _(projected: Tensor, cos: Tensor, sin: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(projected)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return mix_heads_backward(*ctx.saved_tensors, grad), None, None


mix_heads.register_autograd(_backward, setup_context=_save)
