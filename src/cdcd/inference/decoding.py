"""Sequences drawn from an autoregressive model, token by token, left to right.

Each token is drawn by inverting the distribution function of the model's probabilities at a uniform
number, one for each row and position. So a text depends on its own row of numbers and not on its batch.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.interpolation import probabilities
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.seeding import generator_for


def draw_uniform(seeds: Sequence[tuple[int, ...]], length: int) -> Float[Tensor, "batch seq"]:
    """Draws uniform numbers for each sample from its seed, which is a path of integers."""
    return torch.stack([torch.rand(length, generator=generator_for(*seed)) for seed in seeds])


@torch.no_grad()
def decode(
    model: AutoregressiveTextNetwork,
    tokens: Int[Tensor, "batch seq"],
    is_given: Bool[Tensor, "batch seq"],
    u: Float[Tensor, "batch seq"],
    config: DecodingConfig,
    *,
    suppress: Sequence[int] = (),
    callback: Callable[[int], None] | None = None,
) -> Int[Tensor, "batch seq"]:
    """Continues each row's given tokens, which come first; tokens that are not given are not read.

    `u` holds uniform numbers in [0, 1). Tokens in `suppress` are never drawn. The callback gets each
    position when it is filled. The precision is that of the model, or of torch.autocast around it.
    """
    if (is_given[:, 1:] & ~is_given[:, :-1]).any():
        raise ValueError("an autoregressive model only continues: given tokens must come first")
    shared, length = int(is_given.all(0).sum()), tokens.shape[1]
    if shared == length:
        return tokens.clone()
    filled, positions = tokens.clone(), torch.arange(length, device=tokens.device)
    banned = torch.tensor(suppress, dtype=torch.long, device=tokens.device)
    caches = model.new_caches(len(tokens), length)
    # All rows' common beginning is read at once, what follows one position at a time.
    inputs, read = model.inputs(tokens[:, :shared]), positions[: shared + 1]
    for i in range(shared, length):
        logits = model.next_logits(inputs, read, caches)
        drawn = draw(logits.index_fill(-1, banned, -torch.inf), u[:, i], config)
        filled[:, i] = torch.where(is_given[:, i], tokens[:, i], drawn)
        inputs, read = filled[:, i : i + 1], positions[i + 1 : i + 2]
        if callback is not None:
            callback(i)
    return filled


@torch.no_grad()
def decode_targets(
    model: AutoregressiveTranslationNetwork,
    source: Int[Tensor, "sources source"],
    u: Float[Tensor, "batch seq"],
    config: DecodingConfig,
) -> Int[Tensor, "batch seq"]:
    """Draws a target for each row of uniform numbers; padding follows its EOS, if it has one.

    There can be several rows a source; those of one follow one another. The precision is that of the
    model, or of torch.autocast around it.
    """
    assert not model.training
    batch, length = u.shape
    assert length <= model.length
    assert batch % len(source) == 0
    memory, caches = model.encode(source), model.new_caches(batch, length)
    targets, positions = (
        u.new_full(u.shape, PAD, dtype=torch.long),
        torch.arange(length).to(u.device),
    )
    inputs, has_ended = model.start(batch), torch.zeros(batch, dtype=torch.bool, device=u.device)
    for i in range(length):
        logits = model.next_logits(inputs, positions[i : i + 1], memory, caches)
        logits[:, PAD] = -torch.inf
        if config.suppress_eos:
            logits[:, EOS] = -torch.inf
        targets[:, i] = draw(logits, u[:, i], config).masked_fill(has_ended, PAD)
        has_ended |= targets[:, i] == EOS
        if has_ended.all():
            break
        inputs = targets[:, i : i + 1]
    return targets


def draw(
    logits: Float[Tensor, "batch vocab"], u: Float[Tensor, " batch"], config: DecodingConfig
) -> Int[Tensor, " batch"]:
    """Draws one token for each row."""
    if config.temperature == 0:
        return logits.argmax(-1)
    logits = keep_top_k(logits.to(torch.promote_types(logits.dtype, torch.float32)), config.top_k)
    return invert(
        probabilities(logits, softmax_temperature=config.temperature, nucleus=config.nucleus), u
    )


def keep_top_k(logits: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Returns logits of −∞ for all but the k most likely tokens; 0 keeps all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    values, tokens = logits.topk(k, dim=-1)
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, values)


def invert(
    probs: Float[Tensor, "positions vocab"], u: Float[Tensor, " positions"]
) -> Int[Tensor, " positions"]:
    """Returns the first token at which the distribution function exceeds `u`.

    Tokens without probability are left out of the sums, so that rounding cannot draw one.
    """
    cdf = torch.where(probs > 0, probs.double().cumsum(-1), 0.0)
    level = u.double()[:, None] * cdf.amax(-1, keepdim=True)
    # Where there are several largest values, argmax returns the first.
    return (cdf > level).to(torch.uint8).argmax(-1)
