"""A trained network in use: all that text models and translators share."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.config import RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.embedding import Projection
from cdcd.diffusion.estimator import (
    Condition,
    Estimator,
    Guided,
    NetworkEstimator,
    OtherNoiseLevel,
    Replacement,
)
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.step_noise import step_noise
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.decoder_settings import DiffusionSettings, decoder_settings
from cdcd.networks.capture import make_recorder
from cdcd.networks.precision import Autocast, with_bfloat16_weights
from cdcd.seeding import generator_for, key_for

Callback = Callable[[StepInfo], None]


class Model(ABC):
    """A trained network with its tokenizer; a diffusion network comes with a time warp and so a sampler."""

    model: Any

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: nn.Module,
        warp: TimeWarp | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        compile: str = "auto",
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.device = next(model.parameters()).device
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.model = model.to(self.dtype).eval().requires_grad_(False)
        self.network = Autocast(self.model, self.device, dtype)
        if warp is not None:
            self.sampler = DiffusionSampler(config, self.model, warp, dtype, compile)
            self.network = self.sampler.network

    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> Any:
        """Returns the settings of the run's decoder, or of the one that `changes` names, with changes."""
        return decoder_settings(self.config, changes, num_samples)

    def scorer(self, option: str) -> Callable[..., Float[Tensor, " batch"]]:
        """Returns the denoising score, which an option needs: a function of tokens and a seed."""
        raise ValueError(
            f"{option} needs a denoising score, which only diffusion models have; leave it out"
        )


@dataclass(frozen=True)
class SampleDraws:
    """Everything random about some samples, a function of their seeds alone."""

    noise: Float[Tensor, "batch seq embed"]
    u: Float[Tensor, "batch seq"]
    """Uniform numbers for tokens."""
    u_length: Float[Tensor, " batch"]
    """Uniform numbers for lengths."""
    keys: Int[Tensor, " batch"]
    """Keys of the numbers that are drawn at each step."""


class DiffusionSampler:
    """A diffusion network with its table and its time warp.

    `compile` says how network calls are made fast (see `networks.capture`).
    """

    def __init__(
        self, run: RunConfig, model: nn.Module, warp: TimeWarp, dtype: torch.dtype, compile: str
    ) -> None:
        self.run, self.warp = run, warp
        self.model: Any = with_bfloat16_weights(model) if dtype == torch.bfloat16 else model
        self.table: Float[Tensor, "vocab embed"] = self.model.embedding.table().detach()
        self.network = Autocast(self.model, self.table.device, dtype)
        self.recorder = make_recorder(compile, self.table.device)

    def draw(self, seeds: Sequence[tuple[int, ...]]) -> SampleDraws:
        """Draws for each sample from its seed, which is a path of integers."""
        length, drawn = self.run.data.length, []
        for seed in seeds:
            generator = generator_for(*seed)
            noise = torch.randn(length, self.table.shape[1], generator=generator)
            uniform = torch.rand(length + 1, generator=generator)
            drawn.append((noise, uniform[:-1], uniform[-1]))
        noise, u, u_length = (torch.stack(part).to(self.table) for part in zip(*drawn, strict=True))
        keys = torch.tensor([key_for(*seed, "steps") for seed in seeds], device=self.table.device)
        return SampleDraws(noise, u, u_length, keys)

    def estimator(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        settings: DiffusionSettings,
        *,
        noise: Float[Tensor, "batch seq embed"] | None = None,
        condition: Condition | None = None,
    ) -> Estimator:
        """Returns the network with its conditioning, behind guidance or replacement where they are set.

        Replacement takes its noise. For guidance a condition has every source twice, the second time
        dropped; without a condition and given tokens there is nothing to guide.
        """
        is_ode = isinstance(settings, SamplingConfig)
        config = settings if is_ode else SamplingConfig()
        has_given = condition is None and not bool(is_noisy.all())
        if has_given and self.run.objective.masking == "none" and not config.replacement:
            raise ValueError(
                "this model was trained without masks: condition it with --replacement true"
            )
        is_guided = guides(config, has_given or condition is not None)
        embedding, given, is_dropped = self.run.embedding, F.embedding(tokens, self.table), None
        visible = torch.ones_like(is_noisy) if config.replacement else is_noisy
        if is_guided:
            is_dropped = torch.arange(2 * len(tokens), device=tokens.device) >= len(tokens)
            tokens, visible = tokens.repeat(2, 1), visible.repeat(2, 1)
        estimator: Estimator = NetworkEstimator(
            network=self.network,
            condition=condition,
            table=self.table,
            tokens=tokens,
            is_noisy=visible,
            self_conditioning=config.self_conditioning and self.run.objective.self_conditioning,
            is_dropped=is_dropped,
            softmax_temperature=config.softmax_temperature,
            nucleus=config.nucleus,
            trained=Projection(renormalise=embedding.renormalise, clamp=embedding.clamp),
            projection=Projection(
                renormalise=embedding.renormalise or config.renormalise,
                clamp=embedding.clamp or config.clamp,
            ),
            # A recording needs fixed shapes.
            only_noisy=not is_ode and self.recorder is None,
        )
        if config.stated_noise_scale != 1.0:
            t_max = self.run.process.t_max
            estimator = OtherNoiseLevel(estimator, config.stated_noise_scale, t_max)
        if config.replacement:
            assert noise is not None
            estimator = Replacement(estimator, given, is_noisy, noise)
        elif is_guided:
            estimator = Guided(estimator, config.guidance_scale)
        return estimator if self.recorder is None else self.recorder(estimator)

    def state_form(
        self, is_noisy: Bool[Tensor, "batch seq"], settings: SamplingConfig
    ) -> tuple[bool, bool]:
        """Returns whether the state of an estimator has two branches, and whether predictions are fed back."""
        return guides(settings, not bool(is_noisy.all())), settings.self_conditioning

    def solve(
        self,
        estimator: Estimator,
        draws: SampleDraws,
        settings: SamplingConfig,
        callback: Callback | None,
    ) -> Int[Tensor, "batch seq"]:
        """Returns the tokens at the end of the ODE or SDE that starts at the noise of `draws`."""
        schedule, noise = self.warp.schedule(), draws.noise
        times = time_grid(settings, self.run.process, schedule, self.table.dtype)
        more = {"noise_at": lambda step: step_noise(draws.keys, step, noise), "callback": callback}
        return sample(estimator, self.table, noise, times, settings, **more).tokens

    def start(self, noise: Float[Tensor, "batch seq embed"]) -> tuple[Tensor, Tensor]:
        """Returns noise at the highest noise level, and that level for each row."""
        t_max = self.run.process.t_max
        return t_max * noise, noise.new_full((len(noise),), t_max)


def guides(settings: SamplingConfig, has_given: bool) -> bool:
    """Returns whether there is guidance: it is set, and there is something to guide by."""
    return settings.guidance_scale != 1.0 and has_given


def check_counts(**counts: int) -> None:
    """Raises an error where a number is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, it must be at least 1")
