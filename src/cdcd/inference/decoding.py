"""Decoding: sequences drawn from an autoregressive model, token by token, left to right.

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
    """Continue each row's given tokens, which come first; tokens that are not given are not read.

    `u` holds uniform numbers in [0, 1). Tokens in `suppress` are never drawn. The callback gets each
    position when it is filled. The precision is that of the model, or of torch.autocast around it.
    """
    _check(model, is_given, u, suppress)
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
    """Draw a target for each row of uniform numbers; padding follows its EOS, if it has one.

    There can be several rows a source; those of one follow one another. The precision is that of the
    model, or of torch.autocast around it.
    """
    assert not model.training
    _check_rows(model, source, u)
    batch, length = u.shape
    memory, caches = model.encode(source), model.new_caches(batch, length)
    targets, positions = (
        torch.full(u.shape, PAD, device=u.device),
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
    """One token a row."""
    if config.temperature == 0:
        return logits.argmax(-1)
    logits = keep_top_k(logits.to(torch.promote_types(logits.dtype, torch.float32)), config.top_k)
    return invert(
        probabilities(logits, softmax_temperature=config.temperature, nucleus=config.nucleus), u
    )


def keep_top_k(logits: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Give all but the k most likely tokens no chance; 0 keeps all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    values, tokens = logits.topk(k, dim=-1)
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, values)


def invert(
    probs: Float[Tensor, "batch vocab"], u: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The token at which the distribution function first exceeds `u`.

    Rounding must not let through a token without probability, so those are taken out of the sums.
    """
    cdf = torch.where(probs > 0, probs.double().cumsum(-1), 0.0)
    level = u.double()[:, None] * cdf.amax(-1, keepdim=True)
    # Where there are several largest values, argmax returns the first.
    return (cdf > level).to(torch.uint8).argmax(-1)


def _check_rows(model: AutoregressiveTranslationNetwork, source: Tensor, u: Tensor) -> None:
    if u.shape[1] > model.length:
        raise ValueError(f"u is for {u.shape[1]} tokens, the model's targets have {model.length}")
    if len(u) % len(source):
        raise ValueError(f"{len(u)} rows of u are not as many for each of {len(source)} sources")
    if not ((u >= 0) & (u < 1)).all():
        raise ValueError("the uniform numbers u must be at least 0 and below 1")


def _check(
    model: AutoregressiveTextNetwork, is_given: Tensor, u: Tensor, suppress: Sequence[int]
) -> None:
    if is_given.shape[1] > model.length:
        raise ValueError(
            f"the sequences have {is_given.shape[1]} tokens, the model's at most {model.length}"
        )
    after_gap = is_given[:, 1:] & ~is_given[:, :-1]
    if after_gap.any():
        row, position = (int(i) for i in after_gap.nonzero()[0])
        raise ValueError(
            f"row {row} has a given token at position {position + 1} after a position that is not "
            f"given; an autoregressive model can only continue a beginning"
        )
    if not ((u >= 0) & (u < 1)).all():
        raise ValueError("the uniform numbers u must be at least 0 and below 1")
    unknown = [token for token in suppress if not 0 <= token < model.vocab_size]
    if unknown:
        raise ValueError(
            f"suppress has token {unknown[0]}, the model's are 0 to {model.vocab_size - 1}"
        )
    if len(set(suppress)) == model.vocab_size:
        raise ValueError("suppress has every token of the vocabulary; leave at least one")
