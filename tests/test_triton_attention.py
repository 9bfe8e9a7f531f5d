"""Attention in one tile, on a GPU: against plain attention in float64."""

import pytest
import torch
from torch.nn import functional as F

from cdcd.networks.blocks import Attention, RotaryEmbedding, mix_heads

pytestmark = pytest.mark.skipif(
    mix_heads is None or not torch.cuda.is_available(), reason="needs Triton and a GPU"
)


def plain(projected, cos, sin, num_heads):
    def rotate(h):
        a, b = h.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    q, k, v = projected.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
    return mixed.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("batch", "length", "heads", "dim"),
    [(3, 32, 2, 64), (2, 64, 3, 64), (5, 7, 2, 32), (2, 100, 1, 128), (2, 128, 2, 64)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_and_gradients(batch, length, heads, dim, dtype):
    assert mix_heads is not None
    generator = torch.Generator("cuda").manual_seed(0)
    rotary = RotaryEmbedding(dim, length).cuda()
    shape = (batch, length, 3 * heads * dim)
    projected = torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_()
    mixed = mix_heads(projected, rotary.cos, rotary.sin)
    grad = torch.randn(mixed.shape, generator=generator, device="cuda").to(dtype)
    mixed.backward(grad)
    exact = projected.detach().double().requires_grad_()
    expected = plain(exact, rotary.cos.double(), rotary.sin.double(), heads)
    expected.backward(grad.double())
    error = 2**-8 if dtype == torch.bfloat16 else 2**-11
    assert projected.grad is not None
    assert exact.grad is not None
    assert (mixed - expected).norm() / expected.norm() < 2 * error
    assert (projected.grad - exact.grad).norm() / exact.grad.norm() < 2 * error


def test_attention_uses_it_compiled_and_not():
    torch.manual_seed(0)
    attention, rotary = Attention(128, 2).cuda(), RotaryEmbedding(64, 32).cuda()
    h = torch.randn(4, 32, 128, device="cuda")
    exact = attention(h, rotary)
    with torch.autocast("cuda", torch.bfloat16):
        found = attention(h, rotary)
        compiled = torch.compile(attention)(h, rotary)
    assert (found - exact).norm() / exact.norm() < 0.02
    assert (compiled - found).norm() / found.norm() < 0.01
