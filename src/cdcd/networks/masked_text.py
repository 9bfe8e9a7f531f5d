"""The network of masked diffusion: the blocks of the others, reading tokens of which some are masked.

A masked token is one vector, the last row of the embeddings. There is no timestep: the share of the masks says
it all (Ou et al., 2025).

Rotary positions are relative: where all tokens are masked, they tell no position from another. So each
position has a learnt vector too, which is added to the embeddings.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.networks.attention import RotaryEmbedding
from cdcd.networks.autoregressive_text import INITIAL_LOGIT
from cdcd.networks.diffusion_text import NetworkConfig, make_blocks
from cdcd.networks.layers import Head, LayerNorm, initialise_blocks
from cdcd.networks.precision import residual


class MaskedTextNetwork(nn.Module):
    """A Transformer that predicts masked tokens; it never predicts a mask."""

    def __init__(self, network: NetworkConfig, *, vocab_size: int, length: int) -> None:
        super().__init__()
        self.vocab_size, self.length = vocab_size, length
        width = network.width
        # The last row is the mask.
        self.embedding = nn.Embedding(vocab_size + 1, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.rotary = RotaryEmbedding(width // network.num_heads, length)
        self.dropout = nn.Dropout(network.dropout)
        self.blocks = make_blocks(network, None)
        self.norm = LayerNorm(width)
        self.head = Head(width, vocab_size)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Draws weights as for the autoregressive network."""
        initialise_blocks(self.blocks, num_branches=2)
        width = self.embedding.embedding_dim
        nn.init.normal_(self.embedding.weight, std=INITIAL_LOGIT * width**-0.5)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_masked: Bool[Tensor, "batch seq"],
        *,
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        """Returns logits of the tokens; those under a mask are not read."""
        inputs = tokens.masked_fill(is_masked, self.vocab_size)
        h = residual(self.embedding(inputs) + self.positions[: tokens.shape[1]])
        for block in self.blocks:
            h = block(h, None, self.rotary)
        return self.head(self.norm(h), positions)
