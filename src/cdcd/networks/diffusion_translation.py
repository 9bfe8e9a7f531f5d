"""The translation network (§4.4): an encoder of the source and a decoder of the noisy target.

The whole target is predicted at once, its end and the padding after it too: tokens, EOS, PAD, PAD, …
up to a constant length. Nothing of it is given, so the stacked input (§4.1) has no given embeddings.
What is given is the source. The decoder attends to it, and its LayerNorms know its length beside the
timestep. For guidance a row can be told nothing: it attends to one learnt vector, and its length is
unknown.

NOTE(paper): there is no beginning-of-sentence token, which would be the same in every target.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.diffusion.embedding import Embedding, EmbeddingConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.selection import Selection
from cdcd.networks.encoder_decoder import (
    DecoderBlock,
    Encoder,
    Memory,
    Seq2SeqConfig,
    find_real,
    initialise,
    make_rotary,
    project_memory,
    sinusoids,
)
from cdcd.networks.layers import ConditionalLayerNorm, Head, TimeEmbedding


@dataclass(frozen=True, eq=False)
class Source:
    """Sources as the decoder sees them."""

    memory: Memory
    condition: Float[Tensor, "sources units"]
    """What their lengths add to the timestep embedding."""

    def __len__(self) -> int:
        return len(self.condition)

    def take(self, rows: Int[Tensor, " chosen"]) -> "Source":
        """Some of them."""
        return Source(self.memory.take(rows), self.condition[rows])


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
        """As the language model; learnt positions start as sinusoids, lengths do not matter yet."""
        initialise(self.blocks, num_branches=3)
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
    ) -> Source:
        """Read the sources, once for all calls of the network; dropped ones are replaced by nothing."""
        is_real = find_real(source)
        encoded = self.encoder(source, self.source_embedding.weight, is_real)
        lengths = is_real.sum(1)
        if is_dropped is not None:
            dropped = is_dropped[:, None]
            encoded = torch.where(dropped[..., None], self.nothing.to(encoded.dtype), encoded)
            is_first = torch.arange(source.shape[1], device=source.device) == 0
            is_real = torch.where(dropped, is_first, is_real)
            lengths = lengths.masked_fill(is_dropped, 0)
        return Source(project_memory(self.blocks, encoded, is_real), self.source_lengths(lengths))

    def bind(
        self, source: Source, rows: Int[Tensor, " chosen"] | None = None
    ) -> "BoundTranslation":
        """The network of these sources; called with as many rows as `rows`, of these alone."""
        return BoundTranslation(self, source, rows)

    def forward(
        self,
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        *,
        c: Float[Tensor, "batch seq embed"],
        x0_prev: Float[Tensor, "batch seq embed"],
        is_noisy: Bool[Tensor, "batch seq"],
        source: Source,
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        """Logits. There can be several rows a source; those of one follow one another."""
        stacked = torch.cat([x, c, x0_prev, is_noisy[..., None].to(x.dtype)], dim=-1)
        h = self.stack(stacked)
        h = self.dropout(h + self.positions[: x.shape[1]].to(h.dtype))
        lengths = source.condition[:, None].expand(-1, len(x) // len(source), -1)
        condition = self.time(t) + lengths.flatten(0, 1)
        memory = source.memory.blocks()
        for block, attended in zip(self.blocks[:-1], memory[:-1], strict=True):
            h = block(h, condition, attended, self.rotary)
        # What is not selected matters to the others up to here, and no further.
        h = self.blocks[-1](h, condition, memory[-1], self.rotary, selection=selection)
        return self.head(self.norm(h, condition, selection).to(h.dtype))


@dataclass(frozen=True, eq=False)
class BoundTranslation:
    """A translation network with its sources: a network like any other.

    A training step calls it twice, first on the self-conditioned rows of the batch: it must know
    which they are.
    """

    model: DiffusionTranslationNetwork
    source: Source
    rows: Int[Tensor, " chosen"] | None = None

    def __call__(
        self,
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        *,
        c: Float[Tensor, "batch seq embed"],
        x0_prev: Float[Tensor, "batch seq embed"],
        is_noisy: Bool[Tensor, "batch seq"],
        selection: Selection | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        source = self._source_of(len(x))
        return self.model(
            x, t, c=c, x0_prev=x0_prev, is_noisy=is_noisy, source=source, selection=selection
        )

    def _source_of(self, batch: int) -> Source:
        if self.rows is not None and batch == len(self.rows) < len(self.source):
            return self.source.take(self.rows)
        if batch % len(self.source):
            raise ValueError(
                f"the network is called on {batch} rows, but {len(self.source)} sources are bound "
                f"to it; give each as many rows"
            )
        return self.source
