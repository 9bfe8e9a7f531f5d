"""Translators in training (§4.4): their batches are rows of [source | target].

What is predicted is the target, by the same losses as a language model's. The source is encoded once a
step, for both passes of the decoder.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.data.vocabulary import PAD
from cdcd.diffusion.estimator import Network
from cdcd.diffusion.objective import Draws, index_self_conditioned
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.precision import Autocast
from cdcd.seeding import generator_for
from cdcd.training.distributed import World
from cdcd.training.tasks import AutoregressiveTextTask, DiffusionTask


class DiffusionTranslationTask(DiffusionTask[DiffusionTranslationNetwork]):
    """Score interpolation of the target, given the source; some sources are hidden, for guidance."""

    @property
    def matrices(self) -> nn.Module:
        return all_blocks(self.model)

    def vary(self, tokens: Int[Tensor, "batch both"], step: int) -> Int[Tensor, "batch both"]:
        share = self.config.data.extra_padding
        if not share:
            return tokens
        batch, length = len(tokens) * self.world.size, self.config.data.length
        generator = generator_for(self.config.training.seed, "padding", step, device=self.device)
        u = torch.rand(batch, length + 1, generator=generator, device=self.device)
        source, target = tokens.split([self.config.data.source_length, length], dim=1)
        return torch.cat([source, spread(target, share, u[self.world.rows(batch)])], dim=1)

    def draw(self, tokens: Int[Tensor, "batch both"], step: int) -> Draws:
        seed_dropout(self.config.training.seed, step, self.world)
        return super().draw(tokens, step)

    def targets(self, tokens: Int[Tensor, "batch both"]) -> Int[Tensor, "batch seq"]:
        return tokens[:, self.config.data.source_length :]

    def bind(
        self, tokens: Int[Tensor, "batch both"], is_dropped: Bool[Tensor, " batch"], first_row: int
    ) -> Network:
        objective, source = self.config.objective, tokens[:, : self.config.data.source_length]
        with self.network.precision():
            encoded = self.model.encode(source, is_dropped)
        rows = None
        if objective.self_conditioning:
            rows = index_self_conditioned(
                len(tokens), objective.self_conditioned_share, first_row, device=self.device
            )
        return Autocast(self.model.bind(encoded, rows), self.device, self.dtype)


class AutoregressiveTranslationTask(AutoregressiveTextTask[AutoregressiveTranslationNetwork]):
    """Next-token prediction of the target, with smoothed labels."""

    @property
    def matrices(self) -> nn.Module:
        return all_blocks(self.model)

    def draw(self, tokens: Int[Tensor, "batch both"], step: int) -> None:
        seed_dropout(self.config.training.seed, step, self.world)

    def targets(self, tokens: Int[Tensor, "batch both"]) -> Int[Tensor, "batch seq"]:
        return tokens[:, self.config.data.source_length :]

    def token_losses(self, tokens: Int[Tensor, "batch both"]) -> tuple[Tensor, Tensor]:
        source = tokens[:, : self.config.data.source_length]
        with self.network.precision():
            losses = self.model.loss(
                source, self.targets(tokens), self.config.training.label_smoothing
            )
        return losses.smoothed, losses.nll


def spread(
    target: Int[Tensor, "batch seq"], share: float, u: Float[Tensor, "batch seq_and_one"]
) -> Int[Tensor, "batch seq"]:
    """Put padding at random places among the tokens, up to `share` for each token, as there is room.

    `u` is uniform in [0, 1): first how much padding, then where.
    """
    length = target.shape[1]
    counts = (target != PAD).sum(1, keepdim=True)
    room = torch.minimum((share * counts).floor(), (length - counts).to(u.dtype))
    ends = counts + (u[:, :1] * (room + 1)).floor()
    places = torch.arange(length, device=target.device)
    order = u[:, 1:].masked_fill(places >= ends, 2.0).argsort(1).argsort(1)
    is_token = order < counts
    which = (is_token.cumsum(1) - 1).clamp(min=0)
    return target.gather(1, which).masked_fill(~is_token, PAD)


def all_blocks(model: DiffusionTranslationNetwork | AutoregressiveTranslationNetwork) -> nn.Module:
    """The blocks of both stacks."""
    return nn.ModuleList([model.encoder.blocks, model.blocks])


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Make dropout, which draws from torch's own generators, a function of (seed, step, rank)."""
    drawn = torch.randint(2**62, (), generator=generator_for(seed, "dropout", step, world.rank))
    torch.manual_seed(int(drawn))
