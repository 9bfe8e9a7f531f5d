"""Predicted positions: taken, put back, and their gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.diffusion.positions import noisy_positions, put, take
from cdcd.seeding import generator_for

BATCH, LENGTH = 4, 5


def masks(seed: int) -> torch.Tensor:
    return torch.rand(BATCH, LENGTH, generator=generator_for(seed)) < 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 20))
def test_noisy_positions_come_first_and_none_twice(seed, spare):
    is_noisy = masks(seed)
    count = int(is_noisy.sum())
    positions = noisy_positions(is_noisy, min(count + spare, BATCH * LENGTH))
    assert positions[:count].tolist() == is_noisy.flatten().nonzero().flatten().tolist()
    assert len(set(positions.tolist())) == len(positions)
    values = torch.randn(BATCH, LENGTH, 3, generator=generator_for(seed))
    back = put(take(values, positions), positions, is_noisy.shape)
    assert torch.equal(back[is_noisy], values[is_noisy])
    assert int((back != 0).any(-1).sum()) == len(positions)
    assert torch.equal(put(take(values, None), None, is_noisy.shape), values)


def test_gradients():
    is_noisy = masks(0)
    for spare in (0, 3):
        positions = noisy_positions(is_noisy, int(is_noisy.sum()) + spare)
        values = torch.randn(BATCH, LENGTH, 2, dtype=torch.double, requires_grad=True)
        taken = torch.randn(len(positions), dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(lambda v, p=positions: take(v, p), values)
        assert torch.autograd.gradcheck(lambda v, p=positions: put(v, p, is_noisy.shape), taken)
