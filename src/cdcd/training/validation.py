"""Validation: cross-entropy, accuracy and prediction entropy at fixed noise levels, on held-out text."""

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.data.vocabulary import PAD
from cdcd.diffusion.draws import self_conditioned_index
from cdcd.diffusion.estimator import Condition, Network
from cdcd.diffusion.logits import noisy_positions, take
from cdcd.diffusion.masking import conditioning_masks
from cdcd.diffusion.objective import Draws, training_loss
from cdcd.diffusion.warping import NoiseSchedule, from_unit
from cdcd.seeding import generator_for

NUM_LEVELS = 12


@dataclass(frozen=True)
class TokenReport:
    """Next-token prediction: nats a token."""

    loss: float
    num_tokens: int


@dataclass(frozen=True)
class LevelReport:
    """The quality of the predictions at one noise level."""

    t: float
    loss: float
    accuracy: float
    entropy: float
    text_loss: float
    """The loss without padding, which is easy to predict and can be most of a sequence."""


@dataclass(frozen=True)
class ValidationReport:
    """Predictions at fixed noise levels, and their loss over the levels that training draws.

    The levels that training draws follow the warp, and the warp is fitted all the while: a loss over
    them can rise while the model improves. Only the loss at fixed levels compares two validations.
    """

    levels: list[LevelReport]
    loss_at_warp: float
    """The loss, padding included, averaged over uniform time."""
    text_loss_at_warp: float
    """The same without padding."""

    @property
    def loss(self) -> float:
        """The loss that is plotted, printed and stopped by."""
        return fmean(level.text_loss for level in self.levels)


Report = TokenReport | ValidationReport
"""The outcome of a validation: one loss in nats a token, and more by kind of model."""


@torch.no_grad()
def validate(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "sequences length"],
    schedule: NoiseSchedule,
    config: RunConfig,
    condition: Condition | None = None,
) -> ValidationReport:
    """Evaluates a diffusion model with draws that are the same every time.

    Masks are those of training, the fixed noise levels are evenly spaced in ln t.
    """
    device = table.device
    generator = generator_for(config.training.seed, "validation", device=device)
    batch, length = tokens.shape
    is_noisy = conditioning_masks(batch, length, config.objective, generator=generator)
    draws = Draws(
        t=torch.ones(batch, device=device),
        eps=torch.randn(batch, length, table.shape[1], generator=generator, device=device),
        is_noisy=is_noisy,
        is_dropped=torch.zeros(batch, dtype=torch.bool, device=device),
        self_conditioned=self_conditioned_index(config.objective, range(batch), device),
        predicted=noisy_positions(is_noisy, int(is_noisy.sum())),
    )
    targets, precision = take(tokens, draws.predicted), table.dtype

    def at(t: float) -> LevelReport:
        logits = training_loss(
            network,
            table,
            tokens,
            replace(draws, t=torch.full_like(draws.t, t)),
            objective=config.objective,
            embedding=config.embedding,
            condition=condition,
        ).logits
        return _level_report(t, logits, targets, precision)

    fractions = torch.linspace(0, 1, NUM_LEVELS)
    levels = [at(float(t)) for t in from_unit(fractions, config.process, "log")]
    middles = (torch.arange(NUM_LEVELS, device=device) + 0.5) / NUM_LEVELS
    at_warp = [at(float(t)) for t in schedule.noise_levels(middles)]
    return ValidationReport(
        levels=levels,
        loss_at_warp=fmean(level.loss for level in at_warp),
        text_loss_at_warp=fmean(level.text_loss for level in at_warp),
    )


def _level_report(
    t: float,
    logits: Float[Tensor, "predicted vocab"],
    targets: Int[Tensor, " predicted"],
    precision: torch.dtype,
) -> LevelReport:
    log_probs = torch.log_softmax(logits.to(precision), dim=-1)
    nll = -log_probs.gather(-1, targets[..., None])[..., 0]
    return LevelReport(
        t=t,
        loss=float(nll.mean()),
        accuracy=float((logits.argmax(-1) == targets).float().mean()),
        entropy=float(-(log_probs.exp() * log_probs).sum(-1).mean()),
        text_loss=float(nll[targets != PAD].mean()),
    )
