"""Parts of the encoder-decoder (§4.4): the original Transformer's, shared by both translation models.

    source tokens -> Encoder -> EncodedSource
                  -> decoder blocks: self-attention, attention to the source, MLP

The encoder reads a source once. The keys and values of every block of the decoder are made from it at
once, and serve every call of the decoder after that: both passes of a training step, all steps of
sampling, every token of decoding.

NOTE(paper): the paper says "very similar to the original Transformer". LayerNorm stands before each
branch, not after the sum: that trains without a long warm-up, which the paper does not mention, and
it is where the language model has it. Dropout is where Vaswani et al. (2017) describe it, on each
branch before it is added and on the embedded inputs; not on attention weights.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.data.vocabulary import PAD
from cdcd.networks.attention import Attention, KeyValueCache, RotaryEmbedding
from cdcd.networks.layers import LayerNorm, initialise_blocks, make_norm
from cdcd.networks.precision import residual
from cdcd.settings import BelowOne, Bounds, Settings, Size


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Settings, section="seq2seq"):
    """Size of an encoder-decoder."""

    num_encoder_blocks: Annotated[int, Bounds(1, 1_000)] = 6
    """Blocks that read the source."""
    num_decoder_blocks: Annotated[int, Bounds(1, 1_000)] = 6
    """Blocks that predict the target."""
    width: Size = 512
    """Units of the residual streams."""
    hidden: Annotated[int, Bounds(1, 1_048_576)] = 2048
    """Hidden units of each block's MLP."""
    num_heads: Size = 8
    """Attention heads; each has width / num_heads units."""
    dropout: BelowOne = 0.1
    """Share of units that are dropped in training."""
    source_dropout: BelowOne = 0.0
    """Share of the source's tokens that are hidden in training."""
    time_units: Size = 128
    """Units of the timestep embedding's MLP; diffusion models only."""
    relative_positions: bool = False
    """Give self-attention the distances of tokens (RoPE) besides their positions; not in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
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


def make_rotary(config: Seq2SeqConfig, length: int) -> RotaryEmbedding | None:
    """Returns the rotation of queries and keys, where self-attention knows relative positions."""
    if not config.relative_positions:
        return None
    return RotaryEmbedding(config.width // config.num_heads, length)


def transformer_tiny() -> Seq2SeqConfig:
    """Returns a size for small data, on a CPU."""
    return Seq2SeqConfig(
        num_encoder_blocks=2, num_decoder_blocks=2, width=128, hidden=512, num_heads=4
    )


def transformer_base() -> Seq2SeqConfig:
    """Returns Transformer base (§6.6), the size of Vaswani et al. (2017)."""
    return Seq2SeqConfig()


def transformer_big() -> Seq2SeqConfig:
    """Returns Transformer big (§6.6), with the dropout of Vaswani et al. (2017) for English-German."""
    return Seq2SeqConfig(width=1024, hidden=4096, num_heads=16, dropout=0.3)


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """A batch of sources that have been read: the keys and values that the decoder attends to."""

    keys: Float[Tensor, "*blocks sources heads source dim"]
    values: Float[Tensor, "*blocks sources heads source dim"]
    is_visible: Bool[Tensor, "sources source"]
    """True where a source has a token, False in its padding."""
    lengths: Int[Tensor, " sources"]
    """Numbers of tokens; 0: unknown."""

    def rows(self, rows: Int[Tensor, " chosen"]) -> "EncodedSource":
        """Returns some of the sources."""
        return EncodedSource(
            self.keys[:, rows], self.values[:, rows], self.is_visible[rows], self.lengths[rows]
        )

    def blocks(self) -> "list[EncodedSource]":
        """Returns what each block of the decoder attends to."""
        pairs = zip(self.keys.unbind(), self.values.unbind(), strict=True)
        return [replace(self, keys=keys, values=values) for keys, values in pairs]


def find_visible(tokens: Int[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
    """Returns the mask of tokens that are no padding, and of the first: no row is empty."""
    return (tokens != PAD) | (torch.arange(tokens.shape[1], device=tokens.device) == 0)


def sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """Returns the original Transformer's positions: sines, then cosines, wavelengths from 2π to 10,000·2π."""
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
        """Returns the inputs of tokens whose positions are 0, 1, 2, … unless they are given."""
        index = slice(tokens.shape[1]) if positions is None else positions
        # Whole tokens are dropped, not their positions.
        embedded = self.token_dropout(F.embedding(tokens, table))
        return self.dropout(residual(self.scale * embedded + self.positions[index]))


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
        """Returns the keys and the values of the sources."""
        return self.key_value(encoded).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        source: EncodedSource,
    ) -> Float[Tensor, "batch seq width"]:
        """Attends from each row to its source.

        With several rows a source, they follow one another: they are read as one longer sequence of
        queries, so that the source's keys and values need no copies.
        """
        grouped = h.unflatten(0, (len(source.keys), -1)).flatten(1, 2)
        q = self.query(grouped).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        is_visible = source.is_visible[:, None, None]
        mixed = F.scaled_dot_product_attention(q, source.keys, source.values, attn_mask=is_visible)
        return self.out(mixed.transpose(1, 2).reshape(h.shape))


