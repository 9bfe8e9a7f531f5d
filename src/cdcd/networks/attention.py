"""Multi-head self-attention with rotary positions, softmax(q·kᵀ / sqrt(dim))·v, and its kernels.

Short sequences on a GPU take one Triton kernel from the projections to the mixed values, all others
PyTorch's `scaled_dot_product_attention`. With a cache, a causal model reads a sequence piece by piece.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.networks.precision import working_dtype

mix_heads = None
if torch.backends.cuda.is_built():  # Elsewhere Triton has no use, and importing it takes long.
    with suppress(ImportError):
        from cdcd.networks.triton_attention import mix_heads

LONGEST_TILE = 128
"""Longest sequence that the Triton kernel takes; it computes a head in one tile."""


class RotaryEmbedding(nn.Module):
    """Rotary positions (RoPE): queries and keys are rotated by angles proportional to position."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, length: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequencies = base ** -(torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(length)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self, h: Float[Tensor, "batch heads seq dim"], positions: Int[Tensor, " seq"] | None = None
    ) -> Float[Tensor, "batch heads seq dim"]:
        """Rotates `h`, whose positions are 0, 1, 2, … unless they are given."""
        index = slice(h.shape[2]) if positions is None else positions
        cos, sin = self.cos[index].to(h.dtype), self.sin[index].to(h.dtype)
        first, second = h.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of one block at the positions read so far, with capacity for a whole sequence.

    Its tensors are written in place and never change their shapes, so that a step of decoding can be
    compiled or captured.
    """

    keys: Float[Tensor, "batch heads capacity dim"]
    values: Float[Tensor, "batch heads capacity dim"]

    def write(
        self,
        k: Float[Tensor, "batch heads seq dim"],
        v: Float[Tensor, "batch heads seq dim"],
        positions: Int[Tensor, " seq"],
    ) -> None:
        """Stores keys and values at their positions."""
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Copies to each row what another row has read: a beam search continues some of its rows."""
        self.keys.copy_(self.keys[rows])
        self.values.copy_(self.values[rows])

    def is_visible(self, positions: Int[Tensor, " seq"]) -> Bool[Tensor, "seq capacity"]:
        """Returns the mask of a causal model: queries see their own position and those before it."""
        keys = torch.arange(self.keys.shape[2], device=positions.device)
        return keys <= positions[:, None]


class Attention(nn.Module):
    """Multi-head self-attention: every position sees every other, or, causal, those before it."""

    def __init__(
        self, width: int, num_heads: int, *, causal: bool = False, query_key_norm: bool = False
    ) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        # Factors of normalised queries and keys, shared by the heads (Henry et al., 2020).
        ones = torch.ones(width // num_heads)
        self.query_gain = nn.Parameter(ones) if query_key_norm else None
        self.key_gain = nn.Parameter(ones.clone()) if query_key_norm else None

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        rotary: RotaryEmbedding | None = None,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
        is_visible: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """Attends within `h`, hidden positions apart; with a cache also to the inputs before `positions`."""
        projected = self._normalised(self.qkv(h))
        if rotary is not None and is_visible is None and self._fits_one_tile(projected, rotary):
            assert mix_heads is not None
            length = h.shape[1]
            mixed = mix_heads(projected, rotary.cos[:length], rotary.sin[:length])
        else:
            mixed = self._mix(projected, rotary, positions, cache, is_visible)
        return self.out(mixed)

    def _normalised(
        self, projected: Float[Tensor, "batch seq three_widths"]
    ) -> Float[Tensor, "batch seq three_widths"]:
        """Returns projections whose queries and keys have a root mean square of 1, before their gains.

        A rotation changes no norm: rotary positions can follow.
        """
        if self.query_gain is None or self.key_gain is None:
            return projected
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        q = F.rms_norm(q, q.shape[-1:]) * self.query_gain
        k = F.rms_norm(k, k.shape[-1:]) * self.key_gain
        return torch.stack([q.to(v.dtype), k.to(v.dtype), v], dim=-3).flatten(-3)

    def _fits_one_tile(self, projected: Tensor, rotary: RotaryEmbedding) -> bool:
        return (
            mix_heads is not None
            and projected.is_cuda
            and projected.dtype in (torch.bfloat16, torch.float16)
            and projected.shape[1] <= LONGEST_TILE
            and rotary.cos.shape[1] in (16, 32, 64)
            and not self.causal
        )

    def _mix(
        self,
        projected: Float[Tensor, "batch seq three_widths"],
        rotary: RotaryEmbedding | None,
        positions: Int[Tensor, " seq"] | None,
        cache: KeyValueCache | None,
        is_visible: Bool[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, "batch seq width"]:
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotary(q, positions), rotary(k, positions)
        is_causal, mask = self.causal, None if is_visible is None else is_visible[:, None, None]
        if cache is not None:
            assert self.causal
            assert positions is not None
            cache.write(k, v, positions)
            k, v = cache.keys, cache.values
            is_causal, mask = False, cache.is_visible(positions)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return mixed.transpose(1, 2).flatten(2)


def new_caches(blocks: nn.Module, batch_size: int, capacity: int) -> list[KeyValueCache]:
    """Returns an empty cache for each self-attention among the modules, in the dtype of its keys."""
    caches = []
    for attention in blocks.modules():
        if isinstance(attention, Attention):
            weight, num_heads = attention.qkv.weight, attention.num_heads
            shape = (batch_size, num_heads, capacity, weight.shape[1] // num_heads)
            empty = weight.new_zeros(shape, dtype=working_dtype(weight))
            caches.append(KeyValueCache(empty, empty.clone()))
    return caches
