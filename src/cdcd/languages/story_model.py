"""A Llama that writes stories (karpathy/llama2.c): the language whose probability is known.

    ln p(story) = Σ_i ln p(token_i | BEGIN, token_1 … token_{i−1}),

summed up to the `BEGIN` of the next story, which ends this one. Blocks are RMSNorm, attention with
rotary positions of neighbouring components, RMSNorm, SiLU-gated MLP; the embedding is tied.

With a cache the model reads one token of each row at a time, at one position for all rows, and all
tensors keep their shapes: a step can be captured as a CUDA graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional as F

from cdcd.files import read_bounded
from cdcd.languages.story_tokenizer import StoryTokenizer

CONTEXT = 256
"""Tokens that the model reads, `BEGIN` included; it predicts one after each."""
THETA, EPSILON = 10_000.0, 1e-5
SIZE_LIMIT = 1_000_000_000
"""Bytes of the largest file of weights that is read."""


@dataclass(frozen=True)
class StoryCache:
    """Keys and values of all blocks at the positions that have been read."""

    keys: Float[Tensor, "blocks batch heads context dim"]
    values: Float[Tensor, "blocks batch heads context dim"]

    def first(self, length: int) -> "StoryCache":
        """Returns the same memory at the first positions alone."""
        return StoryCache(self.keys[..., :length, :], self.values[..., :length, :])


class StoryModel:
    """The network: logits in float32, its matrices in a dtype that can be lower."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        num_heads: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_heads = num_heads
        self.embedding = weights["emb"].to(device, torch.promote_types(dtype, torch.float32))
        self.norms = {name: weights[name].to(self.embedding) for name in ("an", "fn", "n")}
        self.matrices = {
            name: weights[name].to(device, dtype) for name in ("q", "k", "v", "o", "w1", "w2", "w3")
        }
        self.num_blocks, width = weights["an"].shape
        frequencies = THETA ** -(torch.arange(0, width // num_heads, 2) * num_heads / width)
        angles = (torch.arange(CONTEXT)[:, None] * frequencies).to(self.embedding)
        self.cos, self.sin = angles.cos(), angles.sin()

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def logits(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab"]:
        """Returns logits: those at i predict the token after token i."""
        return F.linear(self.states(tokens), self.embedding)

    def states(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        """Returns the final normalised state at each token."""
        h = self.embedding[tokens]
        for block in range(self.num_blocks):
            q, k, v = self._projected(block, h, self.cos[: h.shape[1]], self.sin[: h.shape[1]])
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = self._rest(block, h, mixed)
        return _normalised(h, self.norms["n"])

    def new_cache(self, batch_size: int) -> StoryCache:
        """Returns an empty cache."""
        matrix = self.matrices["k"]
        dim = matrix.shape[1] // self.num_heads
        keys = matrix.new_zeros(self.num_blocks, batch_size, self.num_heads, CONTEXT, dim)
        return StoryCache(keys, torch.zeros_like(keys))

    def next_logits(
        self, tokens: Int[Tensor, " batch"], position: Int[Tensor, " one"], cache: StoryCache
    ) -> Float[Tensor, "batch vocab"]:
        """Reads a token of each row at a position, after those in the cache; predicts the one after it."""
        h = self.embedding[tokens][:, None]
        is_visible = torch.arange(cache.keys.shape[3], device=self.device) <= position[:, None]
        for block in range(self.num_blocks):
            q, k, v = self._projected(block, h, self.cos[position], self.sin[position])
            keys, values = cache.keys[block], cache.values[block]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=is_visible)
            h = self._rest(block, h, mixed)
        return F.linear(_normalised(h[:, 0], self.norms["n"]), self.embedding)

    def _projected(
        self, block: int, h: Float[Tensor, "batch seq width"], cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries and keys, rotated, and values."""
        h = _normalised(h, self.norms["an"][block])
        q, k, v = (
            self._product(name, block, h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for name in ("q", "k", "v")
        )
        dtype = self.matrices["q"].dtype
        return _rotated(q, cos, sin).to(dtype), _rotated(k, cos, sin).to(dtype), v.to(dtype)

    def _rest(self, block: int, h: Tensor, mixed: Tensor) -> Float[Tensor, "batch seq width"]:
        """Adds what attention has mixed, and the MLP's output, to the residual stream."""
        h = h + self._product("o", block, mixed.transpose(1, 2).flatten(2))
        normalised = _normalised(h, self.norms["fn"][block])
        gate = F.silu(self._product("w1", block, normalised))
        return h + self._product("w2", block, gate * self._product("w3", block, normalised))

    def _product(self, name: str, block: int, h: Tensor) -> Tensor:
        """Multiplies by a matrix in its dtype; the result is of the residual stream's."""
        matrix = self.matrices[name][block]
        return F.linear(h.to(matrix.dtype), matrix).to(self.embedding.dtype)


def _normalised(h: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(h, weight.shape, weight, EPSILON)


def _rotated(h: Float[Tensor, "batch heads seq dim"], cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates neighbouring components, as llama2.c does."""
    even, odd = h[..., ::2], h[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def story_files(folder: Path) -> tuple[Path, Path]:
    """Returns the files of the weights and of the tokenizer in a folder."""
    weights = sorted(folder.glob("*.safetensors"))
    tokenizer = folder / "tokenizer.bin"
    if len(weights) != 1 or not tokenizer.is_file():
        raise ValueError(
            f"{folder} holds no model of stories: it needs tokenizer.bin of llama2.c and one file of "
            f"weights, *.safetensors"
        )
    return weights[0], tokenizer


def load_stories(
    folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[StoryModel, StoryTokenizer]:
    """Loads the model and its tokenizer from a folder."""
    file, vocabulary = story_files(folder)
    tokenizer = StoryTokenizer.read(vocabulary)
    try:
        weights = load(read_bounded(file, SIZE_LIMIT))
        with safe_open(file, "pt") as opened:
            num_heads = int((opened.metadata() or {})["H"])
        _check(weights, num_heads, tokenizer.vocab_size)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{file} holds no model of stories: {error}") from None
    return StoryModel(weights, num_heads, device=device, dtype=dtype), tokenizer


def _check(weights: Mapping[str, Tensor], num_heads: int, vocab_size: int) -> None:
    """Refuses weights whose shapes do not fit together."""
    (blocks, width), hidden = weights["an"].shape, weights["w1"].shape[1]
    expected = {
        **{"emb": (vocab_size, width), "n": (width,), "fn": (blocks, width)},
        **dict.fromkeys(("q", "k", "v", "o"), (blocks, width, width)),
        **dict.fromkeys(("w1", "w3"), (blocks, hidden, width)),
        "w2": (blocks, width, hidden),
    }
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{name} is {tuple(weights[name].shape)}, it must be {shape}")
    if num_heads < 1 or width % (2 * num_heads):
        raise ValueError(f"a width of {width} has no {num_heads} heads of even size")


def story_log_probs(
    model: StoryModel, tokens: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch predicted"]:
    """Returns ln p of every token but the first given those before it."""
    return picked_log_probs(model.logits(tokens[:, :-1]), tokens[:, 1:])


def picked_log_probs(
    logits: Float[Tensor, "*batch vocab"], tokens: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Returns ln p of tokens in float64; sums in float32 would be off by some 1e-5 nats."""
    highest = logits.amax(-1, keepdim=True)
    total = (logits - highest).exp().sum(-1, dtype=torch.float64).log()
    return (logits.gather(-1, tokens[..., None]) - highest)[..., 0] - total
