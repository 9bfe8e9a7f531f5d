"""What a Trainer trains: a diffusion model with its time warp, or an autoregressive one.

Both are of language models here; `training/translation.py` makes translators of them.

A task owns the model, knows its loss, and learns what is learnt beside the model. The Trainer sees
batches, gradients and checkpoints, and never asks which task it has.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.config import RunConfig
from cdcd.diffusion.draws import draw_for_step, room_for_noisy
from cdcd.diffusion.estimator import Network
from cdcd.diffusion.objective import (
    Draws,
    ObjectiveConfig,
    Room,
    self_conditioned_rows,
    training_loss,
)
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork, counted, token_nll
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.precision import Autocast
from cdcd.training.checkpoint import Tensors, with_prefix, without_prefix
from cdcd.training.compiling import compiled
from cdcd.training.distributed import ALONE, World
from cdcd.training.optimiser import make_adam
from cdcd.training.parallel import Engine
from cdcd.training.validation import Report, TokenReport, validate

D = TypeVar("D", DiffusionTextNetwork, DiffusionTranslationNetwork)
A = TypeVar("A", AutoregressiveTextNetwork, AutoregressiveTranslationNetwork)

RECENT = 8
"""Batches whose losses are kept for the picture of the warp."""


@dataclass(frozen=True)
class PartLoss:
    """The loss of a part of a batch: a sum over its targets, and each sequence's mean."""

    total: Float[Tensor, ""]
    per_sequence: Float[Tensor, " batch"]


