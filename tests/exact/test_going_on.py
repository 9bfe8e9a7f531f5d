"""Trajectories that are left at a noise level and go on: exactly, and from texts of the chain to the chain."""

import pytest
import torch
from languages import LENGTH, PROCESS, chain, noise, oracle, table
from test_solvers import COUNT, MAX_Z, log_grid, transition_z

from cdcd.diffusion.process import add_noise
from cdcd.diffusion.sampling import Point, SamplingConfig, begin, finish, sample, steps
from cdcd.diffusion.solvers import SOLVERS
from cdcd.diffusion.step_noise import step_noise
from cdcd.seeding import generator_for

STEPS = 12


@pytest.mark.parametrize("index", [0, 1, 7, STEPS - 1])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_trajectory_goes_on_bit_for_bit(solver, index):
    """Also where a step needs the one before, or noise that is put back."""
    config = SamplingConfig(solver=solver, num_steps=STEPS, score_temperature=0.8)
    times, keys, seen = log_grid(STEPS), torch.arange(3), []
    fixed = {"noise_at": lambda step: step_noise(keys, step, noise(3))}
    whole = sample(oracle(3), table(), noise(3), times, config, callback=seen.append, **fixed)
    point = Point.after(seen[index - 1]) if index else begin(noise(3), times, config)
    rest = list(steps(oracle(3), table(), point, times, config, **fixed))
    assert [info.index for info in rest] == list(range(index, STEPS))
    end = finish(oracle(3), table(), rest[-1].step, times[-1], config)
    assert torch.equal(end.x, whole.x)
    assert torch.equal(end.tokens, whole.tokens)


def from_level(index: int, scale: float) -> torch.Tensor:
    """Texts of the chain, hidden in noise of so many times the level after some steps, and denoised."""
    config, times = SamplingConfig(num_steps=100), log_grid(100)
    tokens = chain().sample(COUNT, LENGTH, generator=generator_for(0, "texts"))
    t = (scale * times[index]).expand(COUNT)
    point = Point(index, add_noise(table()[tokens], t, noise(COUNT)))
    *_, info = steps(oracle(COUNT), table(), point, times, config)
    found = finish(oracle(COUNT), table(), info.step, times[-1], config).tokens
    # Not the same ones: the noise hides many.
    assert float((found == tokens).double().mean()) < 0.9
    return found


@pytest.mark.parametrize("index", [30, 45])
def test_texts_of_the_chain_in_noise_become_texts_of_the_chain(index):
    """From any level: its marginal is that of the process."""
    assert PROCESS.t_min < float(log_grid(100)[index]) < PROCESS.t_max
    assert transition_z(from_level(index, 1.0)) < MAX_Z


def test_noise_of_another_level_does_not():
    assert transition_z(from_level(45, 0.6)) > MAX_Z
