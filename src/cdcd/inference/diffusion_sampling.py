"""The parts that text models and translators share in sampling by diffusion: draws, the estimator, checks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.diffusion.embedding import Projection
from cdcd.diffusion.estimator import Network, NetworkEstimator
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.seeding import generator_for


@dataclass(frozen=True)
class SampleDraws:
    """Everything random about some samples: a function of their places alone."""

    noise: Float[Tensor, "batch seq embed"]
    u: Float[Tensor, "batch seq"]
    """Uniform, for tokens that are drawn."""
    v: Float[Tensor, " batch"]
    """Uniform, for lengths that are drawn."""

    def repeated(self, times: int) -> "SampleDraws":
        """Each row so many times."""
        return SampleDraws(*(d.repeat_interleave(times, 0) for d in (self.noise, self.u, self.v)))

    def start(self, process: ProcessConfig, config: SamplingConfig) -> tuple[Tensor, Tensor]:
        """Where sampling starts: pure noise, and its level."""
        t = torch.full_like(self.v, process.t_max)
        return process.t_max * config.initial_noise_scale * self.noise, t


def draw_for_samples(
    places: Sequence[tuple[int, ...]], length: int, table: Float[Tensor, "vocab embed"]
) -> SampleDraws:
    """The draws of the samples at some places: the seed, and their numbers."""
    drawn = []
    for place in places:
        generator = generator_for(*place)
        noise = torch.randn(length, table.shape[1], generator=generator)
        uniform = torch.rand(length + 1, generator=generator)
        drawn.append((noise, uniform[:-1], uniform[-1]))
    return SampleDraws(*(torch.stack(part).to(table) for part in zip(*drawn, strict=True)))


def make_estimator(
    network: Network,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "batch seq"],
    is_noisy: Bool[Tensor, "batch seq"],
    run: RunConfig,
    config: SamplingConfig,
) -> NetworkEstimator:
    """A run's network as an estimator under sampling settings."""
    embedding = run.embedding
    return NetworkEstimator(
        network=network,
        table=table,
        tokens=tokens,
        is_noisy=is_noisy,
        self_conditioning=config.self_conditioning and run.objective.self_conditioning,
        softmax_temperature=config.softmax_temperature,
        nucleus=config.nucleus,
        trained=Projection(renormalise=embedding.renormalise, clamp=embedding.clamp),
        projection=Projection(
            renormalise=embedding.renormalise or config.renormalise,
            clamp=embedding.clamp or config.clamp,
        ),
    )


def check_sampling(config: SamplingConfig, objective: ObjectiveConfig) -> None:
    """Refuse settings that a model was not trained for."""
    if (config.renormalise or config.clamp) and objective.self_conditioning:
        raise ValueError(
            "renormalise and clamp are sampling settings only for models trained without "
            "self-conditioning; train with embedding.renormalise or embedding.clamp instead"
        )
    if config.solver == "settle":
        if objective.masking == "none":
            raise ValueError(
                "settle gives the model one token after another: it is for models trained with "
                "masks (objective.masking)"
            )
        if config.guidance_scale != 1.0:
            raise ValueError(
                "guidance is of the ODE's solvers: with settle set guidance_scale to 1"
            )
    if config.guidance_scale != 1.0 and not objective.conditioning_dropout:
        raise ValueError(
            "guidance needs a model trained with objective.conditioning_dropout above 0"
        )
