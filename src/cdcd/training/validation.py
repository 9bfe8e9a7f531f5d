"""Validation: cross-entropy, accuracy and prediction entropy at fixed noise levels, on held-out text."""

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.data.vocabulary import PAD
from cdcd.diffusion.draws import conditioning_masks
from cdcd.diffusion.estimator import Network
from cdcd.diffusion.objective import Draws, Room, training_loss
from cdcd.diffusion.warping import NoiseSchedule, from_unit
from cdcd.seeding import generator_for

NUM_LEVELS = 12


@runtime_checkable
class Report(Protocol):
    """What every validation says: a loss in nats a token, and more by model."""

    @property
    def loss(self) -> float: ...
    @property
    def compared(self) -> float:
        """What a better model has less of, whatever its time warp: training may stop by it."""
        ...

    def as_dict(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class TokenReport:
    """Next-token prediction: nats a token."""

    loss: float
    num_tokens: int

    @property
    def compared(self) -> float:
        return self.loss

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class LevelReport:
    """How well tokens are told at one noise level."""

    t: float
    loss: float
    accuracy: float
    entropy: float
    text_loss: float
    """The loss without padding, which is easily told and can be most of a sequence."""


@dataclass(frozen=True)
class ValidationReport:
    """The levels, and the loss averaged over uniform time u, with padding and without."""

    loss: float
    text_loss: float
    levels: list[LevelReport]

    @property
    def compared(self) -> float:
        """The mean over the fixed levels: those of uniform time move with the warp."""
        return fmean(level.text_loss for level in self.levels)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@torch.no_grad()
def validate(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "sequences length"],
    schedule: NoiseSchedule,
    config: RunConfig,
) -> ValidationReport:
    """Validate with draws that are the same every time: masks as in training, noise by level."""
    device = table.device
    generator = generator_for(config.training.seed, "validation", device=device)
    batch, length = tokens.shape
    is_noisy = conditioning_masks(batch, length, config.objective, generator=generator)
    eps = torch.randn(batch, length, table.shape[1], generator=generator, device=device)
    fractions = torch.linspace(0, 1, NUM_LEVELS)
    by_level = [float(t) for t in from_unit(fractions, config.process, "log")]
    middles = (torch.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    by_time = [float(t) for t in schedule.noise_levels(middles.to(device))]

    def at(t: float) -> LevelReport:
        return _at_level(network, table, tokens, is_noisy, eps, t, config)

    found = [at(t) for t in by_time]
    return ValidationReport(
        loss=fmean(each.loss for each in found),
        text_loss=fmean(each.text_loss for each in found),
        levels=[at(t) for t in by_level],
    )


def _at_level(
    network: Network,
    table: Tensor,
    tokens: Tensor,
    is_noisy: Tensor,
    eps: Tensor,
    t: float,
    config: RunConfig,
) -> LevelReport:
    draws = Draws(
        t=torch.full((len(tokens),), t, device=tokens.device),
        eps=eps,
        is_noisy=is_noisy,
        is_dropped=torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device),
    )
    losses = training_loss(
        network,
        table,
        tokens,
        draws,
        objective=config.objective,
        embedding=config.embedding,
        room=Room(int(is_noisy.sum()), None),
    )
    log_probs = torch.log_softmax(losses.logits.to(table.dtype), dim=-1)
    targets = losses.selection.take(tokens)
    right = (losses.logits.argmax(-1) == targets).float()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    picked = -log_probs.gather(-1, targets[..., None])[..., 0]
    of_text = picked[targets != PAD]
    return LevelReport(t, *(float(values.mean()) for values in (picked, right, entropy, of_text)))
