"""A model spread over the ranks: alone, replicated (DDP) or sharded (FSDP2).

An engine surrounds the loss with what PyTorch needs to exchange gradients in the backward pass. Both DDP
and FSDP2 average them over the ranks, while the loss is a sum over the targets of the global batch: each
rank multiplies its part by the number of ranks, which makes the average a sum.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cdcd.training.distributed import World

T = TypeVar("T")


class Engine:
    """Runs the passes of a model that one process holds alone: nothing is exchanged."""

    is_sharded = False
    """True where each rank holds only its part of the weights."""

    def __init__(self, num_ranks: int = 1) -> None:
        self.num_ranks = num_ranks

    def around(self, loss: Callable[..., T]) -> Callable[..., T]:
        """Returns a loss function for training, whose gradients are exchanged."""
        return loss

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        """Calls a function of the model without gradients."""
        return function(*inputs)

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Surrounds a part of the batch; only the last part's gradients are exchanged, with all before."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Computes gradients of the sum over the ranks."""
        (loss * self.num_ranks).backward()


class _Replica(nn.Module):
    """The parameters whose gradients DDP exchanges; its forward pass returns what it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.of_model = nn.ParameterList(model.parameters())

    def forward(self, losses: T) -> T:
        return losses


class Replicated(Engine):
    """Every rank holds the whole model (DDP): the gradients are summed while they are computed."""

    def __init__(self, num_ranks: int, model: nn.Module) -> None:
        super().__init__(num_ranks)
        self.replica = DistributedDataParallel(_Replica(model), gradient_as_bucket_view=True)

    def around(self, loss: Callable[..., T]) -> Callable[..., T]:
        # A forward pass of DDP only announces the gradients, which it exchanges as they come. A compiled
        # loss is called before it: inside, torch would cut its graph at DDP's buckets.
        return lambda *inputs: self.replica(loss(*inputs))

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else self.replica.no_sync()


class _Entry(nn.Module):
    """The model as a module whose forward pass is any function of it, such as the whole loss.

    FSDP2 acts where a forward pass begins and ends. The loss calls the network twice and reads the
    embedding table beside it: for FSDP2, that is one pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)


class Sharded(Engine):
    """Every rank holds a part of each matrix (FSDP2), and gathers a block when it is needed."""

    is_sharded = True

    def __init__(self, num_ranks: int, model: nn.Module, device: torch.device) -> None:
        # Importing it takes most of a second, which a single process shall not pay.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(num_ranks)
        mesh = init_device_mesh(device.type, (num_ranks,))
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh)
        # What is outside of the blocks stays whole from the first pass to the end of the backward one.
        self.entry: Any = fully_shard(_Entry(model), mesh=mesh)

    def around(self, loss: Callable[..., T]) -> Callable[..., T]:
        return partial(self.entry, loss)

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        with torch.no_grad():
            result = self.entry(function, *inputs)
        # No backward pass will do it, and the weights may change before the next pass.
        self.entry.reshard()
        return result

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        self.entry.set_requires_gradient_sync(is_last)
        return nullcontext()


def make_engine(strategy: str, world: World, model: nn.Module, device: torch.device) -> Engine:
    """Returns the engine of a strategy; `auto` replicates, and one process needs none."""
    if world.size == 1:
        return Engine()
    if strategy == "fsdp":
        return Sharded(world.size, model, device)
    return Replicated(world.size, model)


def check_shares(batch_size: int, accumulate: int, world: World) -> None:
    """Refuses a batch that the ranks cannot share evenly."""
    if batch_size % (world.size * accumulate):
        raise ValueError(
            f"training.batch_size ({batch_size}) must be a multiple of ranks × training.accumulate "
            f"({world.size} × {accumulate} = {world.size * accumulate}): it is the batch of all "
            f"ranks together"
        )


# Tensors of which this rank may hold a part


def whole(tensor: Any) -> Tensor:
    """Returns the whole of a tensor; where it is sharded, every rank must ask."""
    # Importing its class would take most of a second.
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def part_of(value: Tensor, like: Any) -> Tensor:
    """Spreads a whole tensor over the ranks as `like` is."""
    value = value.to(like.device)
    if not hasattr(like, "full_tensor") or hasattr(value, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
