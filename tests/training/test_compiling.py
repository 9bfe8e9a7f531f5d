"""Compiling: when it is done, and that what was traced is found again, and only that."""

import pytest
import torch
from torch._dynamo.utils import counters

from cdcd.training.compiling import compiled, is_compiled, is_graphed, start_workers

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("mode", "on_cpu", "on_gpu"),
    [("off", False, False), ("auto", False, True), ("on", True, True), ("graphs", True, True)],
)
def test_what_is_compiled(mode, on_cpu, on_gpu):
    assert (is_compiled(mode, CPU), is_compiled(mode, GPU)) == (on_cpu, on_gpu)
    assert not is_graphed(mode, CPU)
    assert is_graphed(mode, GPU) == (mode in ("auto", "graphs"))


def test_workers_are_started_for_a_gpu_only(monkeypatch):
    async_compile = pytest.importorskip("torch._inductor.async_compile")
    started = []
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: started.append(True))
    for mode in ("off", "auto", "on"):
        start_workers(mode, CPU)
    start_workers("off", GPU)
    assert not started
    start_workers("auto", GPU)
    assert started


def test_kernels_are_compiled_once(monkeypatch):
    config = pytest.importorskip("torch._inductor.config")
    monkeypatch.setattr(config.triton, "autotune_pointwise", True)
    compiled(lambda x: (x, x), "off", CPU)
    assert config.triton.autotune_pointwise
    compiled(lambda x: (x, x), "on", CPU)
    assert not config.triton.autotune_pointwise


def loss_with_gradient(factor):
    """A loss whose gradient is our own, and not that of its value."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, *grads):
            return factor * grads[0]

    def loss(x):
        total = Scaled.apply(x).sum()
        return total, total.detach()

    return loss


def gradient(factor):
    """The gradient of a loss that is compiled as in a new process."""
    torch.compiler.reset()
    counters.clear()
    x = torch.zeros(4, requires_grad=True)
    total, _ = compiled(loss_with_gradient(factor), "on", CPU)(x)
    total.backward()
    assert x.grad is not None
    return x.grad.tolist(), dict(counters["aot_autograd"])


def test_traced_losses_are_kept_by_both_their_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found, counts = gradient(2.0)
    assert found == [2.0] * 4
    assert counts["autograd_cache_saved"] == 1
    found, counts = gradient(2.0)
    assert found == [2.0] * 4
    assert counts["autograd_cache_hit"] == 1
    found, counts = gradient(3.0)
    assert found == [3.0] * 4
    assert "autograd_cache_hit" not in counts
