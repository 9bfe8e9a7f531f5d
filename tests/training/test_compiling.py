"""Compiling: when it is done, that it changes no loss, and that DDP leaves the loss in one graph."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cdcd.training.compiling import compiled, is_compiled, is_graphed
from cdcd.training.parallel import Replicated

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("mode", "on_cpu", "on_gpu"),
    [("off", False, False), ("auto", False, True), ("on", True, True), ("graphs", True, True)],
)
def test_modes_that_compile(mode, on_cpu, on_gpu):
    assert (is_compiled(mode, CPU), is_compiled(mode, GPU)) == (on_cpu, on_gpu)
    assert not is_graphed(mode, CPU)
    assert is_graphed(mode, GPU) == (mode in ("auto", "graphs"))


def test_a_compiled_loss_has_the_value_and_the_gradient_of_the_plain_one(monkeypatch):
    # Spares the compiler seconds of asking what the processor can do.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")

    def loss(x):
        total = (x.exp() * x).sum()
        return total, total.detach()

    gradients = []
    for mode in ("off", "on"):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        function = compiled(loss, mode, CPU)
        assert (function is loss) == (mode == "off")
        total, value = function(x)
        torch.testing.assert_close(value, loss(x)[0].detach())
        total.backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.fixture
def group(tmp_path):
    """Opens a process group of one rank."""
    if not dist.is_available():
        pytest.skip("needs torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_under_ddp_the_loss_is_one_graph(group):
    """Takes layers larger than DDP's first bucket of 1 MB, where torch would cut the graph."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(*[nn.Linear(600, 600) for _ in range(3)])
    loss = torch.compile(lambda x: model(x).square().mean(), backend=count, dynamic=False)
    x = torch.linspace(-1, 1, 1200).view(2, 600)
    engine = Replicated(1, model)
    engine.backward(engine.around(loss)(x))
    assert len(graphs) == 1
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    # A power check: the same loss inside the forward pass of DDP is cut.
    inside = torch.compile(lambda x: model(x).square().sum(), backend=count, dynamic=False)

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return inside(x)

    nn.parallel.DistributedDataParallel(Inside())(x)
    assert len(graphs) > 2
