"""Changes from a step on: a sample goes on from the noise that is left there, with other words or settings.

A solver's state between two steps is x, and the last step. So a trajectory can be left at any noise level t, be
given other tokens, another seed or other settings, and run on; without changes it ends in the same text.

* A token that becomes given is certain from there on. A token that becomes free is denoised anew, from an x
  in which what was given is hidden in noise of level t.
* Another seed replaces the noise: x = x0_hat + t·eps, around the last prediction. At step 0 that is a new sample.
* What places the steps (their number, the warp) belongs to the whole trajectory and cannot be changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.estimator import Estimator
from cdcd.diffusion.sampling import Point, SamplingConfig, begin, finish, steps, time_grid
from cdcd.diffusion.step_noise import step_noise
from cdcd.inference.decoder_settings import decoder_settings
from cdcd.inference.model import Callback, DiffusionSampler, SampleDraws
from cdcd.settings import Seed, Steps, bounds_of, convert, unknown

OF_THE_WHOLE = (
    *("decoder", "num_steps", "warp", "warp_temperature", "warp_uniformity", "rho"),
    *("initial_noise_scale", "replacement", "final_prediction"),
)
"""Settings that a change cannot have."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Other tokens, another seed or other settings from a step on."""

    step: int
    """Number of steps that stay as they were."""
    tokens: Mapping[int, int | str | None] = field(default_factory=dict)
    """For some positions a given token, a text whose tokens are given from there on, or none: it becomes free."""
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedChange:
    """A change with tokens instead of texts, and with all settings."""

    step: int
    tokens: Mapping[int, int | None]
    seed: int | None
    settings: SamplingConfig


@dataclass(frozen=True)
class Stage:
    """A stretch of steps that have the same given tokens, seed and settings."""

    start: int
    estimator: Estimator
    draws: SampleDraws
    settings: SamplingConfig
    has_new_noise: bool = False
    has_new_branches: bool = False
    """The estimator's state has another form: guidance or self-conditioning begins or ends."""

    def enter(self, point: Point, times: Float[Tensor, " steps"]) -> Point:
        """Returns the point from which the stage goes on."""
        last = point.last
        if last is not None and self.has_new_branches:
            last = replace(last, estimate=replace(last.estimate, state=None))
        if not self.has_new_noise:
            return Point(point.index, point.x, last)
        if last is None:
            return begin(self.draws.noise, times, self.settings)
        t = times[point.index].to(point.x)
        return Point(point.index, last.estimate.x0_hat + t * self.draws.noise, last)


def read_change(values: Any) -> Change:
    """Builds a change from JSON, whose positions are texts."""
    known = ("step", "tokens", "seed", "settings")
    if not isinstance(values, Mapping) or "step" not in values:
        raise ValueError(f'a change is {values!r:.60}; give an object such as {{"step": 40}}')
    for name in values:
        if name not in known:
            raise unknown("part of a change", str(name)[:60], known)
    tokens, settings = values.get("tokens") or {}, values.get("settings") or {}
    if not isinstance(tokens, Mapping) or not isinstance(settings, Mapping):
        raise ValueError("tokens and settings of a change are objects, of positions and of names")
    seed = values.get("seed")
    return Change(
        step=_number("step", values["step"], Steps),
        tokens={_number("position", at, Steps): _word(word) for at, word in tokens.items()},
        seed=None if seed is None else _number("seed", seed, Seed),
        settings=dict(settings),
    )


def _number(name: str, value: Any, hint: Any) -> int:
    try:
        number = convert(value, hint)
    except ValueError as error:
        raise ValueError(f"{name} of a change: {error}") from None
    bounds = bounds_of(hint)
    if bounds and (limit := bounds.broken_by(number)):
        raise ValueError(f"{name} of a change is {number}, it must be {limit}")
    return number


