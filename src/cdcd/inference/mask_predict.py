"""Settling: tokens become given one after another, the surest first.

A model that was trained on masks (§4.1) tells every token from those that are given. So it can be asked
for all of them at full noise, be given the surest of its answers, and be asked again (as masked language
models are: Ghazvininejad et al., 2019). A sample of the ODE is one of many texts that are likely
together; this goes for a text that is likely by itself, where one is wanted, as in translation.

NOTE(paper): this is not in the paper. No score is followed: the noise only fills the places of tokens
that are not given yet. Predictions are fed back from one round to the next, as they are between steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.positions import put, take
from cdcd.diffusion.sampling import SamplingConfig, StepInfo

Given = Callable[[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]], Estimator]
"""The estimator that is given these tokens, but for the noisy ones."""


@dataclass(frozen=True)
class Settled:
    """Tokens, and how sure they were."""

    tokens: Int[Tensor, "batch seq"]
    log_probability: Float[Tensor, " batch"]
    """The mean of ln p over the tokens that were settled, each when it was."""


@torch.no_grad()
def settle(
    given: Given,
    tokens: Int[Tensor, "batch seq"],
    is_noisy: Bool[Tensor, "batch seq"],
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    config: SamplingConfig,
    *,
    u: Float[Tensor, "batch seq"],
    never: Sequence[int] = (),
    state: Any = None,
    callback: Callable[[StepInfo], None] | None = None,
) -> Settled:
    """Settle the noisy tokens in `num_steps` rounds at the most, as many in each; at full noise x, t.

    `u` is uniform in [0, 1), for tokens that are drawn (`settle_temperature`); those in `never` are not.
    """
    count = is_noisy.sum(1)
    total = torch.zeros_like(t)
    level = 0.0 if callback is None else float(t[0])
    for index in range(config.num_steps):
        estimate = given(tokens, is_noisy)(x, t, state)
        state = estimate.state
        chosen, log_p = _answers(estimate, never, config.settle_temperature, u)
        rounds_left = config.num_steps - index
        num = (is_noisy.sum(1, keepdim=True) + rounds_left - 1) // rounds_left
        is_new = is_noisy & (_ranks(log_p.masked_fill(~is_noisy, -torch.inf)) < num)
        tokens = torch.where(is_new, chosen, tokens)
        total = total + log_p.masked_fill(~is_new, 0.0).sum(1)
        is_noisy = is_noisy & ~is_new
        if callback is not None:
            callback(StepInfo(index, config.num_steps, level, estimate))
        if not is_noisy.any():
            break
    return Settled(tokens, total / count.clamp(min=1))


def _answers(
    estimate: Estimate, never: Sequence[int], temperature: float, u: Float[Tensor, "batch seq"]
) -> tuple[Int[Tensor, "batch seq"], Float[Tensor, "batch seq"]]:
    """A token for each place that was predicted, and its ln p."""
    log_p = torch.log_softmax(_without(estimate.logits.to(u.dtype), never), dim=-1)
    positions = estimate.positions
    if positions is None:
        return choose(log_p, temperature, u)
    chosen, log_p = choose(log_p, temperature, take(u, positions))
    return put(chosen, positions, u.shape), put(log_p, positions, u.shape)


def choose(
    log_p: Float[Tensor, "*places vocab"], temperature: float, u: Float[Tensor, "*places"]
) -> tuple[Int[Tensor, "*places"], Float[Tensor, "*places"]]:
    """A token for each place, and its ln p: the likeliest, or one drawn at a temperature by uniform u."""
    if temperature == 0:
        best = log_p.max(dim=-1)
        return best.indices, best.values
    cumulative = torch.softmax(log_p / temperature, dim=-1).cumsum(-1)
    # Rounding can leave the last sum below u: the last token that is possible is taken then.
    last = torch.isfinite(log_p).long().cumsum(-1).argmax(-1, keepdim=True)
    drawn = torch.searchsorted(cumulative, u[..., None], right=True).minimum(last)
    return drawn[..., 0], log_p.gather(-1, drawn)[..., 0]


def _without(logits: Tensor, never: Sequence[int]) -> Float[Tensor, "*positions vocab"]:
    if not never:
        return logits
    is_never = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    is_never[list(never)] = True
    return logits.masked_fill(is_never, -torch.inf)


def _ranks(values: Float[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """The place of each value among those of its row, the largest first."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
