"""The translation network (§4.4): an encoder of the source and a decoder of the noisy target.

The whole target is predicted at once, its end and the padding after it too: tokens, EOS, PAD, PAD, …
up to a constant length. Nothing of it is given, so the stacked input (§4.1) has no given embeddings.
Its condition is the source (`EncodedSource`). The decoder attends to it, and its LayerNorms know its
length beside the timestep. For guidance the source of a row can be hidden: the row attends to one learnt
vector, and the length is unknown.

NOTE(paper): there is no beginning-of-sentence token, which would be the same in every target.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.diffusion.embedding import Embedding, EmbeddingConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.encoder_decoder import (
    DecoderBlock,
    EncodedSource,
    Encoder,
    Seq2SeqConfig,
    find_visible,
    make_rotary,
    project_source,
    sinusoids,
)
from cdcd.networks.layers import ConditionalLayerNorm, Head, TimeEmbedding, initialise_blocks
from cdcd.networks.precision import residual


class DiffusionTranslationNetwork(nn.Module):
    """The denoising network with its embedding table: everything that gradient descent trains."""

    def __init__(
        self,
        network: Seq2SeqConfig,
        embedding: EmbeddingConfig,
        process: ProcessConfig,
        *,
        vocab_size: int,
        source_length: int,
        length: int,
    ) -> None:
        super().__init__()
        width, units = network.width, network.time_units
        self.embedding = Embedding(vocab_size, embedding)
        self.source_embedding = nn.Embedding(vocab_size, width)
        self.encoder = Encoder(network, source_length)
        self.nothing = nn.Parameter(torch.randn(width))
        # The first row is for sources of unknown length.
        self.source_lengths = nn.Embedding(source_length + 1, units)
        self.time = TimeEmbedding(units, process.t_min, process.t_max)
        self.stack = nn.Linear(3 * embedding.dim + 1, width)
        self.positions = nn.Parameter(sinusoids(length, width))
        self.rotary = make_rotary(network, length)
        self.dropout = nn.Dropout(network.dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(network, units) for _ in range(network.num_decoder_blocks)
        )
        self.norm = ConditionalLayerNorm(width, units)
        self.head = Head(width, vocab_size)
        self._initialise(embedding.dim)

    @torch.no_grad()
    def _initialise(self, dim: int) -> None:
        """Draws weights as for the text network; lengths do not matter yet."""
        initialise_blocks(self.blocks, num_branches=3)
        width = self.source_embedding.embedding_dim
        nn.init.normal_(self.source_embedding.weight, std=width**-0.5)
        nn.init.zeros_(self.source_lengths.weight)
        nn.init.normal_(self.stack.weight, std=dim**-0.5)
        # The network starts as if it had no self-conditioning.
        self.stack.weight[:, 2 * dim : 3 * dim] = 0.0
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def encode(
        self,
        source: Int[Tensor, "sources source"],
        is_dropped: Bool[Tensor, " sources"] | None = None,
    ) -> EncodedSource:
        """Reads the sources, once for all calls of the network; those of dropped rows are hidden."""
        is_visible = find_visible(source)
        encoded = self.encoder(source, self.source_embedding.weight, is_visible)
        lengths = is_visible.sum(1)
        if is_dropped is not None:
            dropped = is_dropped[:, None]
            encoded = torch.where(dropped[..., None], self.nothing.to(encoded.dtype), encoded)
            is_first = torch.arange(source.shape[1], device=source.device) == 0
            is_visible = torch.where(dropped, is_first, is_visible)
            lengths = lengths.masked_fill(is_dropped, 0)
        return project_source(self.blocks, encoded, is_visible, lengths)

    def forward(
        self,
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        *,
        c: Float[Tensor, "batch seq embed"],
        x0_prev: Float[Tensor, "batch seq embed"],
        is_noisy: Bool[Tensor, "batch seq"],
        condition: EncodedSource,
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        """Returns logits. There can be several rows a source; those of one follow one another."""
        stacked = torch.cat([x, c, x0_prev, is_noisy[..., None].to(x.dtype)], dim=-1)
        h = residual(self.stack(stacked))
        h = self.dropout(h + self.positions[: x.shape[1]].to(h.dtype))
        lengths = self.source_lengths(condition.lengths)
        time = self.time(t) + lengths.repeat_interleave(len(x) // len(lengths), 0)
        for block, source in zip(self.blocks, condition.blocks(), strict=True):
            h = block(h, time, source, self.rotary)
        return self.head(self.norm(h, time), positions)
