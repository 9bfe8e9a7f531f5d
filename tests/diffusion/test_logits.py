"""Logits: predicted positions, taken and put back, and cross-entropy in parts against float64."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from cdcd.diffusion.logits import cross_entropies, noisy_positions, put, take
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


def test_values_and_gradients_in_parts(monkeypatch):
    monkeypatch.setattr("cdcd.diffusion.logits.PART", 7)
    generator = generator_for(0)
    logits = (4 * torch.randn(20, 50, generator=generator)).bfloat16().requires_grad_()
    targets = torch.randint(50, (20,), generator=generator)
    weights = torch.rand(20, generator=generator)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none")
    found = cross_entropies(logits, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    (weights * found).sum().backward()
    (weights * expected).sum().backward()
    assert logits.grad is not None
    assert exact.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2**-8, atol=1e-6)


def test_wider_logits_are_left_to_torch():
    logits = torch.randn(5, 9, dtype=torch.double, generator=generator_for(0))
    targets = torch.arange(5)
    expected = F.cross_entropy(logits, targets, reduction="none")
    assert torch.equal(cross_entropies(logits, targets), expected)
