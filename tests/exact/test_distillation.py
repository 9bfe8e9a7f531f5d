"""Distillation: its targets are the closed form of two steps, and a student that reaches them takes both at once."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from languages import DIM, LENGTH, PROCESS, chain, noise, oracle, table
from torch import Tensor, nn

from cdcd.diffusion.distillation import (
    DistillationConfig,
    distillation_loss,
    euler,
    levels_around,
    teach,
)
from cdcd.diffusion.estimator import Estimate
from cdcd.diffusion.sampling import SamplingConfig, sample, time_grid
from cdcd.diffusion.solvers import Slope, euler_step
from cdcd.diffusion.warping import TimeWarp, WarpConfig
from cdcd.seeding import generator_for

STEPS = 4
CONFIG = DistillationConfig(teacher_steps=2 * STEPS, num_steps=STEPS)


@cache
def grid(num_steps: int) -> Tensor:
    warp = TimeWarp(WarpConfig(bins="log"), PROCESS).double()
    return time_grid(SamplingConfig(num_steps=num_steps), PROCESS, warp.schedule(), torch.float64)


def levels(*index: int) -> Tensor:
    return levels_around(grid(2 * STEPS), torch.tensor(index))


def noisy(levels: Tensor) -> Tensor:
    tokens = torch.arange(LENGTH) % 6
    return table()[tokens] + levels[0, :, None, None] * noise(levels.shape[1])


def test_the_students_steps_are_every_second_of_the_teachers():
    torch.testing.assert_close(grid(2 * STEPS)[::2], grid(STEPS))
    times = grid(2 * STEPS).tolist()
    first, second, end = levels(0, 1, STEPS).T.tolist()
    assert first == [times[0], times[0], *times[:3]]
    assert second == times[:5]
    assert end == [*times[-3:], times[-1], times[-1]]


@pytest.mark.parametrize("index", range(STEPS))
def test_one_step_to_the_target_is_two_steps_of_the_oracle(index):
    """The reference are steps of the solver itself, from where the lesson begins."""
    around = levels(index, index)
    teacher = oracle(2)
    lesson = teach(teacher, noisy(around), around)
    x, slope = noisy(around), Slope(teacher)
    for t, t_next in zip(around[:-1, 0], around[1:, 0], strict=True):
        if t == around[2, 0]:
            torch.testing.assert_close(lesson.x, x)
        x = euler_step(slope, x, t, t_next, None).x
    found = euler(lesson.x, lesson.x0_target, around[2], around[4])
    torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-10)
    # The teacher's first prediction alone leads elsewhere.
    alone = euler(lesson.x, teacher(lesson.x, lesson.t).x0_hat, around[2], around[4])
    assert float((alone - x).abs().max()) > 1e-4


def test_the_target_is_the_expected_embedding_of_the_probabilities():
    lesson = teach(oracle(3), noisy(levels(0, 2, STEPS)), levels(0, 2, STEPS))
    torch.testing.assert_close(lesson.probabilities @ table(), lesson.x0_target)
    torch.testing.assert_close(lesson.probabilities.sum(-1), torch.ones(3, LENGTH).double())


def test_at_the_end_the_target_is_the_teachers_prediction():
    around, teacher = levels(STEPS, STEPS), oracle(2)
    lesson = teach(teacher, noisy(around), around)
    assert lesson.t.tolist() == [PROCESS.t_min] * 2
    torch.testing.assert_close(lesson.x0_target, teacher(lesson.x, lesson.t).x0_hat)


@dataclass
class Recording:
    """An estimator that notes its levels and states; its state counts its calls."""

    calls: list[tuple[list[float], Any]] = field(default_factory=list)

    def __call__(self, x: Tensor, t: Tensor, state: Any) -> Estimate:
        self.calls.append((t.tolist(), None if state is None else state[:, 0, 0].tolist()))
        logits = torch.zeros(*x.shape[:2], 6, dtype=x.dtype)
        return Estimate(logits, torch.zeros_like(x), torch.full_like(x, len(self.calls)))


def test_both_see_their_last_prediction_and_none_in_the_first_step():
    student, teacher, around = Recording(), Recording(), levels(0, 2)
    distillation_loss(student, teacher, table(), noisy(around), around, CONFIG)
    assert [state for _, state in teacher.calls] == [None, [1, 1], [0, 2], [3, 3]]
    assert [state for _, state in student.calls] == [None, [0, 1]]
    assert [t for t, _ in teacher.calls] == around[:4].tolist()
    assert [t for t, _ in student.calls] == around[[0, 2]].tolist()


@dataclass
class Fixed:
    """A student that always has the same probabilities."""

    probabilities: Tensor

    def __call__(self, x: Tensor, t: Tensor, state: Any) -> Estimate:
        return Estimate(self.probabilities.log(), self.probabilities @ table(), None)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_loss_is_zero_at_the_target_and_nowhere_else(weights):
    squared, divergence = weights
    config = DistillationConfig(squared_error_weight=squared, divergence_weight=divergence)
    around, teacher = levels(0, 2, STEPS), oracle(3)
    x = noisy(around)
    wanted = teach(teacher, x, around).probabilities
    at_target = distillation_loss(Fixed(wanted), teacher, table(), x, around, config)
    torch.testing.assert_close(at_target, torch.zeros(3, LENGTH).double(), atol=1e-9, rtol=0)
    even = torch.full_like(wanted, 1 / 6)
    away = distillation_loss(Fixed(0.9 * wanted + 0.1 * even), teacher, table(), x, around, config)
    assert float(away.min()) > 0


class Corrected(nn.Module):
    """The oracle, with a factor and biases of its logits to learn for each step of the student."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(STEPS + 1).double())
        self.bias = nn.Parameter(torch.zeros(STEPS + 1, 6).double())

    def forward(self, x: Tensor, t: Tensor, state: Any) -> Estimate:
        step = (t[:, None] - grid(STEPS)).abs().argmin(1)
        exact = oracle(len(x), SHORT)(x, t).logits
        logits = self.factor[step, None, None] * exact + self.bias[step, None]
        return Estimate(logits, logits.softmax(-1) @ table(), None)


