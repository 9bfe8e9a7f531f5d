"""The autoregressive baseline (§6.5): a decoder of the same blocks that predicts the next token.

ln p(tokens) = Σ_i ln p(tokens_i | tokens_0 … tokens_{i−1})

The shift by one is inside: input 0 is a learnt start vector, input i is token i − 1, and the output
at i predicts token i.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.data.vocabulary import PAD
from cdcd.diffusion.logits import cross_entropies
from cdcd.networks.attention import KeyValueCache, RotaryEmbedding, new_caches
from cdcd.networks.diffusion_text import NetworkConfig, make_blocks
from cdcd.networks.layers import LayerNorm, initialise_blocks
from cdcd.networks.precision import residual

INITIAL_LOGIT = 0.2
"""Deviation of a new tied model's logits: small enough for a loss near ln(vocab_size)."""


class AutoregressiveTextNetwork(nn.Module):
    """A decoder-only Transformer. Tied: the output weights are the input embeddings."""

    def __init__(self, network: NetworkConfig, *, vocab_size: int, length: int) -> None:
        super().__init__()
        self.vocab_size, self.length = vocab_size, length
        width = network.width
        # The last row is the start vector.
        self.embedding = nn.Embedding(vocab_size + 1, width)
        # One position more than tokens: `states` reads the start and a whole sequence.
        self.rotary = RotaryEmbedding(width // network.num_heads, length + 1)
        self.dropout = nn.Dropout(network.dropout)
        self.blocks = make_blocks(network, None, causal=True)
        self.norm = LayerNorm(width)
        self.head = None if network.tied_head else nn.Linear(width, vocab_size)
        self._initialise()

    def _initialise(self) -> None:
        """Draws weights as for the diffusion network; the first LayerNorm brings small embeddings to size."""
        initialise_blocks(self.blocks, num_branches=2)
        width = self.embedding.embedding_dim
        nn.init.normal_(self.embedding.weight, std=INITIAL_LOGIT * width**-0.5)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab"]:
        """Returns logits: those at i predict token i from the tokens before it."""
        return self._logits(self._read(self.inputs(tokens)[:, :-1]))

    def states(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch inputs width"]:
        """Returns states, of which number i has read the first i tokens, from none to all."""
        return self._read(self.inputs(tokens))

    def inputs(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch inputs"]:
        """Returns the inputs of the network: the start, then the tokens."""
        return F.pad(tokens, (1, 0), value=self.vocab_size)

    def next_logits(
        self,
        inputs: Int[Tensor, "batch seq"],
        positions: Int[Tensor, " seq"],
        caches: list[KeyValueCache],
    ) -> Float[Tensor, "batch vocab"]:
        """Reads more `inputs`, after those in the caches; returns logits of the token that comes next."""
        return self._logits(self._read(inputs, positions, caches)[:, -1])

    def new_caches(self, batch_size: int, capacity: int) -> list[KeyValueCache]:
        """Returns each block's empty cache for `capacity` inputs."""
        return new_caches(self.blocks, batch_size, capacity)

    def _read(
        self,
        inputs: Int[Tensor, "batch seq"],
        positions: Int[Tensor, " seq"] | None = None,
        caches: list[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch seq width"]:
        """Returns the final normalised state at each input."""
        h = self.dropout(residual(self.embedding(inputs)))
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            h = block(h, None, self.rotary, positions, cache)
        return self.norm(h)

    def _logits(self, h: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        return F.linear(h, self.embedding.weight[:-1]) if self.head is None else self.head(h)


def is_predicted(tokens: Int[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
    """Returns the mask of tokens that are no padding; the end of a document is predicted too."""
    return tokens != PAD


def token_losses(
    logits: Float[Tensor, "batch seq vocab"],
    tokens: Int[Tensor, "batch seq"],
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, "batch seq"], Float[Tensor, "batch seq"]]:
    """Returns the loss in training and −ln p of each token, zero in the padding.

    In training a share of each label, `label_smoothing`, goes to all tokens alike.
    """
    is_padding, nll = ~is_predicted(tokens), cross_entropies(logits, tokens)
    losses = nll
    if label_smoothing:
        # −Σ ln p / vocab_size is the NLL, plus the token's logit, less the mean of all.
        picked = logits.gather(-1, tokens[..., None])[..., 0].to(nll.dtype)
        losses = nll + label_smoothing * (picked - logits.mean(-1, dtype=nll.dtype))
    return losses.masked_fill(is_padding, 0.0), nll.masked_fill(is_padding, 0.0)
