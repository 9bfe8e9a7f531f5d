"""The task of distillation: a network learns to sample in half of its teacher's steps, again and again.

The teacher is part of every checkpoint, so that a run needs nothing else to go on. The first one is the
model that is distilled. After each round the student, as it would sample, becomes the teacher. Embeddings
and warp stay as they are: the teacher's predictions are made of them, and so are the levels of the grid.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import RunConfig
from cdcd.diffusion.distillation import distillation_loss, levels_around
from cdcd.diffusion.draws import uniform_times
from cdcd.diffusion.estimator import NetworkEstimator
from cdcd.diffusion.objective import Draws
from cdcd.diffusion.process import add_noise
from cdcd.diffusion.sampling import time_grid
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.precision import Autocast
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.optimiser import MovingAverage
from cdcd.training.tasks import DiffusionTextTask


@dataclass(frozen=True, kw_only=True)
class StepDraws(Draws):
    """Everything random about a batch, with the levels of the steps that are taught."""

    levels: Float[Tensor, "5 batch"]


class DistillationTask(DiffusionTextTask[DiffusionTextNetwork]):
    """A student that learns from a teacher with twice its steps."""

    def __init__(self, config: RunConfig, model: DiffusionTextNetwork, **settings: Any) -> None:
        super().__init__(config, model, **settings)
        self.teacher = deepcopy(model).requires_grad_(False).eval()
        self.teacher_network = Autocast(self.teacher, self.device, settings["dtype"])
        self.modules["teacher"] = self.teacher
        self.optimisers = {}

    @torch.no_grad()
    def begin_step(self, step: int, average: MovingAverage) -> None:
        super().begin_step(step, average)
        if self.config.distillation.begins_round(step):
            for name, parameter in self.model.named_parameters():
                parameter.copy_(average.tensors.get(name, parameter))
            self.teacher.load_state_dict(self.model.state_dict())

    def draw_rows(self, step: int, rows: range) -> StepDraws:
        config, batch = self.config, self.config.training.batch_size
        num_steps = config.distillation.student_steps(step)
        generator = generator_for(config.training.seed, "steps", step, device=self.device)
        u = uniform_times(batch, low_discrepancy=True, generator=generator)[rows.start : rows.stop]
        # One more than the steps: the prediction at t_min.
        index = (u * (num_steps + 1)).long().clamp(max=num_steps)
        sampling = replace(config.sampling, num_steps=2 * num_steps)
        times = time_grid(sampling, config.process, self.warp.schedule()).to(self.device)
        levels = levels_around(times, index)
        drawn = vars(super().draw_rows(step, rows)) | {"t": levels[2].clone()}
        return StepDraws(**drawn, levels=levels)

    def loss(self, tokens: Int[Tensor, "batch seq"], draws: StepDraws) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        table = self.teacher.embedding.table()
        student, teacher = (
            NetworkEstimator(
                network=network,
                table=table,
                tokens=tokens,
                is_noisy=draws.is_noisy,
                is_dropped=draws.is_dropped,
                self_conditioning=self.config.objective.self_conditioning,
            )
            for network in (self.network, self.teacher_network)
        )
        x = add_noise(F.embedding(tokens, table), draws.levels[0], draws.eps)
        losses = distillation_loss(
            student, teacher, table, x, draws.levels, self.config.distillation
        ).masked_fill(~draws.is_noisy, 0.0)
        return losses.sum(), (losses.sum(1) / draws.is_noisy.sum(1)).detach()

    def fit_warp(
        self, draws: list[Draws], losses: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """Returns the noise levels; the warp stays the teacher's."""
        return self.world.gather(torch.cat([each.t for each in draws]))


def distilled_config(parent: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration of a run that distils another, which then samples in its few steps."""
    if (parent.task, parent.model) != ("text", "diffusion"):
        raise ValueError(
            f"the run is a model {parent.model} of task {parent.task}; what can be distilled are "
            f"diffusion models of text"
        )
    if parent.embedding.renormalise or parent.embedding.clamp:
        raise ValueError(
            "the run was trained with embedding.renormalise or embedding.clamp: mixtures of its "
            "predictions are no predictions; distil a run without them"
        )
    present = parent.distillation
    first, last = (present.num_steps, present.num_steps // 2) if present.teacher_steps else (64, 8)
    steps = {"distillation.teacher_steps": first, "distillation.num_steps": last}
    own = {name: value for name, value in changes.items() if name.startswith("distillation.")}
    distillation = override(parent, steps | own).distillation
    num_updates = distillation.num_rounds * distillation.round_steps
    return override(
        parent,
        steps
        | {
            "training.steps": num_updates,
            "training.learning_rate": parent.training.learning_rate / 10,
            "training.schedule": "constant",
            "training.warmup_steps": min(100, num_updates // 10),
            "training.decay_steps": distillation.round_steps // 2,
            "training.patience": 0,
            "training.keep_best": False,
            "sampling.solver": "euler",
            "sampling.num_steps": distillation.num_steps,
            "sampling.score_temperature": 1.0,
        }
        | dict(changes),
    )