SHORT = 4
"""Tokens in a sequence."""


def sampled(estimator: Any, num_steps: int) -> Tensor:
    start = noise(4000, length=SHORT, seed=5)
    return sample(estimator, table(), start, grid(num_steps), SamplingConfig()).tokens


def pair_error(tokens: Tensor) -> float:
    """Total variation between the pairs of neighbours and those of the chain."""
    reference = chain().sample(50_000, SHORT, generator=generator_for("reference"))
    shares = [
        torch.bincount((6 * each[:, :-1] + each[:, 1:]).flatten(), minlength=36)
        / each[:, 1:].numel()
        for each in (tokens, reference)
    ]
    return float((shares[0] - shares[1]).abs().sum()) / 2


def test_a_distilled_sampler_comes_nearer_to_the_chain_in_as_few_steps():
    student, generator = Corrected(), generator_for("distillation")
    adam = torch.optim.Adam(student.parameters(), lr=0.02)
    for _ in range(120):
        tokens = chain().sample(96, SHORT, generator=generator)
        around = levels_around(
            grid(2 * STEPS), torch.randint(STEPS + 1, (96,), generator=generator)
        )
        eps = torch.randn(96, SHORT, DIM, generator=generator).double()
        x = table()[tokens] + around[0, :, None, None] * eps
        teacher = oracle(96, SHORT)
        distillation_loss(student, teacher, table(), x, around, CONFIG).mean().backward()
        adam.step()
        adam.zero_grad()
    with torch.no_grad():
        teacher = oracle(4000, SHORT)
        few, twice = (pair_error(sampled(teacher, n)) for n in (STEPS, 2 * STEPS))
        found = pair_error(sampled(student, STEPS))
    assert twice < 0.6 * few
    assert found < 0.85 * few
