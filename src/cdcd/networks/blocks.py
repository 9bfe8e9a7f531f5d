"""Parts of the Transformer (§4, §6.1): RoPE attention, conditional LayerNorm, timestep embedding.

The diffusion network and the autoregressive baseline are built from the same blocks. In the baseline
they look back only (`causal`) and have no timestep; a cache lets it read a sequence piece by piece.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.diffusion.selection import Selection
from cdcd.networks import cpu_attention

try:
    from cdcd.networks.triton_attention import mix_heads
except ImportError:  # Triton comes with PyTorch for GPUs.
    mix_heads = None

LONGEST_TILE = 128
"""Longest sequence whose attention is computed in one tile."""


class Dropout(nn.Dropout):
    """Dropout; on a CPU, where drawing costs most, four places share one draw of 64 bits.

    The share that is dropped is rounded to 16 bits, and what is kept is scaled by the rounded share.
    """

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        dropped = round(self.p * 2**16)
        is_fast = input.is_cpu and not torch.compiler.is_compiling()
        if not (self.training and is_fast and 0 < dropped < 2**16):
            return super().forward(input)
        bits = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        drawn = bits.view(torch.int16)[: input.numel()].view(input.shape)
        is_kept = drawn >= dropped - 2**15
        return input * (is_kept.to(input.dtype) * (2**16 / (2**16 - dropped)))


class TimeEmbedding(nn.Module):
    """Random Fourier features of the standardised ln t, then an MLP of two layers (§6.1).

    NOTE(paper): the paper does not say what is projected. ln t, brought to mean 0 and deviation 1
    over a log-uniform t, keeps the features smooth; raw t up to 300 would wrap around many times.
    """

    frequencies: Tensor

    def __init__(self, units: int, t_min: float, t_max: float) -> None:
        super().__init__()
        low, high = math.log(t_min), math.log(t_max)
        self.centre, self.spread = (low + high) / 2, (high - low) / math.sqrt(12)
        self.register_buffer("frequencies", torch.randn(units // 2))
        self.mlp = nn.Sequential(
            nn.Linear(2 * (units // 2), units), nn.GELU(), nn.Linear(units, units), nn.GELU()
        )

    def forward(self, t: Float[Tensor, " batch"]) -> Float[Tensor, "batch units"]:
        angles = ((t.log() - self.centre) / self.spread)[:, None] * self.frequencies * math.pi
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))


class ConditionalLayerNorm(nn.Module):
    """LayerNorm followed by a shift and a scale that depend on the timestep (§4.2)."""

    def __init__(self, width: int, time_units: int) -> None:
        super().__init__()
        self.width = width
        self.modulation = nn.Linear(time_units, 2 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        h: Float[Tensor, "*positions width"],
        time: Float[Tensor, "batch units"],
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions width"]:
        """Normalise `h` of all positions, or of the selected ones."""
        modulation = self.modulation(time)
        modulation = modulation[:, None] if selection is None else selection.take_rows(modulation)
        shift, scale = modulation.chunk(2, dim=-1)
        return torch.addcmul(shift, F.layer_norm(h, (self.width,)), 1 + scale)


class LayerNorm(nn.LayerNorm):
    """LayerNorm with a learnt shift and scale, in the place of a conditional one where there is no time."""

    def forward(
        self,
        input: Float[Tensor, "*positions width"],
        time: None = None,
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions width"]:
        return super().forward(input)


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
        """Rotate `h`, whose positions are 0, 1, 2, … unless they are given."""
        where = slice(h.shape[2]) if positions is None else positions
        cos, sin = self.cos[where].to(h.dtype), self.sin[where].to(h.dtype)
        first, second = h.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys dim"],
    *,
    causal: bool = False,
    is_seen: Bool[Tensor, "... #queries keys"] | None = None,
) -> Float[Tensor, "batch heads queries dim"]:
    """Attention to every key, to those not after the query (`causal`), or to those that are seen."""
    if _wants_products(q, k):
        if causal:
            is_seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return _attend_by_products(q, k, v, is_seen)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen, is_causal=causal)


def _wants_products(q: Tensor, k: Tensor) -> bool:
    return (
        q.is_cpu
        and q.dtype == torch.bfloat16
        and k.shape[2] <= LONGEST_TILE
        and not torch.compiler.is_compiling()
    )


def _attend_by_products(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys dim"],
    is_seen: Bool[Tensor, "... #queries keys"] | None,
) -> Float[Tensor, "batch heads queries dim"]:
    """The same as two matrix products: CPUs are faster so in bfloat16 for few keys, in gradients by far."""
    weights = (q.shape[-1] ** -0.5 * q) @ k.mT
    if is_seen is not None:
        weights = weights.masked_fill(~is_seen, -torch.inf)
    return torch.softmax(weights, dim=-1).to(v.dtype) @ v


@dataclass(frozen=True)
class KeyValueCache:
    """One block's keys and values of what has been read, in room for the whole sequence.

    Its tensors are written in place and never change their shapes, so that a step of decoding can be
    compiled or captured.
    """

    keys: Float[Tensor, "batch heads room dim"]
    values: Float[Tensor, "batch heads room dim"]

    def write(
        self,
        k: Float[Tensor, "batch heads seq dim"],
        v: Float[Tensor, "batch heads seq dim"],
        positions: Int[Tensor, " seq"],
    ) -> None:
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Give each row what another one has read: a beam search goes on with some of its rows."""
        self.keys.copy_(self.keys[rows])
        self.values.copy_(self.values[rows])

    def is_seen(self, positions: Int[Tensor, " seq"]) -> Bool[Tensor, "seq room"]:
        """What queries at these positions may see: themselves and what is before them."""
        room = torch.arange(self.keys.shape[2], device=positions.device)
        return room <= positions[:, None]


