"""Beam search: the targets to which an autoregressive translator gives the highest scores (§6.6).

score(target) = ln p(target | source) / ((5 + length) / 6)^α        (Wu et al., 2016)

A hypothesis ends with EOS, which its length counts. The live ones, which have not ended, are ordered by
ln p, being equally long; those that have are kept apart and ordered by score. Of twice as many
extensions as are kept, those that end are compared with what is kept, and the best others
live on. A sentence is done when no live hypothesis can come to a score above the best one kept.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cdcd.config import BeamConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.networks.attention import KeyValueCache
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Targets for each sentence, best first."""

    tokens: Int[Tensor, "batch beam seq"]
    """Padded after the EOS."""
    scores: Float[Tensor, "batch beam"]
    """−∞ where there is no hypothesis."""

    def best(self) -> Int[Tensor, "batch seq"]:
        return self.tokens[:, 0]


@torch.no_grad()
def beam_search(
    model: AutoregressiveTranslationNetwork, source: Int[Tensor, "batch source"], config: BeamConfig
) -> Hypotheses:
    """Returns the best targets that the search reaches for each source; they do not depend on its batch.

    At the last position only EOS is allowed, so every hypothesis has the score that the model gives
    it. The precision is that of the model, or of torch.autocast around it.
    """
    assert not model.training
    batch, beam, length = len(source), config.beam_size, config.max_length or model.length
    if length > model.length:
        raise ValueError(f"max_length is {length}, the model's targets have at most {model.length}")
    memory, caches = model.encode(source), model.new_caches(batch * beam, length)
    inputs, positions = model.start(batch * beam), torch.arange(length, device=source.device)
    nothing = torch.full((batch, beam, length), PAD, device=source.device)
    ended = Hypotheses(nothing, torch.full((batch, beam), -torch.inf, device=source.device))
    # All rows of a sentence are the same at the start: only one counts.
    live = Hypotheses(nothing, ended.scores.index_fill(1, positions[:1], 0.0))
    for i in range(length):
        logits = model.next_logits(inputs, positions[i : i + 1], memory, caches)
        extended, parents = _extend(live, logits, i, is_last=i == length - 1)
        ended = _keep_ended(ended, extended, i, config)
        unended = extended.scores.masked_fill(extended.tokens[:, :, i] == EOS, -torch.inf)
        live, chosen = _best(extended.tokens, unended, beam)
        live.scores.masked_fill_(_is_done(live, ended, i + 1, length, config)[:, None], -torch.inf)
        if not live.scores.isfinite().any():
            break
        _follow(caches, parents.gather(1, chosen))
        inputs = live.tokens[:, :, i].reshape(-1, 1)
    is_empty = ended.scores.isneginf()[..., None]
    return Hypotheses(ended.tokens.masked_fill(is_empty, PAD), ended.scores)


def _follow(caches: list[KeyValueCache], parents: Int[Tensor, "batch beam"]) -> None:
    """Gives each live hypothesis the cache of the one that it extends."""
    batch, beam = parents.shape
    rows = parents + beam * torch.arange(batch, device=parents.device)[:, None]
    for cache in caches:
        cache.reorder(rows.flatten())


def _extend(
    live: Hypotheses, logits: Float[Tensor, "rows vocab"], i: int, *, is_last: bool
) -> tuple[Hypotheses, Int[Tensor, "batch extended"]]:
    """Returns the best extensions by one token, by ln p, and the live hypothesis that each extends.

    Each live hypothesis ends in one way, so twice their number leaves enough that have not ended.
    """
    batch, beam = live.scores.shape
    precision = torch.promote_types(logits.dtype, torch.float32)
    log_probs = torch.log_softmax(logits, dim=-1, dtype=precision)
    allowed = torch.full_like(log_probs[0], -torch.inf if is_last else 0.0)
    allowed[EOS], allowed[PAD] = 0.0, -torch.inf
    scores = live.scores[..., None] + (log_probs + allowed).unflatten(0, (batch, beam))
    vocab = scores.shape[-1]
    best, indices = scores.flatten(1).topk(min(2 * beam, beam * vocab), dim=1)
    parents = indices // vocab
    tokens = _gather(live.tokens, parents)
    tokens[:, :, i] = indices % vocab
    return Hypotheses(tokens, best), parents


def _keep_ended(ended: Hypotheses, extended: Hypotheses, i: int, config: BeamConfig) -> Hypotheses:
    """Returns the best hypotheses that have ended, now or before."""
    scores = extended.scores.masked_fill(extended.tokens[:, :, i] != EOS, -torch.inf)
    scores = torch.cat([ended.scores, scores / config.penalty(i + 1)], dim=1)
    return _best(torch.cat([ended.tokens, extended.tokens], dim=1), scores, config.beam_size)[0]


def _best(
    tokens: Int[Tensor, "batch hypotheses seq"],
    scores: Float[Tensor, "batch hypotheses"],
    count: int,
) -> tuple[Hypotheses, Int[Tensor, "batch kept"]]:
    """Returns the hypotheses with the highest scores, and their indices."""
    scores, indices = scores.topk(count, dim=1)
    return Hypotheses(_gather(tokens, indices), scores), indices


def _gather(
    values: Shaped[Tensor, "batch beam seq"], indices: Int[Tensor, "batch kept"]
) -> Shaped[Tensor, "batch kept seq"]:
    return values.gather(1, indices[..., None].expand(-1, -1, values.shape[2]))


def _is_done(
    live: Hypotheses, ended: Hypotheses, read: int, length: int, config: BeamConfig
) -> Bool[Tensor, " batch"]:
    """Returns whether the best live hypothesis would lose even if all further tokens were certain."""
    log_prob = live.scores[:, 0]
    # The penalty is monotonic in the length, so the highest score is at the first or last end.
    first, last = config.penalty(min(read + 1, length)), config.penalty(length)
    return ended.scores[:, 0] >= torch.maximum(log_prob / first, log_prob / last)
