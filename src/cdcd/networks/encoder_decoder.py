"""Parts of the encoder-decoder (§4.4): the original Transformer's, shared by both translation models.

    source tokens -> Encoder -> Memory -> decoder blocks: self-attention, attention to the source, MLP

The encoder reads a source once. What the decoder's blocks attend to, the keys and values of every
block, is made there and then (`Memory`), and serves every call of the decoder after it: both passes
of a training step, all steps of sampling, every token of decoding.

NOTE(paper): the paper says "very similar to the original Transformer". LayerNorm stands before each
branch, not after the sum: that trains without a long warm-up, which the paper does not mention, and
it is where the language model has it. Dropout is where Vaswani et al. (2017) describe it, on each
branch before it is added and on the embedded inputs; not on attention weights.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.data.vocabulary import PAD
from cdcd.diffusion.selection import Selection
from cdcd.networks.attention import Attention, KeyValueCache, RotaryEmbedding
from cdcd.networks.layers import LayerNorm, make_norm
from cdcd.networks.precision import working_dtype


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """Size of an encoder-decoder."""

    num_encoder_blocks: int = 6
    """Blocks that read the source."""
    num_decoder_blocks: int = 6
    """Blocks that predict the target."""
    width: int = 512
    """Units of the residual streams."""
    hidden: int = 2048
    """Hidden units of each block's MLP."""
    num_heads: int = 8
    """Attention heads; each has width / num_heads units."""
    dropout: float = 0.1
    """Share of units that are dropped in training."""
    source_dropout: float = 0.0
    """Share of the source's tokens that are hidden in training."""
    time_units: int = 128
    """Units of the timestep embedding's MLP; diffusion models only."""
    relative_positions: bool = False
    """Tell self-attention how far apart tokens are (RoPE), besides where they are; not in the paper."""

    def __post_init__(self) -> None:
        sizes = ("num_encoder_blocks", "num_decoder_blocks", "width", "hidden", "num_heads")
        for name in (*sizes, "time_units"):
            if getattr(self, name) < 1:
                raise ValueError(f"seq2seq.{name} is {getattr(self, name)}, it must be at least 1")
        if self.width % self.num_heads or self.width % 2:
            raise ValueError(
                f"seq2seq.width ({self.width}) must be even and a multiple of seq2seq.num_heads "
                f"({self.num_heads})"
            )
        if self.relative_positions and self.width % (2 * self.num_heads):
            raise ValueError(
                f"seq2seq.width ({self.width}) must be a multiple of 2 × seq2seq.num_heads "
                f"({self.num_heads}), for relative positions"
            )
        for name in ("dropout", "source_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"seq2seq.{name} is {getattr(self, name)}, it must be at least 0 and below 1"
                )


