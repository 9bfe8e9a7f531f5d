"""Translators in training (§4.4): their batches are rows of [source | target].

What is predicted is the target, by the same losses as a language model's. The source is encoded once a
step, for both passes of the decoder.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

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


def all_blocks(model: DiffusionTranslationNetwork | AutoregressiveTranslationNetwork) -> nn.Module:
    """The blocks of both stacks."""
    return nn.ModuleList([model.encoder.blocks, model.blocks])


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Make dropout, which draws from torch's own generators, a function of (seed, step, rank)."""
    drawn = torch.randint(2**62, (), generator=generator_for(seed, "dropout", step, world.rank))
    torch.manual_seed(int(drawn))
