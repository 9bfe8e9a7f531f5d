"""The training objective (§3.1, §4): cross-entropy of the clean tokens at the noisy positions.

    tokens -> x0 -> x = x0 + t·eps -> logits -> cross-entropy -> per-sequence losses for the warp

`training_loss` is a deterministic function of its drawn inputs (`Draws`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.cross_entropy import cross_entropies
from cdcd.diffusion.embedding import EmbeddingConfig, Projection
from cdcd.diffusion.estimator import Network, predict_logits
from cdcd.diffusion.interpolation import expected_embedding
from cdcd.diffusion.process import add_noise
from cdcd.diffusion.selection import Selection, select_noisy


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What the network is trained on."""

    loss: Literal["cross_entropy", "score_matching"] = "cross_entropy"
    """`score_matching` is there to show why it fails: jointly trained embeddings collapse (§3.2)."""
    masking: Literal["mixed", "prefix", "random", "none"] = "mixed"
    """Which tokens are given: prefixes, random subsets, a mixture of both, or none (§4.1)."""
    prefix_share: float = 0.5
    """Share of prefix masks in mixed masking."""
    prefix_length: int | None = None
    """Fixed length of the prefixes; none: uniformly random from 0 to the sequence length − 1."""
    conditioning_dropout: float = 0.1
    """Share of sequences whose given tokens are hidden, for guidance (§6.1)."""
    self_conditioning: bool = True
    """Train the network to use its own last prediction (§4.3)."""
    self_conditioned_share: float = 0.5
    """Share of the batch that sees its own prediction; the rest sees zeros."""
    self_conditioning_lag: float = 0.0
    """The prediction that is fed back was made up to so much earlier in uniform time, as in sampling, where
    it comes from the step before; 0 (the paper): at the same noise level."""
    low_discrepancy: bool = True
    """Spread u evenly over the batch (§6.1)."""

    def __post_init__(self) -> None:
        for name in (
            "prefix_share",
            "conditioning_dropout",
            "self_conditioned_share",
            "self_conditioning_lag",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"objective.{name} is {getattr(self, name)}, it must be between 0 and 1"
                )
        if self.prefix_length is not None and self.prefix_length < 0:
            raise ValueError(f"objective.prefix_length is {self.prefix_length}, below 0")


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Everything random about one training batch, apart from the data."""

    t: Float[Tensor, " batch"]
    eps: Float[Tensor, "batch seq embed"]
    is_noisy: Bool[Tensor, "batch seq"]
    is_dropped: Bool[Tensor, " batch"]
    t_previous: Float[Tensor, " batch"] | None = None
    """Where the predictions that are fed back are made; None: at t."""

    def rows(self, rows: slice | Int[Tensor, " chosen"]) -> "Draws":
        """The draws of a part of the batch."""
        return Draws(
            t=self.t[rows],
            eps=self.eps[rows],
            is_noisy=self.is_noisy[rows],
            is_dropped=self.is_dropped[rows],
            t_previous=None if self.t_previous is None else self.t_previous[rows],
        )


@dataclass(frozen=True)
class Room:
    """How many positions can be noisy at most: only so many are predicted. None: all."""

    batch: int | None
    self_conditioned: int | None
    """Among the self-conditioned rows."""


@dataclass(frozen=True)
class Losses:
    """Sums and means of one batch: `total / num_noisy` is the loss, the rest is for warp and logs."""

    total: Float[Tensor, ""]
    num_noisy: Int[Tensor, ""]
    per_sequence: Float[Tensor, " batch"]
    """Mean cross-entropy of each sequence's noisy positions, detached: what the warp is fitted to."""
    logits: Float[Tensor, "selected vocab"]
    """The network's predictions, in its precision."""
    selection: Selection
    """Where they stand."""


def self_conditioned_rows(batch: int, share: float, first_row: int = 0) -> list[int]:
    """Rows of a part of a batch that are self-conditioned: evenly spread and fixed.

    They need not be random, since u is permuted over the rows. `first_row` is the part's place in
    the whole batch, so that the parts of a batch hold the rows that the whole would.
    """
    places = range(first_row, first_row + batch)
    return [row - first_row for row in places if int((row + 1) * share) > int(row * share)]


