"""Progressive distillation (Salimans & Ho, 2022): one Euler step of a student does what two of a teacher do.

A prediction x0_hat that is held over a step of the ODE dx/dt = (x − x0_hat) / t gives Euler's step

    x' = x0_hat + (t'/t)·(x − x0_hat).

Two steps t -> t' -> t'' with the predictions a and b end where one step with their mixture ends,

    x0_target = (1 − w)·a + w·b,        w = (1 − t''/t') / (1 − t''/t).

Score interpolation leaves a student no other predictions than expected embeddings. a and b are such, so
their mixture is one too: that of the probabilities (1 − w)·p_a + w·p_b, which a softmax can equal. The loss
is the divergence from these; the squared error of x0_hat can be added. Both are zero at the target.

Self-conditioning follows what sampling will do. A sequence is noised at the student's step before the one
that is taught; from there both predict, without a prediction before it, and the teacher goes two steps. It
arrives with its own last prediction, the student with its own of one step ago. The first step of a sample
has none, and at t_min, where sampling ends with a prediction, the target is the teacher's there.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.interpolation import interpolate
from cdcd.settings import Bounds, Count, Repeats, Settings, Weight


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Settings, section="distillation"):
    """Distillation of a sampler into one with fewer steps, by halves."""

    teacher_steps: Annotated[int, Bounds(2, 1_000_000, also=(0,))] = 0
    """Steps of the first teacher; 0: no distillation."""
    num_steps: Repeats = 8
    """Steps of the last student: those of the teacher, halved once or more."""
    round_steps: Count = 2_000
    """Steps of training after which a student is the teacher of the next one."""
    squared_error_weight: Weight = 0.0
    """Weight of the mean squared error of x0_hat, times max(1, 1/t²)."""
    divergence_weight: Weight = 1.0
    """Weight of the divergence of the student's token probabilities from the teacher's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_steps and self.teacher_steps not in _doubled(self.num_steps):
            raise ValueError(
                f"distillation.teacher_steps ({self.teacher_steps}) must be distillation.num_steps "
                f"({self.num_steps}) doubled once or more: "
                f"{', '.join(map(str, _doubled(self.num_steps)[:4]))}, …"
            )
        if not self.squared_error_weight and not self.divergence_weight:
            raise ValueError(
                "distillation.squared_error_weight and distillation.divergence_weight are both 0: "
                "set one above 0"
            )

    @property
    def num_rounds(self) -> int:
        """Students, of which each has half the steps of the one before it."""
        return (self.teacher_steps // self.num_steps).bit_length() - 1

    def student_steps(self, step: int) -> int:
        """Returns the steps of the student that a step of training teaches."""
        return self.teacher_steps >> (min(step // self.round_steps, self.num_rounds - 1) + 1)

    def begins_round(self, step: int) -> bool:
        """Returns whether the student becomes the teacher before a step of training."""
        return step in range(self.round_steps, self.num_rounds * self.round_steps, self.round_steps)


def _doubled(num_steps: int) -> list[int]:
    return [num_steps << doublings for doublings in range(1, 21)]


def euler(
    x: Float[Tensor, "batch seq embed"],
    x0_hat: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    t_next: Float[Tensor, " batch"],
) -> Float[Tensor, "batch seq embed"]:
    """Returns x after Euler's step, whose length can differ from row to row."""
    return torch.lerp(x0_hat, x, (t_next / t)[:, None, None])


def levels_around(
    times: Float[Tensor, " steps"], index: Int[Tensor, " batch"]
) -> Float[Tensor, "5 batch"]:
    """Returns five levels of the teacher's grid: the student's step before `index`, and that of `index`.

    Before the first step and after the last they are repeated: steps between them have no length.
    """
    offsets = torch.arange(-2, 3, device=index.device)[:, None]
    return times[(2 * index + offsets).clamp(0, len(times) - 1)]


@dataclass(frozen=True)
class Lesson:
    """The inputs of a student at the start of its step, and the targets of its prediction."""

    x: Float[Tensor, "batch seq embed"]
    t: Float[Tensor, " batch"]
    x0_target: Float[Tensor, "batch seq embed"]
    probabilities: Float[Tensor, "batch seq vocab"]


@torch.no_grad()
def teach(
    teacher: Estimator, x: Float[Tensor, "batch seq embed"], levels: Float[Tensor, "5 batch"]
) -> Lesson:
    """Follows a teacher from `x` at the first level, over two steps and the two that are taught."""
    before, half_before, t, half, after = levels
    estimate = teacher(x, before, None)
    x = euler(x, estimate.x0_hat, before, half_before)
    estimate = teacher(x, half_before, estimate.state)
    x = euler(x, estimate.x0_hat, half_before, t)
    first = teacher(x, t, known(estimate.state, before > t))
    second = teacher(euler(x, first.x0_hat, t, half), half, first.state)
    # A step without length, at the end, has the first prediction alone.
    share = torch.where(after < t, (1 - after / half) / (1 - after / t), 0.0)[:, None, None]
    probabilities = torch.lerp(_probabilities(first), _probabilities(second), share)
    return Lesson(x, t, torch.lerp(first.x0_hat, second.x0_hat, share), probabilities)


def known(state: Any, is_known: Bool[Tensor, " batch"]) -> Any:
    """Returns the last prediction of rows that have one, and zeros for others, as at the start of a sample."""
    return None if state is None else state * is_known[:, None, None]


def _probabilities(estimate: Estimate) -> Float[Tensor, "batch seq vocab"]:
    """Returns token probabilities in float32 or better."""
    logits = estimate.logits
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def distillation_loss(
    student: Estimator,
    teacher: Estimator,
    table: Float[Tensor, "vocab embed"],
    x: Float[Tensor, "batch seq embed"],
    levels: Float[Tensor, "5 batch"],
    config: DistillationConfig,
) -> Float[Tensor, "batch seq"]:
    """Returns the loss of every position; `x` is the noisy sequence at the first of the levels."""
    lesson = teach(teacher, x, levels)
    with torch.no_grad():
        state = known(student(x, levels[0], None).state, levels[0] > lesson.t)
    logits = student(lesson.x, lesson.t, state).logits
    log_probs = logits.log_softmax(-1, dtype=lesson.probabilities.dtype)
    # Not the estimate's x0_hat: its gradients can be too small for the precision that it is made in.
    x0_hat = interpolate(log_probs.exp(), table)
    error = (x0_hat - lesson.x0_target).square().mean(-1)
    weighted = error * (1 / lesson.t**2).clamp(min=1.0)[:, None]
    wanted = lesson.probabilities
    divergence = (torch.xlogy(wanted, wanted) - wanted * log_probs).sum(-1)
    return config.squared_error_weight * weighted + config.divergence_weight * divergence
