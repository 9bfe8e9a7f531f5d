"""The four tasks of a Trainer: a diffusion or an autoregressive network, of text or of translations.

A task owns the network, its random inputs, its loss, and what is fitted beside it (the time warp). The
Trainer sees batches, gradients and checkpoints, and never asks which task it has.

A batch of translations has rows [source | target]. The target is predicted, by the same losses as a text.
"""

from collections import deque
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.estimator import Condition
from cdcd.diffusion.objective import Draws, training_loss
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork, is_predicted, token_nll
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.precision import Autocast
from cdcd.seeding import generator_for
from cdcd.training.checkpoint import Tensors, with_prefix, without_prefix
from cdcd.training.compiling import compiled
from cdcd.training.distributed import ALONE, World
from cdcd.training.optimiser import make_adam
from cdcd.training.parallel import Engine
from cdcd.training.validation import Report, TokenReport, validate

AnyNetwork = (
    DiffusionTextNetwork
    | AutoregressiveTextNetwork
    | DiffusionTranslationNetwork
    | AutoregressiveTranslationNetwork
)
N = TypeVar("N", bound=AnyNetwork)
D = TypeVar("D", DiffusionTextNetwork, DiffusionTranslationNetwork)
A = TypeVar("A", AutoregressiveTextNetwork, AutoregressiveTranslationNetwork)

RECENT = 8
"""Batches whose losses are kept for the picture of the warp."""