def index_self_conditioned(
    batch: int, share: float, first_row: int, *, device: torch.device
) -> Int[Tensor, " chosen"]:
    """The same rows, computed on the device: copying them there would end a CUDA graph."""
    if math.frexp(share)[0] == 0.5:
        # One row in two, four, …: no rounding, and nothing to sort, which is slow to compile.
        period = int(1 / share)
        return torch.arange(batch, device=device)[-(first_row + 1) % period :: period]
    count = len(self_conditioned_rows(batch, share, first_row))
    places = torch.arange(first_row, first_row + batch, dtype=torch.float64, device=device)
    is_chosen = ((places + 1) * share).floor() > (places * share).floor()
    return torch.argsort((~is_chosen).to(torch.uint8), stable=True)[:count]


def training_loss(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "batch seq"],
    draws: Draws,
    *,
    objective: ObjectiveConfig,
    embedding: EmbeddingConfig,
    first_row: int = 0,
    room: Room | None = None,
) -> Losses:
    """The loss of a batch, or a part of one from `first_row` on, as a function of its drawn inputs.

    `room` says how many positions can be noisy; without it, all can.
    """
    room = room or Room(None, None)
    x0 = F.embedding(tokens, table)
    x = add_noise(x0, draws.t, draws.eps)
    projection = Projection(renormalise=embedding.renormalise, clamp=embedding.clamp)
    x0_prev = None
    if objective.self_conditioning:
        share = objective.self_conditioned_share
        rows = index_self_conditioned(len(x), share, first_row, device=x.device)
        x0_prev = _first_predictions(
            network, table, x0, draws, rows, projection, room.self_conditioned
        )
    selection = select_noisy(draws.is_noisy, room.batch)
    logits = predict_logits(
        network,
        x,
        draws.t,
        given=x0,
        x0_prev=x0_prev,
        is_noisy=draws.is_noisy,
        is_dropped=draws.is_dropped,
        selection=selection,
    )
    return _reduce(logits, selection, table, tokens, x0, draws, objective, embedding, projection)


@torch.no_grad()
def _first_predictions(
    network: Network,
    table: Tensor,
    x0: Tensor,
    draws: Draws,
    rows: Int[Tensor, " chosen"],
    projection: Projection,
    room: int | None,
) -> Float[Tensor, "batch seq embed"]:
    """Predictions without self-conditioning for the self-conditioned rows, zeros for the others (§4.3)."""
    x0_prev = torch.zeros_like(x0)
    if not len(rows):
        return x0_prev
    part, given = draws.rows(rows), x0[rows]
    t = part.t if part.t_previous is None else part.t_previous
    selection = select_noisy(part.is_noisy, room)
    logits = predict_logits(
        network,
        add_noise(given, t, part.eps),
        t,
        given=given,
        x0_prev=None,
        is_noisy=part.is_noisy,
        is_dropped=part.is_dropped,
        selection=selection,
    )
    x0_hat = projection(expected_embedding(logits, table), table)
    x0_prev[rows] = selection.put(x0_hat)
    return x0_prev


def _reduce(
    logits: Tensor,
    selection: Selection,
    table: Tensor,
    tokens: Tensor,
    x0: Tensor,
    draws: Draws,
    objective: ObjectiveConfig,
    embedding: EmbeddingConfig,
    projection: Projection,
) -> Losses:
    cross_entropy = selection.put(cross_entropies(logits, selection.take(tokens)))
    cross_entropy = cross_entropy.masked_fill(~draws.is_noisy, 0.0)
    noisy_counts = draws.is_noisy.sum(1)
    per_sequence = (cross_entropy.sum(1) / noisy_counts).detach()
    total = cross_entropy.sum()
    if objective.loss == "score_matching":
        x0_hat = projection(expected_embedding(logits, table), table)
        total = _score_matching(selection.put(x0_hat), x0, draws)
    num_noisy = noisy_counts.sum()
    if embedding.l2_penalty:
        total = total + embedding.l2_penalty * table.square().mean() * num_noisy
    return Losses(total, num_noisy, per_sequence, logits, selection)


def _score_matching(x0_hat: Tensor, x0: Tensor, draws: Draws) -> Float[Tensor, ""]:
    """Denoising score matching weighted by t², that is |x0_hat − x0|² / t², summed over noisy positions."""
    error = ((x0_hat - x0) / draws.t[:, None, None]).square().mean(-1)
    return error.masked_fill(~draws.is_noisy, 0.0).sum()
