"""The training objective (§3.1, §4): cross-entropy of the clean tokens at the noisy positions.

    tokens -> x0 -> x = x0 + t·eps -> logits -> cross-entropy -> per-sequence losses for the warp

`training_loss` is a deterministic function of its drawn inputs (`Draws`).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.embedding import EmbeddingConfig, Projection, penalty
from cdcd.diffusion.estimator import Condition, Inputs, Network, predict_logits
from cdcd.diffusion.interpolation import expected_embedding
from cdcd.diffusion.logits import cross_entropies, put, take
from cdcd.diffusion.process import add_noise
from cdcd.settings import Bounds, Settings, Share


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Settings, section="objective"):
    """The loss, and the inputs that the network is trained on."""

    loss: Literal["cross_entropy", "score_matching"] = "cross_entropy"
    """`score_matching` is there to show why it fails: jointly trained embeddings collapse (§3.2)."""
    masking: Literal["mixed", "prefix", "random", "none"] = "mixed"
    """Tokens that are given: prefixes, random subsets, a mixture of both, or none (§4.1)."""
    prefix_share: Share = 0.5
    """Share of prefix masks in mixed masking."""
    prefix_length: Annotated[int, Bounds(0, 65_535)] | None = None
    """Fixed length of the prefixes; none: uniformly random from 0 to the sequence length − 1."""
    conditioning_dropout: Share = 0.1
    """Share of sequences whose given tokens are hidden, for guidance (§6.1)."""
    self_conditioning: bool = True
    """Train the network to use its own last prediction (§4.3)."""
    self_conditioned_share: Share = 0.5
    """Share of the batch that sees its own prediction; the rest sees zeros."""
    low_discrepancy: bool = True
    """Spread u evenly over the batch (§6.1)."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Everything random about a batch, or a part of one, apart from the data."""

    t: Float[Tensor, " batch"]
    eps: Float[Tensor, "batch seq embed"]
    is_noisy: Bool[Tensor, "batch seq"]
    is_dropped: Bool[Tensor, " batch"]
    """Rows whose conditioning is hidden: given tokens and source sentences."""
    self_conditioned: Int[Tensor, " chosen"]
    """Rows that see their own prediction (§4.3); the others see zeros."""
    predicted: Int[Tensor, " predicted"] | None = None
    """Positions in the flattened batch that the network predicts, each once; None: all."""
    predicted_first: Int[Tensor, " predicted_first"] | None = None
    """Positions in the flattened self-conditioned rows that their first predictions are made for; None: all."""


@dataclass(frozen=True)
class Losses:
    """Sums and means of one batch: `total / num_noisy` is the loss, the rest is for warp and logs."""

    total: Float[Tensor, ""]
    num_noisy: Int[Tensor, ""]
    per_sequence: Float[Tensor, " batch"]
    """Mean cross-entropy of each sequence's noisy positions, detached: what the warp is fitted to."""
    logits: Float[Tensor, "predicted vocab"]
    """The network's predictions at the predicted positions, in its precision."""


def training_loss(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "batch seq"],
    draws: Draws,
    *,
    objective: ObjectiveConfig,
    embedding: EmbeddingConfig,
    condition: Condition | None = None,
    log_l2_weight: Float[Tensor, " 1"] | None = None,
) -> Losses:
    """Returns the loss of a batch as a function of its drawn inputs.

    `log_l2_weight` is that of the embedding, where the weight of its penalty is adapted.
    """
    projection = Projection(renormalise=embedding.renormalise, clamp=embedding.clamp)
    x0 = F.embedding(tokens, table)
    x = add_noise(x0, draws.t, draws.eps)
    inputs = Inputs(
        x, draws.t, x0, is_noisy=draws.is_noisy, is_dropped=draws.is_dropped, condition=condition
    )
    x0_prev = _first_predictions(network, table, inputs, draws, projection)
    logits = predict_logits(network, inputs, x0_prev=x0_prev, positions=draws.predicted)
    nll = cross_entropies(logits, take(tokens, draws.predicted))
    nll = put(nll, draws.predicted, tokens.shape).masked_fill(~draws.is_noisy, 0.0)
    noisy_counts = draws.is_noisy.sum(1)
    num_noisy, total = noisy_counts.sum(), nll.sum()
    if objective.loss == "score_matching":
        x0_hat = projection(expected_embedding(logits, table), table)
        total = _score_matching(put(x0_hat, draws.predicted, tokens.shape), x0, draws)
    if embedding.is_penalised:
        total = total + penalty(table, embedding, log_l2_weight) * num_noisy
    return Losses(total, num_noisy, (nll.sum(1) / noisy_counts).detach(), logits)


@torch.no_grad()
def _first_predictions(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    inputs: Inputs,
    draws: Draws,
    projection: Projection,
) -> Float[Tensor, "batch seq embed"]:
    """Returns predictions without self-conditioning for the self-conditioned rows, zeros for the others."""
    x0_prev, rows = torch.zeros_like(inputs.x), draws.self_conditioned
    if len(rows):
        first, positions = inputs.rows(rows), draws.predicted_first
        logits = predict_logits(network, first, x0_prev=None, positions=positions)
        x0_hat = projection(expected_embedding(logits, table), table)
        x0_prev[rows] = put(x0_hat, positions, first.is_noisy.shape)
    return x0_prev


def _score_matching(x0_hat: Tensor, x0: Tensor, draws: Draws) -> Float[Tensor, ""]:
    """Returns the sum of |x0_hat − x0|² / t² over noisy positions: score matching weighted by t²."""
    error = ((x0_hat - x0) / draws.t[:, None, None]).square().mean(-1)
    return error.masked_fill(~draws.is_noisy, 0.0).sum()
