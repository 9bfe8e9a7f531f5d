"""Parts of the Transformer (§4, §6.1): RoPE attention, conditional LayerNorm, timestep embedding."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


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
        self, h: Float[Tensor, "batch seq width"], time: Float[Tensor, "batch units"]
    ) -> Float[Tensor, "batch seq width"]:
        shift, scale = self.modulation(time)[:, None].chunk(2, dim=-1)
        return torch.addcmul(shift, F.layer_norm(h, (self.width,)), 1 + scale)


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
        self, h: Float[Tensor, "batch heads seq dim"]
    ) -> Float[Tensor, "batch heads seq dim"]:
        cos, sin = self.cos[: h.shape[2]].to(h.dtype), self.sin[: h.shape[2]].to(h.dtype)
        first, second = h.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def attend(
    q: Float[Tensor, "batch heads seq dim"],
    k: Float[Tensor, "batch heads seq dim"],
    v: Float[Tensor, "batch heads seq dim"],
) -> Float[Tensor, "batch heads seq dim"]:
    """Attention without a mask; short sequences on a CPU are faster as plain matrix products."""
    if q.device.type == "cpu" and q.shape[2] <= 128:
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
        return torch.softmax(scores, dim=-1) @ v
    return F.scaled_dot_product_attention(q, k, v)


class Attention(nn.Module):
    """Multi-head self-attention without a mask: every position sees every other."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, h: Float[Tensor, "batch seq width"], rotary: RotaryEmbedding
    ) -> Float[Tensor, "batch seq width"]:
        q, k, v = self.qkv(h).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(attend(rotary(q), rotary(k), v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-LN Transformer block: attention, then an MLP with GELU, each behind a conditional LayerNorm."""

    def __init__(self, width: int, num_heads: int, mlp_ratio: int, time_units: int) -> None:
        super().__init__()
        self.attention_norm = ConditionalLayerNorm(width, time_units)
        self.attention = Attention(width, num_heads)
        self.mlp_norm = ConditionalLayerNorm(width, time_units)
        self.mlp_in = nn.Linear(width, mlp_ratio * width)
        self.mlp_out = nn.Linear(mlp_ratio * width, width)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        time: Float[Tensor, "batch units"],
        rotary: RotaryEmbedding,
    ) -> Float[Tensor, "batch seq width"]:
        h = h + self.attention(self.attention_norm(h, time), rotary)
        return h + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(h, time))))