class Task(Generic[N]):
    """A network in training. The defaults are those of a network without random inputs and warp."""

    def __init__(
        self,
        config: RunConfig,
        model: N,
        *,
        device: torch.device,
        dtype: torch.dtype,
        engine: Engine | None = None,
        world: World = ALONE,
    ) -> None:
        self.config, self.model, self.device, self.world = config, model, device, world
        self.engine = engine or Engine()
        self.network = Autocast(model, device, dtype)
        mode = "off" if self.engine.is_sharded else config.training.compile
        self.losses = self.engine.around(compiled(self.loss, mode, device))
        """The loss as it is trained on: compiled, and with what several ranks need around it."""

    def loss(self, tokens: Int[Tensor, "batch seq"], draws: Any) -> tuple[Tensor, Tensor]:
        """Returns the sum of a part of a batch over its targets, and each sequence's mean, detached."""
        raise NotImplementedError

    def num_targets(self, tokens: Int[Tensor, "batch seq"], draws: Any) -> Int[Tensor, ""]:
        """Counts the tokens of a part of a batch that are predicted."""
        raise NotImplementedError

    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        """Measures how well held-out text is predicted."""
        raise NotImplementedError

    def validate(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        """Measures how well held-out text is predicted, on every rank."""
        with torch.no_grad():
            return self.engine.evaluate(self.report, tokens)

    def targets(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch targets"]:
        """Returns the part of each row that is predicted."""
        return tokens

    def parts(self) -> list[range]:
        """Returns the rows of the global batch that this rank computes, part by part."""
        rows = self.world.rows(self.config.training.batch_size)
        size = (rows.stop - rows.start) // self.config.training.accumulate
        return [range(start, start + size) for start in range(rows.start, rows.stop, size)]

    def draw(self, step: int) -> list[Any]:
        """Returns the random inputs of a step, for each part of this rank's rows."""
        return [None for _ in self.parts()]

    def noise_levels(self, draws: Any) -> Float[Tensor, " batch"] | None:
        """Returns the noise level of each row, where there is one."""
        return None

    def fit_warp(self, t: Float[Tensor, " batch"] | None, losses: Float[Tensor, " batch"]) -> None:
        """Fits the warp, where there is one, to the losses of the sequences of the global batch."""

    def record(self, t: Float[Tensor, " batch"] | None, losses: Float[Tensor, " batch"]) -> None:
        """Keeps the last losses for pictures."""

    def recorded(self) -> dict[str, Any]:
        """Returns the entries of a validation's line in metrics.jsonl that only this task has."""
        return {}

    def weights(self) -> Tensors:
        """Returns what is learnt beside the network, for the checkpoint."""
        return {}

    def optimiser_state(self) -> Tensors:
        """Returns what resuming needs besides."""
        return {}

    def restore(self, weights: Tensors, optimiser: Tensors) -> None:
        """Puts both back."""


class DiffusionTextTask(Task[D]):
    """Score interpolation (§3.1) with the time warp that is fitted beside it (§3.3)."""

    def __init__(self, config: RunConfig, model: D, **settings: Any) -> None:
        super().__init__(config, model, **settings)
        self.warp = TimeWarp(config.warp, config.process).to(self.device)
        self.warp_optimiser = make_adam(self.warp, (0.9, 0.99))
        self.warp_optimiser.set_rate(config.warp.learning_rate)
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=RECENT)

    def draw(self, step: int) -> list[Draws]:
        config, schedule = self.config, self.warp.training_schedule()
        shape = (config.training.batch_size, config.data.length, config.embedding.dim)
        settings = {"seed": config.training.seed, "step": step, "device": self.device}
        return [
            draw_for_step(shape, config.objective, schedule, **settings, rows=rows, only_noisy=True)
            for rows in self.parts()
        ]

    def condition(
        self, tokens: Int[Tensor, "batch seq"], is_dropped: Bool[Tensor, " batch"] | None = None
    ) -> Condition | None:
        """Returns what the network is given beside the sequence."""
        return None

    def num_targets(self, tokens: Int[Tensor, "batch seq"], draws: Draws) -> Int[Tensor, ""]:
        return draws.is_noisy.sum()

    def loss(self, tokens: Int[Tensor, "batch seq"], draws: Draws) -> tuple[Tensor, Tensor]:
        losses = training_loss(
            self.network,
            self.model.embedding.table(),
            self.targets(tokens),
            draws,
            objective=self.config.objective,
            embedding=self.config.embedding,
            condition=self.condition(tokens, draws.is_dropped),
        )
        return losses.total, losses.per_sequence

    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        table, schedule = self.model.embedding.table(), self.warp.schedule()
        targets, condition = self.targets(tokens), self.condition(tokens)
        return validate(self.network, table, targets, schedule, self.config, condition)

    def noise_levels(self, draws: Draws) -> Float[Tensor, " batch"]:
        return draws.t

    def fit_warp(self, t: Float[Tensor, " batch"] | None, losses: Float[Tensor, " batch"]) -> None:
        assert t is not None
        self.warp.fitting_loss(t, losses).backward()
        # All ranks compute this from the same losses; but a GPU may add them up in another order.
        gradients = [p.grad for p in self.warp.parameters() if p.grad is not None]
        self.world.take_from_main(*gradients)
        self.warp_optimiser.step()
        self.warp.update_average()

    def record(self, t: Float[Tensor, " batch"] | None, losses: Float[Tensor, " batch"]) -> None:
        assert t is not None
        self.recent.append((t, losses))

    def recorded(self) -> dict[str, Any]:
        """Returns noise levels and losses of recent sequences, which the warp was fitted to."""
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


class DiffusionTranslationTask(DiffusionTextTask[DiffusionTranslationNetwork]):
    """Score interpolation of the target, given the source; some sources are hidden, for guidance."""

    def draw(self, step: int) -> list[Draws]:
        seed_dropout(self.config.training.seed, step, self.world)
        return super().draw(step)

    def targets(self, tokens: Int[Tensor, "batch both"]) -> Int[Tensor, "batch seq"]:
        return tokens[:, self.config.data.source_length :]

    def condition(
        self, tokens: Int[Tensor, "batch both"], is_dropped: Bool[Tensor, " batch"] | None = None
    ) -> Condition:
        """Returns the encoded sources."""
        with self.network.precision():
            return self.model.encode(tokens[:, : self.config.data.source_length], is_dropped)


class AutoregressiveTextTask(Task[A]):
    """Next-token prediction, the baseline of Table 3 and the judge; padding is not predicted."""

    def token_losses(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Tensor, Tensor]:
        """Returns the loss in training and −ln p of each target, zero in the padding."""
        nll = token_nll(self.network(tokens), tokens).masked_fill(~is_predicted(tokens), 0.0)
        return nll, nll

    def num_targets(self, tokens: Int[Tensor, "batch seq"], draws: None) -> Int[Tensor, ""]:
        return is_predicted(self.targets(tokens)).sum()

    def loss(self, tokens: Int[Tensor, "batch seq"], draws: None) -> tuple[Tensor, Tensor]:
        losses, nll = self.token_losses(tokens)
        counts = is_predicted(self.targets(tokens)).sum(1)
        return losses.sum(), (nll.sum(1) / counts).detach()

    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        sums = [
            (self.token_losses(part)[1].sum(), self.num_targets(part, None))
            for part in tokens.split(self.config.training.batch_size)
        ]
        total, count = (torch.stack(column).sum() for column in zip(*sums, strict=True))
        return TokenReport(float(total / count), int(count))


class AutoregressiveTranslationTask(AutoregressiveTextTask[AutoregressiveTranslationNetwork]):
    """Next-token prediction of the target, with smoothed labels."""

    def draw(self, step: int) -> list[None]:
        seed_dropout(self.config.training.seed, step, self.world)
        return super().draw(step)

    def targets(self, tokens: Int[Tensor, "batch both"]) -> Int[Tensor, "batch seq"]:
        return tokens[:, self.config.data.source_length :]

    def token_losses(self, tokens: Int[Tensor, "batch both"]) -> tuple[Tensor, Tensor]:
        source = tokens[:, : self.config.data.source_length]
        with self.network.precision():
            return self.model.loss(
                source, self.targets(tokens), self.config.training.label_smoothing
            )


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Makes dropout, which draws from torch's own generators, a function of (seed, step, rank)."""
    drawn = torch.randint(2**62, (), generator=generator_for(seed, "dropout", step, world.rank))
    torch.manual_seed(int(drawn))


def listed(tensors: Tensors, name: str, device: torch.device) -> list[Tensor]:
    """Returns tensors that were saved as name.0, name.1, …"""
    numbered = without_prefix(name, tensors)
    return [numbered[str(i)].to(device) for i in range(len(numbered))]
