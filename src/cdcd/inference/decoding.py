"""Sequences drawn from an autoregressive model, token by token, left to right.

Each token is drawn by inverting the distribution function of the model's probabilities at a uniform
number, one for each row and position. So a text depends on its own row of numbers and not on its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.interpolation import invert, probabilities
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.encoder_decoder import EncodedSource
from cdcd.seeding import generator_for


@dataclass(frozen=True)
class DecodingStep:
    """A position that was just filled, as a callback gets it."""

    index: int
    num_steps: int
    """Number of positions of a sequence."""
    tokens: Int[Tensor, "batch seq"]
    """Those so far; what follows the position is not to be read."""
    logits: Float[Tensor, "batch vocab"]
    """Those of the position."""


def draw_uniform(seeds: Sequence[tuple[int, ...]], length: int) -> Float[Tensor, "batch seq"]:
    """Draws uniform numbers for each sample from its seed, which is a path of integers."""
    return torch.stack([torch.rand(length, generator=generator_for(*seed)) for seed in seeds])


@torch.no_grad()
def decode(
    model: AutoregressiveTextNetwork | AutoregressiveTranslationNetwork,
    tokens: Int[Tensor, "batch seq"],
    is_given: Bool[Tensor, "batch seq"],
    u: Float[Tensor, "batch seq"],
    config: DecodingConfig,
    *,
    source: EncodedSource | None = None,
    suppress: Sequence[int] = (),
    callback: Callable[[DecodingStep], None] | None = None,
) -> Int[Tensor, "batch seq"]:
    """Continues each row's given tokens, which come first; tokens that are not given are not read.

    `u` holds uniform numbers in [0, 1). Tokens in `suppress` are never drawn. The callback gets each
    position when it is filled. A translator reads `source`, and padding follows the EOS of its targets;
    there can be several rows a source, which follow one another. The precision is that of the model, or
    of torch.autocast around it.
    """
    if (is_given[:, 1:] & ~is_given[:, :-1]).any():
        raise ValueError("an autoregressive model only continues: given tokens must come first")
    shared, (batch, length) = int(is_given.all(0).sum()), tokens.shape
    filled, positions = tokens.clone(), torch.arange(length, device=tokens.device)
    banned = torch.tensor(suppress, dtype=torch.long, device=tokens.device)
    has_ended = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
    given: dict[str, Any] = {} if source is None else {"source": source}
    caches = model.new_caches(batch, length)
    # All rows' common beginning is read at once, what follows one position at a time.
    inputs = F.pad(tokens[:, :shared], (1, 0), value=model.vocab_size)
    read = positions[: shared + 1]
    for i in range(shared, length):
        logits = model.next_logits(inputs, read, caches=caches, **given)
        logits = logits.index_fill(-1, banned, -torch.inf)
        drawn = draw(logits, u[:, i], config).masked_fill(has_ended, PAD)
        filled[:, i] = torch.where(is_given[:, i], tokens[:, i], drawn)
        inputs, read = filled[:, i : i + 1], positions[i + 1 : i + 2]
        if source is not None:
            has_ended |= drawn == EOS
            if has_ended.all():
                break
        if callback is not None:
            callback(DecodingStep(i, length, filled, logits))
    return filled


def decode_targets(
    model: AutoregressiveTranslationNetwork,
    source: Int[Tensor, "sources source"],
    u: Float[Tensor, "batch seq"],
    config: DecodingConfig,
) -> Int[Tensor, "batch seq"]:
    """Draws a target for each row of uniform numbers; padding follows its EOS, if it has one."""
    assert not model.training
    nothing = torch.full_like(u, PAD, dtype=torch.long)
    is_given = torch.zeros_like(nothing, dtype=torch.bool)
    encoded, never = model.encode(source), never_drawn(config)
    return decode(model, nothing, is_given, u, config, source=encoded, suppress=never)


def never_drawn(config: DecodingConfig) -> tuple[int, ...]:
    """Returns the tokens that are never drawn: padding, which nothing was trained on, and EOS if so set."""
    return (PAD, EOS) if config.suppress_eos else (PAD,)


def draw(
    logits: Float[Tensor, "batch vocab"], u: Float[Tensor, " batch"], config: DecodingConfig
) -> Int[Tensor, " batch"]:
    """Draws one token for each row."""
    if config.temperature == 0:
        return logits.argmax(-1)
    logits = keep_top_k(logits.to(torch.promote_types(logits.dtype, torch.float32)), config.top_k)
    shaped = {"softmax_temperature": config.temperature, "nucleus": config.nucleus}
    return invert(probabilities(logits, **shaped), u)


def keep_top_k(logits: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Returns logits of −∞ for all but the k most likely tokens; 0 keeps all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    values, tokens = logits.topk(k, dim=-1)
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, values)