@runtime_checkable
class Task(Protocol):
    """A model in training."""

    @property
    def model(self) -> nn.Module:
        """What gradient descent trains."""
        ...

    @property
    def matrices(self) -> nn.Module:
        """The blocks, whose matrices Muon may take."""
        ...

    @property
    def engine(self) -> Engine:
        """What runs the model on one rank or many."""
        ...

    def vary(self, tokens: Int[Tensor, "batch seq"], step: int) -> Int[Tensor, "batch seq"]:
        """This rank's rows of the batch as they are trained on."""
        ...

    def draw(self, tokens: Int[Tensor, "batch seq"], step: int) -> Any:
        """The random inputs of a step, for this rank's rows of the batch."""
        ...

    def num_targets(self, tokens: Int[Tensor, "batch seq"], drawn: Any) -> Int[Tensor, ""]:
        """How many tokens of the batch are predicted."""
        ...

    def loss(self, tokens: Int[Tensor, "batch seq"], drawn: Any, rows: slice) -> PartLoss:
        """The loss of some rows of the batch."""
        ...

    def noise_levels(self, drawn: Any) -> Float[Tensor, " batch"] | None:
        """The noise level of each row, where there is one: it is named where the loss breaks."""
        ...

    def learn_beside(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        """Learn what is learnt beside the model, from the losses of the global batch."""
        ...

    def remember(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        """Keep recent losses, for pictures."""
        ...

    def validate(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        """How well held-out text is predicted."""
        ...

    def observed(self) -> dict[str, Any]:
        """What a validation's line of metrics.jsonl says besides."""
        ...

    def weights(self) -> Tensors:
        """What is learnt beside the model, for the checkpoint."""
        ...

    def optimiser_state(self) -> Tensors:
        """What resuming needs besides."""
        ...

    def restore(self, weights: Tensors, optimiser: Tensors) -> None:
        """Put both back."""
        ...


class DiffusionTask(Generic[D]):
    """Score interpolation (§3.1) with the time warp that is fitted beside it (§3.3)."""

    def __init__(
        self,
        config: RunConfig,
        model: D,
        *,
        device: torch.device,
        dtype: torch.dtype,
        engine: Engine | None = None,
        world: World = ALONE,
    ) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        self.model, self.world = model, world
        self.engine = engine or Engine()
        self.network = Autocast(model, device, dtype)
        self.warp = TimeWarp(config.warp, config.process).to(device)
        self.warp_optimiser = make_adam(self.warp, (0.9, 0.99))
        self.warp_optimiser.set_rate(config.warp.learning_rate)
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT)
        mode = "off" if self.engine.is_sharded else config.training.compile
        self._losses = compiled(self._plain_losses, mode, device)

    @property
    def matrices(self) -> nn.Module:
        return self.model.blocks

    def vary(self, tokens: Int[Tensor, "batch seq"], step: int) -> Int[Tensor, "batch seq"]:
        return tokens

    def draw(self, tokens: Int[Tensor, "batch seq"], step: int) -> Draws:
        batch = len(tokens) * self.world.size
        return draw_for_step(
            (batch, self.targets(tokens).shape[1], self.config.embedding.dim),
            self.config.objective,
            self.warp.training_schedule(),
            seed=self.config.training.seed,
            step=step,
            device=self.device,
            rows=self.world.rows(batch),
        )

    def targets(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch targets"]:
        """What is predicted of a batch."""
        return tokens

    def bind(
        self, tokens: Int[Tensor, "batch seq"], is_dropped: Bool[Tensor, " batch"], first_row: int
    ) -> Network:
        """The network of a part of a batch, from `first_row` on."""
        return self.network

    def num_targets(self, tokens: Int[Tensor, "batch seq"], drawn: Draws) -> Int[Tensor, ""]:
        return drawn.is_noisy.sum()

    def loss(self, tokens: Int[Tensor, "batch seq"], drawn: Draws, rows: slice) -> PartLoss:
        part, objective = drawn.rows(rows), self.config.objective
        first_row = same_rows_as(
            self.world.rank * len(tokens) + rows.start,
            len(part.t),
            objective.self_conditioned_share,
        )
        room = room_for(objective, *part.is_noisy.shape, first_row)
        inputs = (part.t, part.eps, part.is_noisy, part.is_dropped, part.t_previous)
        return PartLoss(*self.engine.loss(self._losses, tokens[rows], *inputs, first_row, *room))

    def _plain_losses(
        self,
        tokens: Tensor,
        t: Tensor,
        eps: Tensor,
        is_noisy: Bool[Tensor, "batch seq"],
        is_dropped: Bool[Tensor, " batch"],
        t_previous: Float[Tensor, " batch"] | None,
        first_row: int,
        *room: int,
    ) -> tuple[Tensor, Tensor]:
        """Tensors in, tensors out: both passes of the network and the loss in one compiled graph."""
        losses = training_loss(
            self.bind(tokens, is_dropped, first_row),
            self.model.embedding.table(),
            self.targets(tokens),
            Draws(t=t, eps=eps, is_noisy=is_noisy, is_dropped=is_dropped, t_previous=t_previous),
            objective=self.config.objective,
            embedding=self.config.embedding,
            first_row=first_row,
            room=Room(*room),
        )
        return losses.total, losses.per_sequence

    def noise_levels(self, drawn: Draws) -> Float[Tensor, " batch"]:
        return drawn.t

    def learn_beside(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        assert t is not None
        self.warp.fitting_loss(t, per_sequence).backward()
        # All ranks compute this from the same losses; but a GPU may add them up in another order.
        gradients = [p.grad for p in self.warp.parameters() if p.grad is not None]
        self.world.take_from_main(*gradients)
        self.warp_optimiser.step()
        self.warp.update_average()

    def remember(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        assert t is not None
        self.recent.append((t, per_sequence))

    def validate(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        return self.engine.evaluate(self._report, tokens)

    @torch.no_grad()
    def _report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        table = self.model.embedding.table().detach()
        nothing_dropped = torch.zeros(len(tokens), dtype=torch.bool, device=self.device)
        network = self.bind(tokens, nothing_dropped, 0)
        return validate(network, table, self.targets(tokens), self.warp.schedule(), self.config)

    def observed(self) -> dict[str, Any]:
        """Noise levels and losses of recent sequences: what the warp was fitted to, for plots."""
        if not self.recent:
            return {}
        columns = zip(*self.recent, strict=True)
        t, losses = (torch.cat(column)[:512].tolist() for column in columns)
        return {"losses": {"t": t, "loss": losses}}

    def weights(self) -> Tensors:
        return with_prefix("warp", self.warp.state_dict())

    def optimiser_state(self) -> Tensors:
        tensors = with_prefix("warp", self.warp_optimiser.tensors())
        for i, (t, losses) in enumerate(self.recent):
            tensors |= {f"log.recent_t.{i}": t, f"log.recent_losses.{i}": losses}
        return tensors

    def restore(self, weights: Tensors, optimiser: Tensors) -> None:
        self.warp.load_state_dict(without_prefix("warp", weights))
        self.warp_optimiser.restore(without_prefix("warp", optimiser))
        columns = (listed(optimiser, f"log.recent_{n}", self.device) for n in ("t", "losses"))
        self.recent.extend(zip(*columns, strict=True))


class AutoregressiveTextTask(Generic[A]):
    """Next-token prediction, the baseline of Table 3 and the judge; padding is not predicted."""

    def __init__(
        self,
        config: RunConfig,
        model: A,
        *,
        device: torch.device,
        dtype: torch.dtype,
        engine: Engine | None = None,
        world: World = ALONE,
    ) -> None:
        self.config = config
        self.model, self.world = model, world
        self.engine = engine or Engine()
        self.network = Autocast(model, device, dtype)
        mode = "off" if self.engine.is_sharded else config.training.compile
        self._losses = compiled(self._plain_losses, mode, device)

    @property
    def matrices(self) -> nn.Module:
        return self.model.blocks

    def vary(self, tokens: Int[Tensor, "batch seq"], step: int) -> Int[Tensor, "batch seq"]:
        return tokens

    def draw(self, tokens: Int[Tensor, "batch seq"], step: int) -> None:
        return None

    def targets(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch targets"]:
        """What is predicted of a batch."""
        return tokens

    def token_losses(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Tensor, Tensor]:
        """What is trained on, and −ln p, of each token; zero in the padding."""
        nll = token_nll(self.network(tokens), tokens).masked_fill(~counted(tokens), 0.0)
        return nll, nll

    def num_targets(self, tokens: Int[Tensor, "batch seq"], drawn: None) -> Int[Tensor, ""]:
        return counted(self.targets(tokens)).sum()

    def loss(self, tokens: Int[Tensor, "batch seq"], drawn: None, rows: slice) -> PartLoss:
        return PartLoss(*self.engine.loss(self._losses, tokens[rows]))

    def _plain_losses(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        trained, nll = self.token_losses(tokens)
        counts = counted(self.targets(tokens)).sum(1)
        return trained.sum(), (nll.sum(1) / counts).detach()

    def noise_levels(self, drawn: None) -> None:
        return None

    def learn_beside(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        return None

    def remember(
        self, t: Float[Tensor, " batch"] | None, per_sequence: Float[Tensor, " batch"]
    ) -> None:
        return None

    def validate(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        return self.engine.evaluate(self._report, tokens)

    @torch.no_grad()
    def _report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        sums = [
            (self.token_losses(part)[1].sum(), counted(self.targets(part)).sum())
            for part in tokens.split(self.config.training.batch_size)
        ]
        total, count = (torch.stack(column).sum() for column in zip(*sums, strict=True))
        return TokenReport(float(total / count), int(count))

    def observed(self) -> dict[str, Any]:
        return {}

    def weights(self) -> Tensors:
        return {}

    def optimiser_state(self) -> Tensors:
        return {}

    def restore(self, weights: Tensors, optimiser: Tensors) -> None:
        return None


@cache
def room_for(
    objective: ObjectiveConfig, batch: int, length: int, first_row: int
) -> tuple[int, int]:
    """How many positions can be noisy: of a part of a batch, and of its self-conditioned rows."""
    rows = range(first_row, first_row + batch)
    chosen = self_conditioned_rows(batch, objective.self_conditioned_share, first_row)
    again = {first_row + row for row in chosen}
    return room_for_noisy(rows, length, objective), room_for_noisy(again, length, objective)


@cache
def same_rows_as(first_row: int, batch: int, share: float) -> int:
    """The first part of a batch, by its first row, whose self-conditioned rows are those of this part.

    A loss is compiled anew for every first row; most parts of a batch, and ranks, have the same rows,
    and the same partners among them.
    """
    wanted = self_conditioned_rows(batch, share, first_row)
    like = range(first_row % 4, first_row + 1, 4)
    return next(r for r in like if self_conditioned_rows(batch, share, r) == wanted)


def listed(tensors: Tensors, name: str, device: torch.device) -> list[Tensor]:
    """Tensors that were saved as name.0, name.1, …"""
    found = without_prefix(name, tensors)
    return [found[str(i)].to(device) for i in range(len(found))]
