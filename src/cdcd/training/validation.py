"""Validation on held-out text: predictions at fixed noise levels, or with fixed shares of the tokens masked."""

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
from cdcd.diffusion.masked import (
    MaskDraws,
    MaskedNetwork,
    mask_counts,
    masked_bound,
    masks_of,
)
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


@dataclass(frozen=True)
class ShareReport:
    """The predictions of masked tokens where about this share of all is masked."""

    share: float
    loss: float
    accuracy: float
    entropy: float


@dataclass(frozen=True)
class MaskedReport:
    """The bound of masked diffusion on −ln p of whole sequences, in nats a token of the text.

    Of padding the bound holds the nats and the divisor nothing, as in `TokenReport`, where padding is
    certain: the two are comparable.
    """

    loss: float
    num_tokens: int
    shares: list[ShareReport]


Report = TokenReport | ValidationReport | MaskedReport
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


@torch.no_grad()
def validate_masked(
    network: MaskedNetwork, tokens: Int[Tensor, "sequences length"], config: RunConfig
) -> MaskedReport:
    """Evaluates a masked model with masks that are the same every time, and nothing given.

    The shares of masked tokens are spread evenly: each sequence has one in each twelfth of [0, 1], and the
    sequences share each twelfth out among themselves.
    """
    (batch, length), device = tokens.shape, tokens.device
    generator = generator_for(config.training.seed, "validation", device=device)
    is_open = torch.ones_like(tokens, dtype=torch.bool)
    num_open = torch.full((batch,), length, device=device)

    def at(level: int) -> tuple[Tensor, ShareReport]:
        within = torch.randperm(batch, generator=generator, device=device) + 0.5
        counts = mask_counts((level + within / batch) / NUM_LEVELS, num_open)
        is_masked = masks_of(is_open, counts, generator=generator)
        predicted = noisy_positions(is_masked, int(counts.sum()))
        draws = MaskDraws(is_masked=is_masked, num_open=num_open, predicted=predicted)
        bound = masked_bound(network, tokens, draws)
        share = float(counts.sum()) / tokens.numel()
        return bound.nats, _share_report(share, bound.logits, take(tokens, predicted))

    nats, shares = zip(*map(at, range(NUM_LEVELS)), strict=True)
    num_tokens = int((tokens != PAD).sum())
    return MaskedReport(float(torch.stack(nats).mean(0).sum()) / num_tokens, num_tokens, [*shares])


def _share_report(
    share: float, logits: Float[Tensor, "predicted vocab"], targets: Int[Tensor, " predicted"]
) -> ShareReport:
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    return ShareReport(
        share=share,
        loss=float(-log_probs.gather(-1, targets[:, None]).mean()),
        accuracy=float((logits.argmax(-1) == targets).float().mean()),
        entropy=float(-(log_probs.exp() * log_probs).sum(-1).mean()),
    )
