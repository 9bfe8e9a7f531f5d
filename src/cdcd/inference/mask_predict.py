"""Mask-predict decoding: predictions become given tokens, the most confident first.

A model that was trained on masks (§4.1) predicts every token from those that are given. So it can be asked
for all of them at full noise, be given the predictions that it is most confident of, and be asked again,
as masked language models are (Ghazvininejad et al., 2019). A sample of the ODE is one of many texts that are
likely together; this decoder looks for a text that is likely by itself, where one is wanted, as in
translation.

NOTE(paper): this is not in the paper. No score is followed: the noise only fills the positions of tokens
that are not given yet. Predictions are fed back from one round to the next, as they are between steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import DecodingConfig, MaskPredictConfig
from cdcd.data.vocabulary import PAD
from cdcd.diffusion.estimator import EstimatorFor
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.decoding import draw


@dataclass(frozen=True)
class Predicted:
    """Tokens, and the model's confidence in them."""

    tokens: Int[Tensor, "batch seq"]
    confidence: Float[Tensor, " batch"]
    """The mean of ln p over the predicted tokens, each in its round; 0 where it is not known."""


@torch.no_grad()
def mask_predict(
    estimator_for: EstimatorFor,
    tokens: Int[Tensor, "batch seq"],
    is_noisy: Bool[Tensor, "batch seq"],
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    config: MaskPredictConfig,
    *,
    u: Float[Tensor, "batch seq"],
    never: Sequence[int] = (),
    state: Any = None,
    callback: Callable[[StepInfo], None] | None = None,
) -> Predicted:
    """Predicts the noisy tokens, an equal share in each round; x is noise at the highest level t.

    `u` is uniform in [0, 1), for tokens drawn at a temperature; tokens in `never` are not predicted.
    """
    count = is_noisy.sum(1)
    total = torch.zeros_like(t)
    level = 0.0 if callback is None else float(t[0])
    for index in range(config.num_rounds):
        estimate = estimator_for(tokens, is_noisy)(x, t, state)
        state = estimate.state
        logits = estimate.logits[is_noisy].to(u.dtype)
        logits[:, list(never)] = -torch.inf
        predicted, log_p = choose(torch.log_softmax(logits, -1), config.temperature, u[is_noisy])
        confidence = torch.full_like(u, -torch.inf).masked_scatter(is_noisy, log_p)
        rounds_left = config.num_rounds - index
        num = (is_noisy.sum(1, keepdim=True) + rounds_left - 1) // rounds_left
        is_new = is_noisy & (_ranks(confidence) < num)
        tokens = torch.where(is_new, tokens.masked_scatter(is_noisy, predicted), tokens)
        total = total + confidence.masked_fill(~is_new, 0.0).sum(1)
        is_noisy = is_noisy & ~is_new
        if callback is not None:
            callback(StepInfo(index, config.num_rounds, level, estimate))
        if not is_noisy.any():
            break
    return Predicted(tokens, total / count.clamp(min=1))


def ends_at(
    logits: Float[Tensor, "batch seq vocab"],
    quantiles: Float[Tensor, " batch"],
    temperature: float = 1.0,
) -> Int[Tensor, "batch 1"]:
    """Returns the position of each target's end, at a quantile of its length by the probabilities of padding.

    The end is at or before position i if i + 1 is padding; it is at the last position at the latest. At a
    temperature T the probabilities of the lengths are p^(1/T), normalised.
    """
    p = torch.softmax(logits.to(quantiles.dtype), dim=-1)[..., PAD]
    # There is at least an end, and no text after padding.
    before = F.pad(p.cummax(1).values[:, 1:], (0, 1), value=1.0)
    if temperature != 1.0:
        likely = before.diff(dim=1, prepend=torch.zeros_like(before[:, :1]))
        before = torch.softmax(likely.log() / temperature, dim=1).cumsum(1)
    is_before_end = before[:, :-1] < quantiles[:, None]
    return is_before_end.sum(1, keepdim=True)


def choose(
    log_p: Float[Tensor, "positions vocab"], temperature: float, u: Float[Tensor, " positions"]
) -> tuple[Int[Tensor, " positions"], Float[Tensor, " positions"]]:
    """Returns a token for each position, the most probable or drawn at a temperature, and its ln p."""
    drawn = draw(log_p, u, DecodingConfig(temperature=temperature))
    return drawn, log_p.gather(-1, drawn[:, None])[:, 0]


def _ranks(values: Float[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Returns the rank of each value in its row, 0 for the largest."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
