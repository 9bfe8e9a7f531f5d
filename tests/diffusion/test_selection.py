"""Selected positions: taken, put back, and their gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.diffusion.selection import select_noisy
from cdcd.seeding import generator_for

BATCH, LENGTH = 4, 5


def masks(seed: int) -> torch.Tensor:
    return torch.rand(BATCH, LENGTH, generator=generator_for(seed)) < 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 20))
def test_noisy_positions_come_first_and_none_twice(seed, spare):
    is_noisy = masks(seed)
    count = int(is_noisy.sum())
    selection = select_noisy(is_noisy, min(count + spare, BATCH * LENGTH))
    assert selection.positions[:count].tolist() == is_noisy.flatten().nonzero().flatten().tolist()
    assert len(set(selection.positions.tolist())) == len(selection.positions)
    values = torch.randn(BATCH, LENGTH, 3, generator=generator_for(seed))
    back = selection.put(selection.take(values))
    assert torch.equal(back[is_noisy], values[is_noisy])
    assert int((back != 0).any(-1).sum()) == len(selection.positions)
    rows = torch.arange(BATCH).float()
    expected = selection.take(rows[:, None].expand(BATCH, LENGTH))
    assert torch.equal(selection.take_rows(rows), expected)


def test_gradients():
    is_noisy = masks(0)
    for most in (int(is_noisy.sum()), int(is_noisy.sum()) + 3, None):
        selection = select_noisy(is_noisy, most)
        values = torch.randn(BATCH, LENGTH, 2, dtype=torch.double, requires_grad=True)
        rows = torch.randn(BATCH, 2, dtype=torch.double, requires_grad=True)
        taken = torch.randn(len(selection.positions), dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(selection.take, values)
        assert torch.autograd.gradcheck(selection.take_rows, rows)
        assert torch.autograd.gradcheck(selection.put, taken)
