"""Attention in one tile: against plain attention in float64, on a GPU and in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from cdcd.networks.attention import Attention, RotaryEmbedding

try:
    from cdcd.networks.triton_attention import mix_heads
except ImportError:  # Triton comes with PyTorch for GPUs.
    mix_heads = None

needs_triton = pytest.mark.skipif(mix_heads is None, reason="needs Triton")
needs_gpu = pytest.mark.skipif(
    mix_heads is None or not torch.cuda.is_available(), reason="needs Triton and a GPU"
)
SHAPES = [(3, 32, 2, 64), (2, 64, 3, 64), (5, 7, 2, 32), (2, 100, 1, 128), (2, 128, 2, 64)]
ERRORS = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}
"""Twice the rounding of a number, and of sums in float32."""


def plain(projected, cos, sin, num_heads):
    def rotate(h):
        a, b = h.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    q, k, v = projected.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
    return mixed.transpose(1, 2).flatten(2)


def compare(shape, dtype, device):
    """Values and gradients of one shape."""
    assert mix_heads is not None
    batch, length, heads, dim = shape
    generator = torch.Generator(device).manual_seed(0)
    rotary = RotaryEmbedding(dim, length).to(device)
    size = (batch, length, 3 * heads * dim)
    projected = torch.randn(size, generator=generator, device=device).to(dtype).requires_grad_()
    mixed = mix_heads(projected, rotary.cos, rotary.sin)
    grad = torch.randn(mixed.shape, generator=generator, device=device).to(dtype)
    mixed.backward(grad)
    exact = projected.detach().double().requires_grad_()
    expected = plain(exact, rotary.cos.double(), rotary.sin.double(), heads)
    expected.backward(grad.double())
    assert projected.grad is not None
    assert exact.grad is not None
    for found, right in ((mixed, expected), (projected.grad, exact.grad)):
        assert (found - right).norm() / right.norm() < ERRORS[dtype]


@needs_gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_and_gradients(shape, dtype):
    compare(shape, dtype, "cuda")


INTERPRETED = """
import torch
from test_triton_attention import compare
for shape in [(2, 32, 2, 64), (2, 7, 2, 32), (1, 20, 3, 32)]:
    for dtype in (torch.float32, torch.float16):  # The interpreter does not know bfloat16.
        compare(shape, dtype, "cpu")
"""


@needs_triton
def test_interpreted_values_and_gradients():
    """The kernels are interpreted where this is set before they are read: in another process."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@needs_gpu
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
