"""Generation as a stream of events: a start, a frame for each step, an end.

Numbers of the frames are small for the network's sake: probabilities are thousandths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.masked import UnmaskingConfig
from cdcd.diffusion.sampling import SamplingConfig, time_grid
from cdcd.diffusion.warping import NoiseSchedule, from_unit
from cdcd.inference.changes import Change
from cdcd.inference.model import Model
from cdcd.inference.snapshots import REPLACED, AnyStep, Snapshot, Snapshots, parts_of
from cdcd.inference.text_model import Canvas, DiffusionTextModel, Generated, TextModel
from cdcd.serving.limits import Limits

Emit = Callable[[str, Any], None]
POINTS = 129
"""Points of the curve of the warp."""
UNSEEN = {PAD: "(nothing)", EOS: "(end of the text)"}
"""Tokens that have no text."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """All that a sample depends on, besides the model."""

    text: str
    """A text with gaps."""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[Change] = ()

    def check(self, model: TextModel, limits: Limits) -> Canvas:
        """Returns the canvas; raises an error where the model cannot do what is asked, or it is too much."""
        check_steps(model, self.settings, limits)
        if self.changes:
            model.resolved(self.changes, self.settings)
        return model.infill_canvas(self.text)


def check_steps(
    model: Model, settings: Mapping[str, Any], limits: Limits, num_samples: int = 1
) -> None:
    """Raises an error where settings are wrong or ask for more steps than the server takes."""
    chosen = model.settings(settings, num_samples)
    for name in ("num_steps", "num_rounds"):
        if (count := getattr(chosen, name, 0)) > limits.steps:
            raise ValueError(f"{name} is {count}; this server takes at most {limits.steps}")


class Stream:
    """A sampling callback that emits the start of a sample and a frame for each of its steps."""

    def __init__(self, model: TextModel, prompt: Prompt, emit: Emit) -> None:
        self.model, self.emit = model, emit
        self.canvas = model.infill_canvas(prompt.text)
        settings, changes = prompt.settings, prompt.changes
        resolved = model.resolved(changes, settings) if changes else []
        self.snapshots = Snapshots(self.canvas, resolved)
        emit("start", start_of(model, self.canvas, settings, schedule_of(model, settings)))

    def __call__(self, info: AnyStep) -> None:
        self.emit("frame", frame_of(self.model, self.snapshots.take(info)))

    def end(self, generated: Generated) -> dict[str, Any]:
        """Returns the text at the end."""
        return {
            "text": generated.text,
            "parts": parts_of(self.model.tokenizer, generated.tokens),
            "tokens": list(generated.tokens),
            "given": [int(given) for given in generated.is_given],
        }


def generate(model: TextModel, prompt: Prompt, emit: Emit) -> dict[str, Any]:
    """Generates one sample, emits its start and its frames, and returns its end."""
    stream = Stream(model, prompt, emit)
    options = {"seed": prompt.seed, "changes": prompt.changes, "callback": stream}
    [generated] = model.generate(stream.canvas, **options, **prompt.settings)
    return stream.end(generated)


def schedule_of(model: TextModel, settings: Mapping[str, Any]) -> NoiseSchedule | None:
    """Returns the warp that spaces the steps; none of models that have none."""
    chosen = model.settings(settings)
    if not isinstance(model, DiffusionTextModel) or not isinstance(chosen, SamplingConfig):
        return None
    return model.sampler.warp.schedule().adjusted(
        temperature=chosen.warp_temperature, uniformity=chosen.warp_uniformity
    )


def start_of(
    model: TextModel,
    canvas: Canvas,
    settings: Mapping[str, Any],
    schedule: NoiseSchedule | None,
) -> dict[str, Any]:
    """Returns what is known before the first step: the given tokens, and where the steps lie on the warp."""
    start = {
        "model": model.config.model,
        "given": [int(not noisy) for noisy in canvas.is_noisy],
        "steps": _num_steps(model.settings(settings), canvas),
    }
    if schedule is None:
        return start
    times = time_grid(model.settings(settings), model.config.process, schedule).cpu()
    curve = from_unit(torch.linspace(0, 1, POINTS), model.config.process, schedule.bins)
    return start | {
        "bins": schedule.bins,
        "t": _rounded(times.tolist()),
        "u": _rounded(_uniform(schedule, times)),
        "curve_t": _rounded(curve.tolist()),
        "curve_u": _rounded(_uniform(schedule, curve)),
    }


def _num_steps(settings: Any, canvas: Canvas) -> int:
    """Returns the number of steps: those of the solver, or no more than tokens, or as many as positions."""
    if isinstance(settings, UnmaskingConfig):
        return min(settings.num_steps, canvas.is_noisy.count(True))
    return getattr(settings, "num_steps", len(canvas.tokens))


def _uniform(schedule: NoiseSchedule, t: torch.Tensor) -> list[float]:
    return schedule.uniform_time(t.to(schedule.cdf.widths_in)).tolist()


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def frame_of(model: TextModel, snapshot: Snapshot) -> dict[str, Any]:
    """Returns a step: the text in parts, each one's probability, its rivals, and the mean entropy."""
    best = {
        str(position): [number for token, p in ranked for number in (token, round(1000 * p))]
        for position, ranked in snapshot.best.items()
    }
    return {
        "step": snapshot.index,
        "t": float(f"{snapshot.t:.5g}"),
        "entropy": round(snapshot.entropy, 4),
        "parts": parts_of(model.tokenizer, snapshot.tokens),
        "tokens": snapshot.tokens,
        "p": [round(1000 * p) for p in snapshot.confidence],
        "given": [int(given) for given in snapshot.is_given],
        "best": best,
    }


def words_in(model: TextModel, frame: Mapping[str, Any], known: set[int]) -> dict[str, str]:
    """Returns the texts of a frame's tokens that a client does not know yet, and notes that it does."""
    tokens = {token for ranked in frame["best"].values() for token in ranked[::2]}
    new = (tokens | set(frame["tokens"])) - known
    known |= new
    return {str(token): word_of(model, token) for token in sorted(new)}


def word_of(model: TextModel, token: int) -> str:
    """Returns a token as a person reads it: as text, or by its name where it has none."""
    if token in UNSEEN:
        return UNSEEN[token]
    text = model.tokenizer.decode([token]).strip()
    return model.tokenizer.piece(token) if not text or REPLACED in text else text