def make_rotary(config: Seq2SeqConfig, length: int) -> RotaryEmbedding | None:
    """What turns queries and keys, where self-attention is told of relative positions."""
    if not config.relative_positions:
        return None
    return RotaryEmbedding(config.width // config.num_heads, length)


def transformer_tiny() -> Seq2SeqConfig:
    """For small data, on a CPU."""
    return Seq2SeqConfig(
        num_encoder_blocks=2, num_decoder_blocks=2, width=128, hidden=512, num_heads=4
    )


def transformer_base() -> Seq2SeqConfig:
    """Transformer base (§6.6), the size of Vaswani et al. (2017)."""
    return Seq2SeqConfig()


def transformer_big() -> Seq2SeqConfig:
    """Transformer big (§6.6), with the dropout of Vaswani et al. (2017) for English-German."""
    return Seq2SeqConfig(width=1024, hidden=4096, num_heads=16, dropout=0.3)


@dataclass(frozen=True, eq=False)
class BlockMemory:
    """What one block of the decoder attends to."""

    keys: Float[Tensor, "sources heads source dim"]
    values: Float[Tensor, "sources heads source dim"]
    is_real: Bool[Tensor, "sources source"]
    """Where there is no padding."""


@dataclass(frozen=True, eq=False)
class Memory:
    """What all blocks of the decoder attend to: a batch of sources that have been read."""

    keys: Float[Tensor, "blocks sources heads source dim"]
    values: Float[Tensor, "blocks sources heads source dim"]
    is_real: Bool[Tensor, "sources source"]

    @property
    def num_sources(self) -> int:
        return self.keys.shape[1]

    def take(self, rows: Int[Tensor, " chosen"]) -> "Memory":
        """Some of the sources."""
        return Memory(self.keys[:, rows], self.values[:, rows], self.is_real[rows])

    def blocks(self) -> list[BlockMemory]:
        pairs = zip(self.keys.unbind(), self.values.unbind(), strict=True)
        return [BlockMemory(k, v, self.is_real) for k, v in pairs]


def find_real(tokens: Int[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
    """Where there is no padding. The first position always counts, so that a row is never empty."""
    return (tokens != PAD) | (torch.arange(tokens.shape[1], device=tokens.device) == 0)


def sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """The original Transformer's positions: sines, then cosines, wavelengths from 2π to 10,000·2π."""
    exponents = torch.arange(width // 2, dtype=torch.float64) / max(1, width // 2 - 1)
    angles = torch.arange(length)[:, None] * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class TokenInput(nn.Module):
    """Embedded tokens, scaled to the size of their sinusoidal positions, which are added."""

    positions: Tensor

    def __init__(self, width: int, length: int, dropout: float, token_dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.dropout = nn.Dropout(dropout)
        self.token_dropout = nn.Dropout1d(token_dropout)
        self.register_buffer("positions", sinusoids(length, width), persistent=False)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        table: Float[Tensor, "vocab width"],
        positions: Int[Tensor, " seq"] | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """The tokens' positions are 0, 1, 2, … unless they are given."""
        where = slice(tokens.shape[1]) if positions is None else positions
        # Whole tokens are dropped, not their positions.
        embedded = self.token_dropout(F.embedding(tokens, table))
        h = self.scale * embedded + self.positions[where]
        return self.dropout(h.to(working_dtype(table)))


class CrossAttention(nn.Module):
    """Multi-head attention to the source."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def project(
        self, encoded: Float[Tensor, "sources source width"]
    ) -> Float[Tensor, "2 sources heads source dim"]:
        """The keys and the values of the sources."""
        return self.key_value(encoded).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        memory: BlockMemory,
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions width"]:
        """Attend from each row to its source.

        With several rows a source, they follow one another: they are read as one longer sequence of
        queries, so that the source's keys and values need no copies.
        """
        grouped = h.unflatten(0, (len(memory.keys), -1)).flatten(1, 2)
        q = self.query(grouped).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        is_visible = memory.is_real[:, None, None]
        mixed = F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=is_visible)
        mixed = mixed.transpose(1, 2).reshape(h.shape)
        return self.out(mixed if selection is None else selection.take(mixed))


class FeedForward(nn.Module):
    """The MLP of a block, with ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)

    def forward(self, h: Float[Tensor, "*positions width"]) -> Float[Tensor, "*positions width"]:
        return self.out(F.relu(self.hidden(h)))


class EncoderBlock(nn.Module):
    """Self-attention, then an MLP, each behind a LayerNorm."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.width)
        self.attention = Attention(config.width, config.num_heads)
        self.mlp_norm = LayerNorm(config.width)
        self.mlp = FeedForward(config.width, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        rotary: RotaryEmbedding | None,
        is_real: Bool[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch seq width"]:
        h = h + self.dropout(self.attention(self.attention_norm(h), rotary, is_real=is_real))
        return h + self.dropout(self.mlp(self.mlp_norm(h)))


class DecoderBlock(nn.Module):
    """Self-attention, attention to the source, then an MLP, each behind a LayerNorm.

    The LayerNorms are conditional, unless `condition_units` is None: then there is no condition.
    """

    def __init__(
        self, config: Seq2SeqConfig, condition_units: int | None, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(config.width, condition_units)
        self.attention = Attention(config.width, config.num_heads, causal=causal)
        self.source_norm = make_norm(config.width, condition_units)
        self.source = CrossAttention(config.width, config.num_heads)
        self.mlp_norm = make_norm(config.width, condition_units)
        self.mlp = FeedForward(config.width, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        condition: Float[Tensor, "batch units"] | None,
        memory: BlockMemory,
        rotary: RotaryEmbedding | None,
        *,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions width"]:
        """The new residual stream, at all positions or at the selected ones."""
        normed = self.attention_norm(h, condition)
        h = h + self.dropout(self.attention(normed, rotary, positions, cache))
        mixed = self.source(self.source_norm(h, condition), memory, selection)
        h = (h if selection is None else selection.take(h)) + self.dropout(mixed)
        return h + self.dropout(self.mlp(self.mlp_norm(h, condition, selection)))


class Encoder(nn.Module):
    """Reads the source; every position sees every other that is no padding."""

    def __init__(self, config: Seq2SeqConfig, length: int) -> None:
        super().__init__()
        self.length = length
        self.input = TokenInput(config.width, length, config.dropout, config.source_dropout)
        self.rotary = make_rotary(config, length)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_encoder_blocks))
        self.norm = LayerNorm(config.width)
        initialise(self.blocks, num_branches=2)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        table: Float[Tensor, "vocab width"],
        is_real: Bool[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch seq width"]:
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"the sources have {tokens.shape[1]} tokens, the model reads at most {self.length}"
            )
        h = self.input(tokens, table)
        for block in self.blocks:
            h = block(h, self.rotary, is_real)
        return self.norm(h).to(h.dtype)


def project_memory(
    blocks: Iterable[nn.Module],
    encoded: Float[Tensor, "sources source width"],
    is_real: Bool[Tensor, "sources source"],
) -> Memory:
    """The keys and values that each block of the decoder makes of the encoded sources."""
    projected = []
    for block in blocks:
        assert isinstance(block, DecoderBlock)
        projected.append(block.source.project(encoded))
    keys, values = torch.stack(projected, dim=1).unbind()
    return Memory(keys, values, is_real)


@torch.no_grad()
def initialise(blocks: nn.ModuleList, *, num_branches: int) -> None:
    """Normal with deviation 1/sqrt(inputs), residual branches scaled down with their number."""
    depth = (num_branches * len(blocks)) ** -0.5
    for module in blocks.modules():
        if isinstance(module, Attention | CrossAttention | FeedForward):
            for layer in module.children():
                assert isinstance(layer, nn.Linear)
                gain = depth if layer is module.out else 1.0
                nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
                nn.init.zeros_(layer.bias)
