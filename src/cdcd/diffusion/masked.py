"""Masked diffusion (Sahoo et al., 2024): tokens are hidden instead of blurred, and predicted from the others.

At time t in [0, 1] each of n open tokens is masked with probability t, independently. A network that predicts
the masked tokens from the visible ones bounds the likelihood, in two ways that are the same:

    −ln p(tokens) ≤ ∫₀¹ E[Σ_masked −ln p(token | visible)] / t dt = n · E_k[Σ_masked −ln p(token | visible) / k]

The integral over t of the chance to mask k tokens, divided by t, is 1/k: so k is drawn uniformly from 1 … n,
and then k tokens at random. That is the second form, which is computed here: it has the smaller variance, and
something is always masked. The bound is tight for a network that knows the exact posteriors, whose conditional
probabilities follow the chain rule in every order.

A mask is never predicted, since no logit stands for it, and visible tokens stay what they are.

NOTE(paper): masked diffusion is not in the paper; it is here to be compared with.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.diffusion.draws import uniform_times
from cdcd.diffusion.logits import cross_entropies, noisy_positions, put, take
from cdcd.diffusion.masking import conditioning_masks, most_noisy, prefix_share
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.seeding import generator_for
from cdcd.settings import Greedy, PositiveShare, Repeats, Settings


@dataclass(frozen=True, kw_only=True)
class UnmaskingConfig(Settings):
    """Sampling of masked models: an equal share of the masked tokens is drawn in each step."""

    num_steps: Repeats = 200
    """Largest number of network calls; with as many calls as tokens, each draws one token."""
    order: Literal["random", "confidence"] = "random"
    """Tokens that are drawn first: `random` ones (ancestral sampling) or those that the model is most confident
    of."""
    temperature: Greedy = 1.0
    """Divisor of the logits; 0: always the most likely token."""
    nucleus: PositiveShare = 1.0
    """Probability mass of the most likely tokens that are kept."""


@runtime_checkable
class MaskedNetwork(Protocol):
    """Predicts masked tokens from the visible ones, at all positions or at some of the flattened batch.

    It must not look at tokens under a mask: they may be the answers.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_masked: Bool[Tensor, "batch seq"],
        *,
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]: ...


@dataclass(frozen=True, kw_only=True)
class MaskDraws:
    """Everything random about a batch, or a part of one, apart from the data."""

    is_masked: Bool[Tensor, "batch seq"]
    num_open: Int[Tensor, " batch"]
    """Number of tokens that are not given, of which the masked ones were drawn."""
    predicted: Int[Tensor, " predicted"] | None = None
    """Positions in the flattened batch that the network predicts, each once; None: all."""


@dataclass(frozen=True)
class MaskedBound:
    """Estimates, one for each sequence, of the bound on −ln p of its open tokens given the others."""

    nats: Float[Tensor, " batch"]
    """Unbiased over the draws."""
    logits: Float[Tensor, "predicted vocab"]
    """The network's predictions at the predicted positions, in its precision."""


def masked_bound(
    network: MaskedNetwork, tokens: Int[Tensor, "batch seq"], draws: MaskDraws
) -> MaskedBound:
    """Returns the bound of a batch as a function of its drawn masks."""
    is_masked, predicted = draws.is_masked, draws.predicted
    logits = network(tokens, is_masked, positions=predicted).flatten(0, -2)
    nll = put(cross_entropies(logits, take(tokens, predicted)), predicted, tokens.shape)
    weights = draws.num_open / is_masked.sum(1)
    return MaskedBound(weights * nll.masked_fill(~is_masked, 0.0).sum(1), logits)


def mask_counts(
    u: Float[Tensor, " batch"], num_open: Int[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """Returns the number of tokens to mask, 1 … num_open, at uniform times in [0, 1]."""
    # The product of a float32 and a length is exact in float64, so that pairs add up.
    return (u.double() * num_open).ceil().long().clamp(min=1)


def masks_of(
    is_open: Bool[Tensor, "batch seq"],
    counts: Int[Tensor, " batch"],
    *,
    generator: torch.Generator,
) -> Bool[Tensor, "batch seq"]:
    """Masks so many of each row's open tokens, chosen at random."""
    scores = torch.rand(is_open.shape, generator=generator, device=generator.device)
    ranks = scores.masked_fill(~is_open, 2.0).argsort(1).argsort(1)
    return ranks < counts[:, None]


def paired_counts(
    num_open: Int[Tensor, " batch"], *, low_discrepancy: bool, generator: torch.Generator
) -> Int[Tensor, " batch"]:
    """Returns numbers of tokens to mask, in pairs of k and n + 1 − k, two rows apart (see `masking`)."""
    batch, rows = len(num_open), torch.arange(len(num_open), device=generator.device)
    num_pairs = batch // 4 * 2 + min(batch % 4, 2)
    u = uniform_times(num_pairs, low_discrepancy=low_discrepancy, generator=generator)
    counts = mask_counts(u[rows // 4 * 2 + rows % 2], num_open)
    return torch.where(rows & 2 > 0, num_open + 1 - counts, counts)


def open_tokens(
    batch: int, length: int, objective: ObjectiveConfig, *, generator: torch.Generator
) -> Bool[Tensor, "batch seq"]:
    """Returns True for tokens that can be masked: all but the prefixes that some sequences are given.

    Random given tokens (§4.1) need no masks of their own: every visible token is a given one, and the
    masks leave random subsets visible, of every size alike. Prefixes are rare among these.
    """
    prefixes = replace(objective, masking="prefix")
    is_open = conditioning_masks(batch, length, prefixes, generator=generator)
    has_prefix = torch.rand(batch, 1, generator=generator, device=generator.device)
    return is_open | (has_prefix >= prefix_share(objective))


@cache
def most_masked(rows: range, length: int) -> int:
    """Returns the most tokens that can be masked in some rows of a batch."""
    return most_noisy(rows, length, ObjectiveConfig(masking="random"))


def masks_for_step(
    batch: int,
    length: int,
    objective: ObjectiveConfig,
    *,
    seed: int,
    step: int,
    device: torch.device | str = "cpu",
    rows: range | None = None,
) -> MaskDraws:
    """Returns the draws of a training step, of the whole batch or of some of its rows."""
    rows = range(batch) if rows is None else rows
    generator = generator_for(seed, "masks", step, device=device)
    is_open = open_tokens(batch, length, objective, generator=generator)
    num_open = is_open.sum(1)
    low_discrepancy = objective.low_discrepancy
    counts = paired_counts(num_open, low_discrepancy=low_discrepancy, generator=generator)
    is_masked = masks_of(is_open, counts, generator=generator)[rows.start : rows.stop]
    return MaskDraws(
        is_masked=is_masked,
        num_open=num_open[rows.start : rows.stop],
        predicted=noisy_positions(is_masked, most_masked(rows, length)),
    )
