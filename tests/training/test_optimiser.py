"""Optimisers, schedule and moving average against closed forms and torch's own."""

import pytest
import torch
from torch import nn

from cdcd.presets import demo
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.optimiser import (
    MovingAverage,
    Muon,
    learning_rate_at,
    make_optimiser,
    orthogonalise,
)

SHAPES = [(12, 8), (8, 12), (12, 8), (8, 8)]


def matrices(seed: int = 0) -> list[nn.Parameter]:
    generator = generator_for(seed, "matrices")
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize("shape", [(3, 20, 20), (2, 30, 10), (2, 10, 30)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_directions(shape):
    x = torch.randn(shape, generator=generator_for(1))
    found = orthogonalise(x, steps=8)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    alike = (found * (u @ v)).sum((1, 2)) / (found.norm(dim=(1, 2)) * (u @ v).norm(dim=(1, 2)))
    assert float(alike.min()) > 0.97


def test_muon_takes_the_steps_of_torchs_own():
    """torch.optim.Muon works in bfloat16, so steps agree to its precision."""
    ours, theirs = matrices(), matrices()
    a = Muon(ours, 0.95)
    b = torch.optim.Muon(theirs, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        generator = generator_for("gradients", step)
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn(left.shape, generator=generator)
            right.grad = left.grad.clone()
        for optimiser in (a, b):
            optimiser.param_groups[0]["lr"] = 0.1
            optimiser.step()
    for left, right, start in zip(ours, theirs, matrices(), strict=True):
        moved = (left - start).norm()
        assert float(((left - right).norm() / moved).detach()) < 0.03


def test_muon_trains_the_matrices_and_adam_the_rest():
    blocks = nn.ModuleList([nn.Linear(6, 6)])
    module = nn.ModuleDict({"blocks": blocks, "head": nn.Linear(6, 3)})
    optimiser = make_optimiser(module, (0.9, 0.99), 0.95)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimiser.set_rate(0.01)
    optimiser.step()
    assert all((p != before[name]).any() for name, p in module.named_parameters())
    kinds = {name.split(".")[0]: name for name in optimiser.tensors()}
    assert set(kinds) == {"muon", "adam"}
    muon = [name for name in optimiser.tensors() if name.startswith("muon.")]
    assert muon == ["muon.average.blocks.0.weight"]


def test_adam_is_torchs():
    module = nn.Linear(4, 4)
    optimiser = make_optimiser(module, (0.8, 0.95))
    group = optimiser.parts["adam"].param_groups[0]
    assert group["betas"] == (0.8, 0.95)
    assert group["weight_decay"] == 0


def test_learning_rate_rises_stays_and_falls():
    changes = {"steps": 100, "warmup_steps": 10, "decay_steps": 20, "learning_rate": 2.0}
    config = override(demo().training, changes)
    rates = [learning_rate_at(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9:80] == pytest.approx([2.0] * 71)
    assert rates[90] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1)
    flat = override(config, {"warmup_steps": 0, "decay_steps": 0})
    assert {learning_rate_at(step, flat) for step in range(100)} == {2.0}


def test_moving_average_starts_fast_and_slows():
    module = nn.Linear(2, 1, bias=False)
    average = MovingAverage(module, decay=0.9)
    expected = module.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            module.weight.add_(1.0)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)
