"""Sequences filled in rounds: in each, a network predicts the open tokens, and an equal share of them is kept.

A token that is kept is given in all later rounds. The most confident ones are kept first, as in mask-predict
decoding (Ghazvininejad et al., 2019), or those that come first in an order of their own: at random, that is
ancestral sampling of masked diffusion.

Each position has one uniform number, at which its token is drawn by inverting the distribution function in
float64. A noise of Gumbel's in float32 would have its tail cut off, which is sampling at a lower temperature
than is said (Zheng et al., 2025).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import DecodingConfig
from cdcd.diffusion.logits import PART
from cdcd.inference.decoding import draw

Predict = Callable[
    [int, Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]], Float[Tensor, "open vocab"]
]
"""Returns the logits of the open tokens, in order, from the others; the first argument counts the rounds."""
Chosen = tuple[Int[Tensor, " positions"], Float[Tensor, " positions"]]
"""A token for each position, and its ln p."""
Choose = Callable[[Float[Tensor, "positions vocab"], Float[Tensor, " positions"]], Chosen]
"""Chooses tokens by their ln p, at uniform numbers."""


@dataclass(frozen=True)
class Predicted:
    """Tokens, and the model's confidence in them."""

    tokens: Int[Tensor, "batch seq"]
    confidence: Float[Tensor, " batch"]
    """The mean of ln p over the predicted tokens, each in its round; 0 where it is not known."""


def fill_in_rounds(
    predict: Predict,
    choose: Choose,
    tokens: Int[Tensor, "batch seq"],
    is_open: Bool[Tensor, "batch seq"],
    u: Float[Tensor, "batch seq"],
    num_rounds: int,
    *,
    order: Float[Tensor, "batch seq"] | None = None,
) -> Predicted:
    """Fills in the open tokens: those with the largest `order` first, else the most confident ones.

    `u` is uniform in [0, 1), for tokens that are drawn.
    """
    count, total = is_open.sum(1), torch.zeros_like(u[:, 0])
    for index in range(num_rounds):
        if not is_open.any():
            break
        rounds_left = num_rounds - index
        num = (is_open.sum(1, keepdim=True) + rounds_left - 1) // rounds_left
        logits = predict(index, tokens, is_open)
        # Where the order does not depend on the tokens, the others need not be drawn.
        tried = is_open if order is None else first_of(is_open, order, num)
        drawn, log_p = _in_parts(choose, logits[tried[is_open]], u[tried])
        confidence = torch.full_like(u, -torch.inf).masked_scatter(tried, log_p)
        is_new = first_of(tried, confidence, num)
        tokens = torch.where(is_new, tokens.masked_scatter(tried, drawn), tokens)
        total = total + confidence.masked_fill(~is_new, 0.0).sum(1)
        is_open = is_open & ~is_new
    return Predicted(tokens, total / count.clamp(min=1))


def first_of(
    is_open: Bool[Tensor, "batch seq"],
    order: Float[Tensor, "batch seq"],
    num: Int[Tensor, "batch 1"],
) -> Bool[Tensor, "batch seq"]:
    """Returns a mask of so many open positions of each row, those with the largest `order`."""
    return is_open & (_ranks(order.masked_fill(~is_open, -torch.inf)) < num)


def _in_parts(
    choose: Choose, logits: Float[Tensor, "positions vocab"], u: Float[Tensor, " positions"]
) -> Chosen:
    """Chooses tokens for a part of the positions at a time, in float32 or better."""
    parts = [
        choose(torch.log_softmax(part.to(u.dtype), -1), numbers)
        for part, numbers in zip(logits.split(PART), u.split(PART), strict=True)
    ]
    drawn, log_p = zip(*parts, strict=True)
    return torch.cat(drawn), torch.cat(log_p)


def choose(
    log_p: Float[Tensor, "positions vocab"],
    u: Float[Tensor, " positions"],
    *,
    temperature: float,
    nucleus: float = 1.0,
) -> Chosen:
    """Returns a token for each position, the most probable or drawn at a temperature, and its ln p."""
    drawn = draw(log_p, u, DecodingConfig(temperature=temperature, nucleus=nucleus))
    return drawn, log_p.gather(-1, drawn[:, None])[:, 0]


def _ranks(values: Float[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Returns the rank of each value in its row, 0 for the largest."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
