"""The mask-conditional Transformer (§4.1): stacked noisy, given and predicted embeddings to logits."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.diffusion.embedding import Embedding, EmbeddingConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.attention import RotaryEmbedding
from cdcd.networks.layers import (
    Block,
    ConditionalLayerNorm,
    Head,
    TimeEmbedding,
    initialise_blocks,
)
from cdcd.networks.output_prior import OutputPrior
from cdcd.networks.precision import residual
from cdcd.settings import BelowOne, Bounds, Settings, Size, Steps


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Settings, section="network"):
    """Size of the Transformer."""

    num_blocks: Annotated[int, Bounds(1, 1_000)] = 8
    """Number of Transformer blocks."""
    width: Size = 1024
    """Units of the residual stream."""
    num_heads: Size = 16
    """Attention heads; each has width / num_heads units."""
    mlp_ratio: Annotated[int, Bounds(1, 1_000)] = 4
    """Hidden units of each block's MLP, in multiples of the width."""
    time_units: Size = 128
    """Units of the timestep embedding's MLP."""
    time_input: bool = True
    """Give the noise level to the network (off: App. B.2, a negative result)."""
    tied_head: bool = False
    """Autoregressive models only: the output layer shares the weights of the input embedding."""
    dropout: BelowOne = 0.0
    """Share of units that are dropped in training: of each block's two branches, and of the inputs."""
    zero_gates: bool = False
    """Multiply each residual branch by a gate that is zero at the start and depends on the noise level."""
    query_key_norm: bool = False
    """Normalise queries and keys before attention."""
    learnt_positions: bool = False
    """Add a learnt vector of its own to each position of the inputs, besides rotary positions."""
    output_prior: bool = False
    """Add the logarithm of the likelihood of x given each token, x·e/t², to the logits."""
    output_prior_warmup: Steps = 5_000
    """First steps, over which the output prior's weight rises linearly."""
    output_prior_clip: Annotated[float, Bounds(0, 1_000_000, without=(0,))] = 50.0
    """Largest |e|²/t² of the output prior: at lower noise levels it is that of the level with this value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"network.width ({self.width}) must be a multiple of 2 × network.num_heads "
                f"({self.num_heads}), for rotary positions"
            )


def make_blocks(
    network: NetworkConfig, time_units: int | None, *, causal: bool = False
) -> nn.ModuleList:
    """Returns the blocks of a network of text; without `time_units` they take no time."""
    return nn.ModuleList(
        Block(
            network.width,
            network.num_heads,
            network.mlp_ratio,
            time_units,
            causal=causal,
            dropout=network.dropout,
            zero_gates=network.zero_gates,
            query_key_norm=network.query_key_norm,
        )
        for _ in range(network.num_blocks)
    )


class DiffusionTextNetwork(nn.Module):
    """The denoising network with its embedding table: everything that gradient descent trains."""

    def __init__(
        self,
        network: NetworkConfig,
        embedding: EmbeddingConfig,
        process: ProcessConfig,
        *,
        vocab_size: int,
        length: int,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocab_size, embedding)
        self.time_input, width = network.time_input, network.width
        self.time = TimeEmbedding(network.time_units, process.t_min, process.t_max)
        self.rotary = RotaryEmbedding(width // network.num_heads, length)
        self.positions = (
            nn.Parameter(torch.zeros(length, width)) if network.learnt_positions else None
        )
        self.stack = nn.Linear(3 * embedding.dim + 1, width)
        self.dropout = nn.Dropout(network.dropout)
        self.blocks = make_blocks(network, network.time_units)
        self.norm = ConditionalLayerNorm(width, network.time_units)
        self.head = Head(width, vocab_size)
        self.prior = OutputPrior(network.output_prior_clip) if network.output_prior else None
        self._initialise(embedding.dim)
        # Several ranks wait for the gradient of every parameter that has one.
        self.time.requires_grad_(network.time_input)

    @torch.no_grad()
    def _initialise(self, dim: int) -> None:
        """Draws weights of deviation 1/sqrt(inputs), and scales residual branches down with depth."""
        initialise_blocks(self.blocks, num_branches=2)
        nn.init.normal_(self.stack.weight, std=dim**-0.5)
        # The network starts as if it had no self-conditioning.
        self.stack.weight[:, 2 * dim : 3 * dim] = 0.0
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        *,
        c: Float[Tensor, "batch seq embed"],
        x0_prev: Float[Tensor, "batch seq embed"],
        is_noisy: Bool[Tensor, "batch seq"],
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        stacked = torch.cat([x, c, x0_prev, is_noisy[..., None].to(x.dtype)], dim=-1)
        h = self.stack(stacked)
        if self.positions is not None:
            h = h + self.positions[: x.shape[1]]
        h, time = self.dropout(residual(h)), self.time(t)
        if not self.time_input:
            time = torch.ones_like(time)
        for block in self.blocks:
            h = block(h, time, self.rotary)
        logits = self.head(self.norm(h, time), positions)
        return (
            logits
            if self.prior is None
            else self.prior(logits, x, t, self.embedding.table(), positions)
        )