class FeedForward(nn.Module):
    """The MLP of a block, with ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)

    def forward(self, h: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
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
        is_visible: Bool[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch seq width"]:
        h = h + self.dropout(self.attention(self.attention_norm(h), rotary, is_visible=is_visible))
        return h + self.dropout(self.mlp(self.mlp_norm(h)))


class DecoderBlock(nn.Module):
    """Self-attention, attention to the source, then an MLP, each behind a LayerNorm.

    The LayerNorms are conditional, unless `time_units` is None: then the block takes no time.
    """

    def __init__(
        self, config: Seq2SeqConfig, time_units: int | None, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(config.width, time_units)
        self.attention = Attention(config.width, config.num_heads, causal=causal)
        self.source_norm = make_norm(config.width, time_units)
        self.source = CrossAttention(config.width, config.num_heads)
        self.mlp_norm = make_norm(config.width, time_units)
        self.mlp = FeedForward(config.width, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        h: Float[Tensor, "batch seq width"],
        time: Float[Tensor, "batch units"] | None,
        source: EncodedSource,
        rotary: RotaryEmbedding | None,
        positions: Int[Tensor, " seq"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """Returns the new residual stream; `source` is that of this block."""
        attended = self.attention(self.attention_norm(h, time), rotary, positions, cache)
        h = h + self.dropout(attended)
        h = h + self.dropout(self.source(self.source_norm(h, time), source))
        return h + self.dropout(self.mlp(self.mlp_norm(h, time)))


class Encoder(nn.Module):
    """Reads the source; every position sees every other that is no padding."""

    def __init__(self, config: Seq2SeqConfig, length: int) -> None:
        super().__init__()
        self.length = length
        self.input = TokenInput(config.width, length, config.dropout, config.source_dropout)
        self.rotary = make_rotary(config, length)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_encoder_blocks))
        self.norm = LayerNorm(config.width)
        initialise_blocks(self.blocks, num_branches=2)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        table: Float[Tensor, "vocab width"],
        is_visible: Bool[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch seq width"]:
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"the sources have {tokens.shape[1]} tokens, the model reads at most {self.length}"
            )
        h = self.input(tokens, table)
        for block in self.blocks:
            h = block(h, self.rotary, is_visible)
        return self.norm(h).to(h.dtype)


def project_source(
    blocks: Iterable[Any],
    encoded: Float[Tensor, "sources source width"],
    is_visible: Bool[Tensor, "sources source"],
    lengths: Int[Tensor, " sources"],
) -> EncodedSource:
    """Computes the keys and values that each block of the decoder makes of the encoded sources."""
    keys, values = torch.stack([block.source.project(encoded) for block in blocks], dim=1).unbind()
    return EncodedSource(keys, values, is_visible, lengths)
