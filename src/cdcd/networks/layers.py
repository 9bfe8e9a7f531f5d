"""Layers of the networks (§4, §6.1): timestep embedding, conditional LayerNorm, block, head.

The diffusion network and the autoregressive baseline are built from the same blocks. In the baseline
they look back only (`causal`) and have no timestep.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.diffusion.logits import take
from cdcd.networks.attention import Attention, KeyValueCache, RotaryEmbedding
from cdcd.networks.precision import working_dtype


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


class LayerNorm(nn.LayerNorm):
    """LayerNorm with a learnt shift and scale, for blocks without a timestep."""

    def forward(
        self, input: Float[Tensor, "batch seq width"], time: None = None
    ) -> Float[Tensor, "batch seq width"]:
        return super().forward(input)


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
        dropout: float = 0.0,
        zero_gates: bool = False,
        query_key_norm: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(width, time_units)
        self.attention = Attention(width, num_heads, causal=causal, query_key_norm=query_key_norm)
        self.mlp_norm = make_norm(width, time_units)
        self.mlp_in = nn.Linear(width, mlp_ratio * width)
        self.mlp_out = nn.Linear(mlp_ratio * width, width)
        self.dropout = nn.Dropout(dropout)
        self.attention_gate = ZeroGate(width, time_units) if zero_gates else None
        self.mlp_gate = ZeroGate(width, time_units) if zero_gates else None

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        time: Float[Tensor, "batch units"] | None,
        rotary: RotaryEmbedding,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """Returns the new residual stream."""
        attended = self.attention(self.attention_norm(h, time), rotary, positions, cache)
        h = h + self._branch(attended, self.attention_gate, time)
        return h + self._branch(self._mlp(self.mlp_norm(h, time)), self.mlp_gate, time)

    def _mlp(self, h: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        return self.mlp_out(F.gelu(self.mlp_in(h)))

    def _branch(
        self, h: Float[Tensor, "batch seq width"], gate: "ZeroGate | None", time: Tensor | None
    ) -> Float[Tensor, "batch seq width"]:
        """Returns what a residual branch adds: its output, partly dropped, behind its gate."""
        h = self.dropout(h)
        return h if gate is None else gate(h, time)


class ZeroGate(nn.Module):
    """Factor of a residual branch, zero in a new network, whose blocks then change nothing.

    With a timestep it depends on that (adaLN-Zero of Peebles & Xie, 2023); without one it is learnt.
    """

    def __init__(self, width: int, time_units: int | None) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(width))
        self.modulation = None
        if time_units is not None:
            self.modulation = nn.Linear(time_units, width, bias=False)
            nn.init.zeros_(self.modulation.weight)

    def forward(
        self, h: Float[Tensor, "batch seq width"], time: Float[Tensor, "batch units"] | None
    ) -> Float[Tensor, "batch seq width"]:
        factor = self.factor
        if self.modulation is not None:
            factor = factor + self.modulation(time)[:, None]
        return h * factor.to(h.dtype)


def make_norm(width: int, time_units: int | None) -> ConditionalLayerNorm | LayerNorm:
    """Returns a LayerNorm, conditional where there is a timestep."""
    return LayerNorm(width) if time_units is None else ConditionalLayerNorm(width, time_units)


@torch.no_grad()
def initialise_blocks(blocks: nn.ModuleList, *, num_branches: int) -> None:
    """Draws weights of deviation 1/sqrt(inputs); the outputs of residual branches are scaled by their number."""
    depth = (num_branches * len(blocks)) ** -0.5
    for name, layer in blocks.named_modules():
        if isinstance(layer, nn.Linear) and not name.endswith("modulation"):
            gain = depth if name.endswith("out") else 1.0
            nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)


class Head(nn.Linear):
    """The layer that gives the logits, of all positions or of some of the flattened batch."""

    def forward(
        self,
        input: Float[Tensor, "batch seq width"],
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        dtype = working_dtype(self.weight)
        h = input.to(dtype)
        if positions is not None:
            h = take(h, positions)
        return _Linear.apply(h, self.weight.to(dtype), self.bias.to(dtype))  # pyright: ignore[reportReturnType]


class _Linear(torch.autograd.Function):
    """A linear layer whose bias learns by a matrix product.

    A compiler would rather add up the gradients of all logits while it computes them, and for a large
    vocabulary that is ten times slower than writing and multiplying them.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return F.linear(h, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        ones = grad.new_ones(1, len(grad))
        by_bias = (ones @ grad)[0] if grad.dtype == torch.bfloat16 else grad.sum(0)
        return grads[0] @ weight, grad.T @ h.flatten(0, -2), by_bias
