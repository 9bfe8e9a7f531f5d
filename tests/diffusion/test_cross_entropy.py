"""Cross-entropy of bfloat16 logits, against float64."""

import torch
from torch.nn import functional as F

from cdcd.diffusion import parts
from cdcd.diffusion.cross_entropy import cross_entropies
from cdcd.seeding import generator_for


def test_values_and_gradients_in_parts(monkeypatch):
    monkeypatch.setattr(parts, "SIZE_ON_CPU", 7)
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