def _fits_one_tile(
    projected: Float[Tensor, "batch seq three_widths"], rotary: RotaryEmbedding
) -> bool:
    half = rotary.cos.shape[1]
    return (
        projected.is_cuda
        and projected.dtype in (torch.bfloat16, torch.float16)
        and projected.shape[1] <= LONGEST_TILE
        and half in (16, 32, 64)
    )


def _fits_cpu(projected: Float[Tensor, "batch seq three_widths"]) -> bool:
    return (
        projected.is_cpu
        and projected.dtype in (torch.float32, torch.float64)
        and projected.shape[1] <= LONGEST_TILE
        # A compiler does better with operations that it knows.
        and not torch.compiler.is_compiling()
    )


def _mix_at_once(
    projected: Float[Tensor, "batch seq three_widths"], rotary: RotaryEmbedding
) -> Float[Tensor, "batch seq width"] | None:
    """Attention of short sequences in one step, where there is one for this device and precision."""
    length = projected.shape[1]
    cos, sin = rotary.cos[:length], rotary.sin[:length]
    if mix_heads is not None and _fits_one_tile(projected, rotary):
        return mix_heads(projected, cos, sin)
    return cpu_attention.mix_heads(projected, cos, sin) if _fits_cpu(projected) else None


class Attention(nn.Module):
    """Multi-head self-attention: every position sees every other, or, causal, those before it."""

    def __init__(self, width: int, num_heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        rotary: RotaryEmbedding | None = None,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
        selection: Selection | None = None,
        is_real: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "*positions width"]:
        """Attend within `h`, to what is real; with a cache, `h` is read at `positions`, after what it holds."""
        projected = self.qkv(h)
        mixed = None
        if rotary is not None and is_real is None and not self.causal:
            mixed = _mix_at_once(projected, rotary)
        if mixed is None:
            mixed = self._mix(projected, rotary, positions, cache, is_real)
        return self.out(mixed if selection is None else selection.take(mixed))

    def _mix(
        self,
        projected: Float[Tensor, "batch seq three_widths"],
        rotary: RotaryEmbedding | None,
        positions: Int[Tensor, " seq"] | None,
        cache: KeyValueCache | None,
        is_real: Bool[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, "batch seq width"]:
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotary(q, positions), rotary(k, positions)
        if cache is None:
            is_seen = None if is_real is None else is_real[:, None, None]
            mixed = attend(q, k, v, causal=self.causal, is_seen=is_seen)
        else:
            assert self.causal
            assert positions is not None
            cache.write(k, v, positions)
            mixed = attend(q, cache.keys, cache.values, is_seen=cache.is_seen(positions))
        return mixed.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Pre-LN Transformer block: attention, then an MLP with GELU, each behind a LayerNorm.

    The LayerNorms are conditional, unless `time_units` is None: then the block takes no time.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_ratio: int,
        time_units: int | None,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(width, time_units)
        self.attention = Attention(width, num_heads, causal=causal)
        self.mlp_norm = make_norm(width, time_units)
        self.mlp_in = nn.Linear(width, mlp_ratio * width)
        self.mlp_out = nn.Linear(mlp_ratio * width, width)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        time: Float[Tensor, "batch units"] | None,
        rotary: RotaryEmbedding,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions width"]:
        """The new residual stream, at all positions or at the selected ones."""
        mixed = self.attention(self.attention_norm(h, time), rotary, positions, cache, selection)
        h = mixed + (h if selection is None else selection.take(h))
        return h + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(h, time, selection))))


def make_norm(width: int, time_units: int | None) -> ConditionalLayerNorm | LayerNorm:
    """A LayerNorm, conditional where there is a timestep."""
    return LayerNorm(width) if time_units is None else ConditionalLayerNorm(width, time_units)


@torch.no_grad()
def initialise_blocks(blocks: Iterable[nn.Module]) -> None:
    """Normal with deviation 1/sqrt(inputs), residual branches scaled down with depth."""
    blocks = list(blocks)
    depth = (2 * len(blocks)) ** -0.5
    for block in blocks:
        assert isinstance(block, Block)
        for layer, gain in (
            (block.attention.qkv, 1.0),
            (block.attention.out, depth),
            (block.mlp_in, 1.0),
            (block.mlp_out, depth),
        ):
            nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)