def _word(value: Any) -> int | str | None:
    if value is not None and type(value) not in (int, str):
        raise ValueError(f"a token of a change is {value!r:.60}; give a number, a text or null")
    return value


def as_json(change: Change) -> dict[str, Any]:
    """Returns a change as JSON has it, without what is not changed."""
    values = asdict(change) | {"tokens": {str(i): word for i, word in change.tokens.items()}}
    return {name: value for name, value in values.items() if value not in (None, {})}


def resolve(
    changes: Sequence[Change], run: RunConfig, tokenizer: Tokenizer, settings: Mapping[str, Any]
) -> list[ResolvedChange]:
    """Checks changes against a run and the settings of the sample; each keeps those of the change before it."""
    first, resolved = decoder_settings(run, settings), []
    if not isinstance(first, SamplingConfig):
        raise ValueError("a change from a step on is for diffusion models with decoder ode")
    merged, before = dict(settings), 0
    for change in changes:
        if not before <= change.step < first.num_steps:
            raise ValueError(
                f"the step of a change is {change.step}, it must be from {before} to "
                f"{first.num_steps - 1}: below the number of steps, and not before an earlier change"
            )
        for name in change.settings:
            if name in OF_THE_WHOLE:
                raise ValueError(f"{name} belongs to all steps: it cannot change at one of them")
        before, merged = change.step, merged | dict(change.settings)
        chosen = decoder_settings(run, merged)
        assert isinstance(chosen, SamplingConfig)
        tokens = _encoded(change.tokens, tokenizer, run.data.length)
        resolved.append(ResolvedChange(change.step, tokens, change.seed, chosen))
    return resolved


def _encoded(
    words: Mapping[int, int | str | None], tokenizer: Tokenizer, length: int
) -> dict[int, int | None]:
    """Returns a token, or none, for each position that changes."""
    tokens: dict[int, int | None] = {}
    for position, word in words.items():
        several = tokenizer.encode(word, strict=True) if isinstance(word, str) else [word]
        if not several:
            raise ValueError(f"the text at position {position} has no tokens; use null to free it")
        for index, token in enumerate(several, start=position):
            if not 0 <= index < length:
                raise ValueError(f"position {index} is outside of the {length} of this model")
            if token is not None and not 0 <= token < tokenizer.vocab_size:
                raise ValueError(f"token {token} is outside of the {tokenizer.vocab_size} known")
            tokens[index] = token
    return tokens


def given_after(
    change: ResolvedChange, tokens: Int[Tensor, "batch seq"], is_noisy: Bool[Tensor, "batch seq"]
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
    """Returns the given tokens after a change, and the mask of the others."""
    tokens, is_noisy = tokens.clone(), is_noisy.clone()
    for position, token in change.tokens.items():
        is_noisy[:, position] = token is None
        if token is not None:
            tokens[:, position] = token
    return tokens, is_noisy


@torch.no_grad()
def solve_in_stages(
    sampler: DiffusionSampler, stages: Sequence[Stage], callback: Callback | None
) -> Int[Tensor, "batch seq"]:
    """Returns the tokens at the end of a trajectory whose stages follow one another."""
    stage, noise = stages[0], stages[0].draws.noise
    times = time_grid(
        stage.settings, sampler.run.process, sampler.warp.schedule(), sampler.table.dtype
    )
    point = begin(noise, times, stage.settings)
    ends = [*(later.start for later in stages[1:]), len(times) - 1]
    for stage, end in zip(stages, ends, strict=True):
        point, keys = stage.enter(point, times), stage.draws.keys
        taken = steps(
            stage.estimator,
            sampler.table,
            point,
            times,
            stage.settings,
            noise_at=lambda step, keys=keys: step_noise(keys, step, noise),
        )
        for info in islice(taken, end - point.index):
            point = Point.after(info)
            if callback is not None:
                callback(info)
    assert point.last is not None
    return finish(stage.estimator, sampler.table, point.last, times[-1], stage.settings).tokens
