"""Stories drawn from the model of stories, the rule by which some are kept, and the entropy of those.

Each token is drawn at temperature 1 by inverting the distribution function at a uniform number. A
draw is kept if it ends (by `BEGIN`) within the context, is not white space alone, and has the canonical tokens of
its text, so that a kept text has one sequence of tokens. With Z the probability of being kept

    ln q(text) = ln p(tokens) − ln Z,     H(q) = −E_q[ln p(tokens)] + ln Z,

and Z is estimated by the share of draws that are kept. The law is that of the model that draws: in
bfloat16 it differs from the model in float32 by a divergence that is measured, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.languages.story_model import CONTEXT, StoryModel, story_log_probs
from cdcd.languages.story_tokenizer import BEGIN, END, StoryTokenizer
from cdcd.metrics.intervals import Interval, ratio_interval, share_interval
from cdcd.seeding import generator_for

BLOCK = 128
"""Neighbouring tokens whose probabilities are summed before the distribution function is inverted."""
STRETCH = 64
"""Positions by which the part of the cache that is read grows."""
SEEDED_TOGETHER = 64
"""Stories that share a generator: draws are a function of (seed, number of the story)."""


def invert(
    logits: Float[Tensor, "batch vocab"], uniform: Float[Tensor, " batch"]
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Draws the first token whose distribution function is above a uniform number; returns its ln p too.

    Sums are in float64, in two levels: first a block of tokens is chosen, then a token of it.
    """
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    blocks = F.pad(weights, (0, -logits.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    block = _first_above(cumulative, target)
    before = F.pad(cumulative, (1, 0)).gather(1, block)
    inside = blocks[torch.arange(len(block), device=block.device), block[:, 0]]
    token = block * BLOCK + _first_above(inside.double().cumsum(-1), target - before)
    token = token.clamp(max=logits.shape[1] - 1)
    log_prob = weights.gather(1, token).double().log() - cumulative[:, -1:].log()
    return token[:, 0], log_prob[:, 0]


def _first_above(cumulative: Tensor, target: Tensor) -> Int[Tensor, "batch 1"]:
    index = torch.searchsorted(cumulative, target, right=True)
    return index.clamp(max=cumulative.shape[1] - 1)


def uniform_numbers(seed: int, first: int, count: int) -> Float[Tensor, "stories context"]:
    """Returns the uniform numbers of stories, whatever the batches that they are drawn in."""
    if first % SEEDED_TOGETHER or count % SEEDED_TOGETHER:
        raise ValueError(f"stories are drawn {SEEDED_TOGETHER} at a time, not {count} from {first}")
    shape = (SEEDED_TOGETHER, CONTEXT)
    groups = range(first // SEEDED_TOGETHER, (first + count) // SEEDED_TOGETHER)
    return torch.cat(
        [
            torch.rand(shape, generator=generator_for(seed, "stories", group), dtype=torch.float64)
            for group in groups
        ]
    )


@dataclass(frozen=True)
class Draws:
    """Sequences as they were drawn, going on after their ends, and ln p of each drawn token."""

    tokens: Int[Tensor, "stories drawn"]
    log_probs: Float[Tensor, "stories drawn"]


def plain(work: Callable[[], None]) -> Callable[[], None]:
    """Does work again each time: the alternative to recording it as a CUDA graph."""
    return work


class StorySampler:
    """Draws batches of stories; `record` turns the work of a step into a faster way to do it again."""

    def __init__(
        self,
        model: StoryModel,
        batch_size: int,
        *,
        length: int = CONTEXT,
        record: Callable[[Any], Any] = plain,
    ) -> None:
        self.model, self.length, device = model, length, model.device
        # One token more: each position's draw is the next one's input.
        self.tokens = torch.full((batch_size, length + 1), BEGIN, device=device)
        self.log_probs = torch.zeros(batch_size, length, dtype=torch.float64, device=device)
        self.uniform = torch.zeros(batch_size, length, dtype=torch.float64, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.cache = model.new_cache(batch_size)
        with torch.no_grad():
            lengths = range(STRETCH, length + STRETCH, STRETCH)
            self.steps = [record(lambda length=length: self._step(length)) for length in lengths]

    @torch.no_grad()
    def draw(self, uniform: Float[Tensor, "stories context"]) -> Draws:
        """Draws a sequence for each row of uniform numbers, without waiting for a GPU to finish."""
        self.uniform.copy_(uniform[:, : self.length])
        self.position.zero_()
        for position in range(self.length):
            self.steps[position // STRETCH]()
        return Draws(self.tokens[:, 1:].clone(), self.log_probs.clone())

    def _step(self, length: int) -> None:
        """Draws the token after the position, reading the first `length` positions of the cache."""
        given = self.tokens.index_select(1, self.position)[:, 0]
        logits = self.model.next_logits(given, self.position, self.cache.first(length))
        token, log_prob = invert(logits, self.uniform.index_select(1, self.position)[:, 0])
        self.log_probs.index_copy_(1, self.position, log_prob[:, None])
        self.tokens.index_copy_(1, self.position + 1, token[:, None])
        self.position.add_(1)


KEPT, TOO_LONG, EMPTY, ENDED, NOT_CANONICAL = (
    *("kept", "no end within the context", "empty", "ended by another token"),
    "not the canonical tokens of a text",
)
"""The outcomes of a draw."""


@dataclass(frozen=True)
class Story:
    """A draw up to its end."""

    outcome: str
    tokens: list[int]
    """Its tokens with the one that ends it."""
    log_prob: float
    """ln p of these by the model that drew them."""
    text: str = ""


def read_draws(draws: Draws, tokenizer: StoryTokenizer) -> list[Story]:
    """Cuts draws at their ends and applies the rule by which stories are kept."""
    is_end = (draws.tokens == BEGIN) | (draws.tokens == END)
    ends = torch.where(is_end.any(1), is_end.long().argmax(1) + 1, draws.tokens.shape[1])
    counted = torch.arange(draws.tokens.shape[1], device=ends.device) < ends[:, None]
    log_probs = (draws.log_probs * counted).sum(1).tolist()
    rows = zip(draws.tokens.tolist(), ends.tolist(), log_probs, strict=True)
    return [_story(row[:end], log_prob, tokenizer) for row, end, log_prob in rows]


def _story(tokens: list[int], log_prob: float, tokenizer: StoryTokenizer) -> Story:
    *inside, last = tokens
    if last not in (BEGIN, END):
        return Story(TOO_LONG, tokens, log_prob)
    if last == END:
        return Story(ENDED, tokens, log_prob)
    text = tokenizer.decode(inside)
    if text is None:
        return Story(NOT_CANONICAL, tokens, log_prob)
    if not text.strip():
        return Story(EMPTY, tokens, log_prob)
    return Story(KEPT, tokens, log_prob, text)


@torch.no_grad()
def score_stories(
    model: StoryModel, stories: list[list[int]], batch_size: int
) -> Float[Tensor, " stories"]:
    """Returns ln p of stories by their tokens, each with the one that ends it."""
    sums = [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, len(stories), batch_size):
        batch = stories[start : start + batch_size]
        longest = max(map(len, batch))
        rows = torch.tensor([[BEGIN, *row, *[BEGIN] * (longest - len(row))] for row in batch])
        log_probs = story_log_probs(model, rows.to(model.device))
        counted = torch.arange(longest) < torch.tensor([len(row) for row in batch])[:, None]
        sums.append((log_probs.cpu() * counted).sum(1))
    return torch.cat(sums)


@dataclass(frozen=True)
class StoryEntropy:
    """The entropy of kept stories, with 95% intervals over stories; the end of a story is a token.

    The error of ln Z is not in them: it is that of `kept_share`, and small beside the stories' own.
    """

    kept_share: Interval
    """Share of the draws that are kept: the estimate of Z."""
    nats_per_story: Interval
    """Entropy of a kept story, ln Z included: exact for the law that drew it."""
    nats_per_token: Interval
    bits_per_byte: Interval
    """Per byte of UTF-8, the end of a story being one."""
    tokens_per_story: Interval
    divergence: Interval
    """KL(law that drew, model in float32) in nats a token: NLL by the model in float32 is higher by it."""


def story_entropy(
    num_draws: int,
    num_kept: int,
    log_probs: Float[Tensor, " stories"],
    scores: Float[Tensor, " stories"],
    num_tokens: Int[Tensor, " stories"],
    num_bytes: Int[Tensor, " stories"],
) -> StoryEntropy:
    """Estimates the entropy from kept stories' ln p by the model that drew them, and by that in float32."""
    kept = share_interval(num_kept, num_draws)
    nats = -log_probs + torch.tensor(kept.value, dtype=torch.float64).log()
    ones = torch.ones_like(num_tokens)
    in_bits = nats / torch.tensor(2.0, dtype=torch.float64).log()
    return StoryEntropy(
        kept_share=kept,
        nats_per_story=ratio_interval(nats, ones),
        nats_per_token=ratio_interval(nats, num_tokens),
        bits_per_byte=ratio_interval(in_bits, num_bytes),
        tokens_per_story=ratio_interval(num_tokens, ones),
        divergence=ratio_interval(log_probs - scores, num_tokens),
    )
