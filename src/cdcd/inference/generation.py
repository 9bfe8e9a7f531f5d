"""Trained models in use: load a run, complete prompts, fill gaps.

model = cdcd.load("runs/demo")
print(model.complete("Once upon a time", num_samples=4, seed=0, score_temperature=0.9))
print(model.infill("The [5] went to the [3].", seed=0))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.config import DecodingConfig, RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.embedding import Projection
from cdcd.diffusion.estimator import (
    Estimator,
    Guided,
    Network,
    NetworkEstimator,
    Replacement,
)
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.decoding import decode
from cdcd.inference.mask_predict import settle
from cdcd.inference.text_model import Canvas, TextModel
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.capture import make_recorder
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.precision import (
    Autocast,
    choose_device,
    choose_dtype,
    with_bfloat16_weights,
)
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.build import AnyModel, build_model
from cdcd.training.checkpoint import Checkpoint, RunDirectory, check_shapes, without_prefix


class DiffusionTextModel(TextModel):
    """A diffusion language model: fills any gaps of a sequence, all positions at once.

    `compile` says how network calls are made fast (see `networks.capture`).
    """

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: DiffusionTextNetwork,
        warp: TimeWarp,
        *,
        dtype: torch.dtype = torch.float32,
        compile: str = "auto",
    ) -> None:
        super().__init__(config, tokenizer, model, dtype)
        self.model, self.warp = model, warp
        if dtype == torch.bfloat16:
            self.network = Autocast(with_bfloat16_weights(model), self.device, dtype)
        self.recorder = make_recorder(compile, self.device)
        self.table: Float[Tensor, "vocab embed"] = model.embedding.table().detach()

    def settings(self, changes: Mapping[str, Any]) -> SamplingConfig:
        return override(self.config.sampling, changes)

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        places: Sequence[tuple[int, int]],
        settings: SamplingConfig,
        *,
        callback: Callable[[StepInfo], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        drawn = draw_for_samples(places, self.length, self.table)
        noise = drawn.noise
        if settings.solver == "settle":
            return self._settle(tokens, is_noisy, drawn, settings, callback)
        estimator = self._fast_estimator(tokens, is_noisy, settings, noise)
        times = time_grid(settings, self.config.process, self.warp.schedule(), self.dtype)
        found = sample(estimator, self.table, noise, times, settings, callback=callback)
        return torch.where(is_noisy, found.tokens, tokens)

    def _settle(
        self,
        tokens: Tensor,
        is_noisy: Tensor,
        drawn: "SampleDraws",
        settings: SamplingConfig,
        callback: Callable[[StepInfo], None] | None,
    ) -> Int[Tensor, "batch seq"]:
        if settings.settle_lengths != 1:
            raise ValueError("settle_lengths is for translators; leave it at 1")

        def given(tokens: Tensor, is_noisy: Tensor) -> Estimator:
            return self._fast_estimator(tokens, is_noisy, settings, drawn.noise)

        x, t = drawn.start(self.config.process, settings)
        found = settle(given, tokens, is_noisy, x, t, settings, u=drawn.u, callback=callback)
        return found.tokens

    def estimator(
        self, tokens: Tensor, is_noisy: Tensor, config: SamplingConfig, *, noise: Tensor
    ) -> Estimator:
        """The network with its conditioning, behind guidance or replacement where they are set."""
        guided = self._is_guided(config, is_noisy)
        return self._bind(tokens, is_noisy, noise, config=config, guided=guided)

    def _fast_estimator(
        self, tokens: Tensor, is_noisy: Tensor, config: SamplingConfig, noise: Tensor
    ) -> Estimator:
        """The same estimator, recorded where this model records."""
        if self.recorder is None:
            return self.estimator(tokens, is_noisy, config, noise=noise)
        guided, part = self._is_guided(config, is_noisy), config.of_evaluation
        bind = partial(self._bind, config=part, guided=guided)
        return self.recorder((part, guided), bind, (tokens, is_noisy, noise))

    def _is_guided(self, config: SamplingConfig, is_noisy: Tensor) -> bool:
        """Whether there is guidance, of settings that fit the model and the given tokens."""
        anything_given = not bool(is_noisy.all())
        self._check_sampling(config, anything_given)
        return config.guidance_scale != 1.0 and anything_given

    def _bind(
        self,
        tokens: Tensor,
        is_noisy: Tensor,
        noise: Tensor,
        *,
        config: SamplingConfig,
        guided: bool,
    ) -> Estimator:
        shown = torch.ones_like(is_noisy) if config.replacement else is_noisy
        conditional = make_estimator(self.network, self.table, tokens, shown, self.config, config)
        if config.replacement:
            given = F.embedding(tokens, self.table)
            return Replacement(conditional, given, is_noisy, noise)
        if not guided:
            return conditional
        both = replace(
            conditional,
            tokens=torch.cat([tokens, tokens]),
            is_noisy=torch.cat([is_noisy, is_noisy]),
            is_dropped=torch.arange(2 * len(tokens), device=self.device) >= len(tokens),
        )
        return Guided(both, config.guidance_scale)

    def _check_sampling(self, config: SamplingConfig, anything_given: bool) -> None:
        objective = self.config.objective
        check_sampling(config, objective)
        if config.replacement and objective.masking != "none":
            raise ValueError("replacement is for models trained with objective.masking none")
        if anything_given and objective.masking == "none" and not config.replacement:
            raise ValueError(
                "this model was trained without masks: condition it with --replacement true"
            )


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


class AutoregressiveTextModel(TextModel):
    """An autoregressive language model: completes prompts, token by token."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: AutoregressiveTextNetwork,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, tokenizer, model, dtype)
        self.model = model

    def settings(self, changes: Mapping[str, Any]) -> DecodingConfig:
        return override(self.config.decoding, changes)

    def infill_canvas(self, text: str) -> Canvas:
        raise ValueError("an autoregressive model cannot fill gaps: use a diffusion model")

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        places: Sequence[tuple[int, int]],
        settings: DecodingConfig,
        *,
        callback: Callable[[int], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        u = torch.stack([torch.rand(self.length, generator=generator_for(*p)) for p in places])
        # Padding follows the end of a document: it is never trained on, so never drawn.
        never = (PAD, EOS) if settings.suppress_eos else (PAD,)
        with self.network.precision():
            return decode(
                self.model,
                tokens,
                ~is_noisy,
                u.to(self.device),
                settings,
                suppress=never,
                callback=callback,
            )


@dataclass(frozen=True)
class Loaded:
    """A run's model with the weights of a checkpoint, in place."""

    config: RunConfig
    tokenizer: Tokenizer
    model: AnyModel
    dtype: torch.dtype
    saved: Checkpoint
    what: str

    def warp(self) -> TimeWarp:
        """The time warp of a diffusion model."""
        warp = TimeWarp(self.config.warp, self.config.process)
        _fill_in(warp, without_prefix("warp", self.saved.weights), self.what)
        return warp.to(next(self.model.parameters()).device)


def load_parts(
    run: str | Path, *, checkpoint: int | None = None, device: str = "auto", dtype: str = "auto"
) -> Loaded:
    """Read a run's last checkpoint: its averaged weights where it kept them."""
    directory = RunDirectory(Path(run))
    saved = directory.load(checkpoint)
    config, place = directory.config, choose_device(device)
    what = f"the checkpoint of step {saved.step} in {run}"
    model = build_model(config, directory.vocab_size)
    weights = without_prefix("model", saved.weights) | without_prefix("average", saved.weights)
    _fill_in(model, weights, what)
    return Loaded(
        config, directory.tokenizer, model.to(place), choose_dtype(dtype, place), saved, what
    )


def load(
    run: str | Path,
    *,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> TextModel:
    """Load a run's last checkpoint (its averaged weights where it kept them) for sampling.

    `compile` is for diffusion models on a GPU: `auto` captures a network call as a CUDA graph; `on`
    compiles it; `graphs` does both, which takes longest to start and is fastest; `off` does neither.
    """
    loaded = load_parts(run, checkpoint=checkpoint, device=device, dtype=dtype)
    config, tokenizer, number = loaded.config, loaded.tokenizer, loaded.dtype
    match loaded.model:
        case AutoregressiveTextNetwork():
            return AutoregressiveTextModel(config, tokenizer, loaded.model, dtype=number)
        case DiffusionTextNetwork():
            return DiffusionTextModel(
                config, tokenizer, loaded.model, loaded.warp(), dtype=number, compile=compile
            )
    raise ValueError(f"{run} is a translator, no language model: use cdcd translate")


def load_diffusion(run: str | Path, **options: Any) -> DiffusionTextModel:
    """Load a run that must be of a diffusion model."""
    model = load(run, **options)
    if not isinstance(model, DiffusionTextModel):
        raise ValueError(f"{run} is an autoregressive model; this needs a diffusion model")
    return model


def _fill_in(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    check_shapes(module.state_dict(), dict(weights), what)
    module.load_state_dict(weights)
