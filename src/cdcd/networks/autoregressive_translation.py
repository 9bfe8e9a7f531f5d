"""The autoregressive translation baseline (§6.6): the original Transformer, with tied embeddings.

ln p(target | source) = Σ_i ln p(target_i | target_0 … target_{i−1}, source)

One table embeds source and target and gives the logits (Press & Wolf, 2017). As in the language model's
baseline the shift by one is inside: input 0 is a learnt start vector, the output at i predicts token i.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.networks.attention import KeyValueCache, new_caches
from cdcd.networks.encoder_decoder import (
    DecoderBlock,
    EncodedSource,
    Encoder,
    Seq2SeqConfig,
    TokenInput,
    find_visible,
    make_rotary,
    project_source,
)
from cdcd.networks.layers import LayerNorm, initialise_blocks


class AutoregressiveTranslationNetwork(nn.Module):
    """An encoder-decoder Transformer that predicts the next token of the target."""

    def __init__(
        self, network: Seq2SeqConfig, *, vocab_size: int, source_length: int, length: int
    ) -> None:
        super().__init__()
        self.vocab_size, self.length = vocab_size, length
        # The last row is the start vector.
        self.embedding = nn.Embedding(vocab_size + 1, network.width)
        self.encoder = Encoder(network, source_length)
        self.input = TokenInput(network.width, length, network.dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(network, None, causal=True) for _ in range(network.num_decoder_blocks)
        )
        self.norm = LayerNorm(network.width)
        self.rotary = make_rotary(network, length)
        nn.init.normal_(self.embedding.weight, std=network.width**-0.5)
        initialise_blocks(self.blocks, num_branches=3)

    def forward(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq vocab"]:
        """Returns logits: those at i predict token i from the source and the tokens before it."""
        inputs = F.pad(target[:, :-1], (1, 0), value=self.vocab_size)
        return self._logits(self._read(inputs, self.encode(source)))

    def encode(self, source: Int[Tensor, "sources source"]) -> EncodedSource:
        """Reads the sources, once for all tokens of their targets."""
        is_visible = find_visible(source)
        encoded = self.encoder(source, self.embedding.weight, is_visible)
        return project_source(self.blocks, encoded, is_visible, is_visible.sum(1))

    def start(self, batch_size: int) -> Int[Tensor, "batch 1"]:
        """Returns the first input of each row."""
        device = self.embedding.weight.device
        return torch.full((batch_size, 1), self.vocab_size, device=device)

    def next_logits(
        self,
        inputs: Int[Tensor, "batch seq"],
        positions: Int[Tensor, " seq"],
        source: EncodedSource,
        caches: list[KeyValueCache],
    ) -> Float[Tensor, "batch vocab"]:
        """Reads more `inputs`, after those in the caches; returns logits of the token that comes next.

        There can be several rows a source; those of one follow one another.
        """
        return self._logits(self._read(inputs, source, positions, caches)[:, -1])

    def new_caches(self, batch_size: int, capacity: int) -> list[KeyValueCache]:
        """Returns each block's empty cache for `capacity` inputs."""
        return new_caches(self.blocks, batch_size, capacity)

    def _read(
        self,
        inputs: Int[Tensor, "batch seq"],
        source: EncodedSource,
        positions: Int[Tensor, " seq"] | None = None,
        caches: list[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """Returns the final normalised state at each input."""
        h = self.input(inputs, self.embedding.weight, positions)
        kept = caches or [None] * len(self.blocks)
        for block, attended, cache in zip(self.blocks, source.blocks(), kept, strict=True):
            h = block(h, None, attended, self.rotary, positions, cache)
        return self.norm(h)

    def _logits(self, h: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        return F.linear(h, self.embedding.weight[:-1])
