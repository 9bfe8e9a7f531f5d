"""The five tasks of a Trainer: a diffusion or an autoregressive network, of text or of translations, or a masked
one, of text.

A task owns the network, its random inputs, its loss, and what is fitted beside it (the time warp). The
Trainer sees batches, gradients and checkpoints, and never asks which task it has.

A batch of texts has rows of tokens; one of translations has rows [source | target], of which the target
is predicted by the same losses as a text.
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cdcd.config import RunConfig
from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.estimator import Condition
from cdcd.diffusion.masked import MaskDraws, masked_bound, masks_for_step
from cdcd.diffusion.objective import Draws, training_loss
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.autoregressive_text import (
    AutoregressiveTextNetwork,
    is_predicted,
    token_losses,
)
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.masked_text import MaskedTextNetwork
from cdcd.networks.precision import Autocast
from cdcd.seeding import generator_for
from cdcd.training.compiling import compiled
from cdcd.training.distributed import ALONE, World
from cdcd.training.optimiser import MovingAverage, Optimiser, make_optimiser
from cdcd.training.parallel import Engine
from cdcd.training.validation import Report, TokenReport, validate, validate_masked

AnyNetwork = (
    DiffusionTextNetwork
    | DiffusionTranslationNetwork
    | AutoregressiveTextNetwork
    | AutoregressiveTranslationNetwork
    | MaskedTextNetwork
)
N = TypeVar("N", bound=AnyNetwork)
D = TypeVar("D", DiffusionTextNetwork, DiffusionTranslationNetwork)
A = TypeVar("A", AutoregressiveTextNetwork, AutoregressiveTranslationNetwork)


class Task(ABC, Generic[N]):
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
        self.source_length = config.data.source_length if config.task == "translation" else 0
        self.engine = engine or Engine()
        self.network = Autocast(model, device, dtype)
        self.modules: dict[str, nn.Module] = {"model": model}
        """Everything that is learnt, by its name in checkpoints."""
        self.optimisers: dict[str, Optimiser] = {}
        """The optimisers of what is learnt beside the network, by the same names."""
        mode = "off" if self.engine.is_sharded else config.training.compile
        self.compiled_loss = compiled(self.loss, mode, device)
        self.losses = self.engine.around(self._whole_or_plain)
        """The loss as it is trained on: compiled, and with what several ranks need around it."""

    @abstractmethod
    def loss(self, tokens: Int[Tensor, "batch seq"], draws: Any) -> tuple[Tensor, Tensor]:
        """Returns the sum of a part of a batch over its targets, and each sequence's mean, detached."""

    def _whole_or_plain(self, tokens: Tensor, draws: Any) -> tuple[Tensor, Tensor]:
        """Returns the loss, compiled for whole sequences: others are few and of many lengths."""
        is_whole = tokens.shape[1] == self.source_length + self.config.data.length
        return (self.compiled_loss if is_whole else self.loss)(tokens, draws)

    def begin_step(self, step: int, average: MovingAverage) -> None:
        """Sets what depends on the step and is not learnt."""

    def length_at(self, step: int) -> int:
        """Returns the length of the sequences of a step: of a share of the steps it is random."""
        data, objective = self.config.data, self.config.objective
        if not data.random_length_share or self.source_length:
            return data.length
        generator = generator_for(self.config.training.seed, "length", step)
        if float(torch.rand((), generator=generator)) >= data.random_length_share:
            return data.length
        shortest = max(2, (objective.prefix_length or 0) + 1)
        return int(torch.randint(shortest, data.length + 1, (), generator=generator))

    @abstractmethod
    def num_targets(self, tokens: Int[Tensor, "batch seq"], draws: Any) -> Int[Tensor, ""]:
        """Counts the tokens of a part of a batch that are predicted."""

    @abstractmethod
    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        """Measures how well held-out text is predicted."""

    def validate(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        """Measures how well held-out text is predicted, on every rank."""
        with torch.no_grad():
            return self.engine.evaluate(self.report, tokens)

    def sources(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch source"]:
        """Returns the part of each row that is read only."""
        return tokens[:, : self.source_length]

    def targets(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch targets"]:
        """Returns the part of each row that is predicted."""
        return tokens[:, self.source_length :]

    def parts(self) -> list[range]:
        """Returns the rows of the global batch that this rank computes, part by part."""
        rows = self.world.rows(self.config.training.batch_size)
        size = (rows.stop - rows.start) // self.config.training.accumulate
        return [range(start, start + size) for start in range(rows.start, rows.stop, size)]

    def draw(self, step: int) -> list[Any]:
        """Returns the random inputs of a step, for each part of this rank's rows, and seeds its dropout."""
        if self.source_length or self.config.network.dropout:
            seed_dropout(self.config.training.seed, step, self.world)
        return [self.draw_rows(step, rows) for rows in self.parts()]

    def draw_rows(self, step: int, rows: range) -> Any:
        """Returns the random inputs of some rows of the global batch."""
        return None

    def fit_warp(
        self, draws: list[Any], losses: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"] | None:
        """Fits the warp to the losses of the global batch, and returns its noise levels.

        `draws` are those of this rank's parts. Without a warp there are no noise levels.
        """
        return None


class DiffusionTextTask(Task[D]):
    """Score interpolation (§3.1) with the time warp that is fitted beside it (§3.3)."""

    def __init__(self, config: RunConfig, model: D, **settings: Any) -> None:
        super().__init__(config, model, **settings)
        self.warp = TimeWarp(config.warp, config.process).to(self.device)
        self.warp_optimiser = make_optimiser(self.warp, (0.9, 0.99))
        self.warp_optimiser.set_rate(config.warp.learning_rate)
        self.modules["warp"], self.optimisers["warp"] = self.warp, self.warp_optimiser

    def begin_step(self, step: int, average: MovingAverage) -> None:
        if isinstance(self.model, DiffusionTextNetwork) and self.model.prior is not None:
            self.model.prior.warm_up(step, self.config.network.output_prior_warmup)

    def draw_rows(self, step: int, rows: range) -> Draws:
        config = self.config
        return draw_for_step(
            (config.training.batch_size, self.length_at(step), config.embedding.dim),
            config.objective,
            self.warp.training_schedule(),
            seed=config.training.seed,
            step=step,
            device=self.device,
            rows=rows,
            only_noisy=True,
        )

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
            log_l2_weight=self.model.embedding.log_l2_weight,
        )
        return losses.total, losses.per_sequence

    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        table, schedule = self.model.embedding.table(), self.warp.schedule()
        targets, condition = self.targets(tokens), self.condition(tokens)
        return validate(self.network, table, targets, schedule, self.config, condition)

    def fit_warp(
        self, draws: list[Draws], losses: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        t = self.world.gather(torch.cat([each.t for each in draws]))
        self.warp.fitting_loss(t, losses).backward()
        # All ranks compute this from the same losses; but a GPU may add them up in another order.
        self.world.take_from_main(p.grad for p in self.warp.parameters() if p.grad is not None)
        self.warp_optimiser.step()
        self.warp.update_average()
        return t


class DiffusionTranslationTask(DiffusionTextTask[DiffusionTranslationNetwork]):
    """Score interpolation of the target, given the source (§4.4); some sources are hidden, for guidance."""

    def condition(
        self, tokens: Int[Tensor, "batch both"], is_dropped: Bool[Tensor, " batch"] | None = None
    ) -> Condition:
        """Returns the encoded sources."""
        with self.network.precision():
            return self.model.encode(self.sources(tokens), is_dropped)


class AutoregressiveTextTask(Task[A]):
    """Next-token prediction, the baseline of Table 3 and the judge; padding is not predicted."""

    def logits(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch targets vocab"]:
        """Returns the predictions of the targets."""
        return self.network(tokens)

    def token_losses(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Tensor, Tensor]:
        """Returns the loss in training and −ln p of each target, zero in the padding."""
        smoothing = self.config.training.label_smoothing
        return token_losses(self.logits(tokens), self.targets(tokens), smoothing)

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
    """Next-token prediction of the target, given the source: the baseline of Table 4."""

    def logits(self, tokens: Int[Tensor, "batch both"]) -> Float[Tensor, "batch targets vocab"]:
        return self.network(self.sources(tokens), self.targets(tokens))


class MaskedTextTask(Task[MaskedTextNetwork]):
    """Prediction of masked tokens: the bound of masked diffusion on −ln p, padding included."""

    def draw_rows(self, step: int, rows: range) -> MaskDraws:
        config = self.config
        return masks_for_step(
            config.training.batch_size,
            self.length_at(step),
            config.objective,
            seed=config.training.seed,
            step=step,
            device=self.device,
            rows=rows,
        )

    def num_targets(self, tokens: Int[Tensor, "batch seq"], draws: MaskDraws) -> Int[Tensor, ""]:
        return draws.num_open.sum()

    def loss(self, tokens: Int[Tensor, "batch seq"], draws: MaskDraws) -> tuple[Tensor, Tensor]:
        nats = masked_bound(self.network, tokens, draws).nats
        return nats.sum(), (nats / draws.num_open).detach()

    def report(self, tokens: Int[Tensor, "sequences length"]) -> Report:
        return validate_masked(self.network, tokens, self.config)


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Makes dropout, which draws from torch's own generators, a function of (seed, step, rank)."""
    drawn = torch.randint(2**62, (), generator=generator_for(seed, "dropout", step, world.rank))
    torch.manual_seed(int(drawn))
