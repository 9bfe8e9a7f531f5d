"""How a model is spread over the ranks: alone, replicated (DDP) or sharded (FSDP2).

A strategy runs the loss, so that PyTorch's engine sees its beginning and its end, and the backward
pass. Both engines average gradients over the ranks, while the loss is a sum over the targets of the
global batch: each rank multiplies its part by the number of ranks, which makes the average a sum.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cdcd.training.distributed import World

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

Strategy = Literal["auto", "ddp", "fsdp"]


@runtime_checkable
class Engine(Protocol):
    """Runs the passes of a model that is spread over the ranks."""

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds only its part of the weights."""
        ...

    def loss(self, function: Callable[..., T], *inputs: Any) -> T:
        """Call a loss function whose gradients are wanted."""
        ...

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        """Call a function of the model without gradients."""
        ...

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Around a part of the batch: only the last part's gradients are exchanged, with all before."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Gradients of the sum over the ranks."""
        ...


class Alone:
    """One process: nothing to exchange."""

    is_sharded = False

    def loss(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()


class _Entry(nn.Module):
    """The model as a module whose forward pass is any function of it, such as the whole loss.

    The engines act where a forward pass begins and ends. The loss calls the network twice and reads
    the embedding table beside it: for the engines, that is one pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)


class Replicated:
    """Every rank holds the whole model (DDP): the gradients are summed while they are computed."""

    is_sharded = False

    def __init__(self, world: World, model: nn.Module) -> None:
        self.size = world.size
        # One compiled graph: cut at DDP's buckets, it would be cut through the extra pass too.
        torch._dynamo.config.optimize_ddp = False  # pyright: ignore[reportAttributeAccessIssue]
        # Buffers never change, and need not be sent. The option has a new name since torch 2.13.
        known = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {name: False}
        self.entry = DistributedDataParallel(_Entry(model), gradient_as_bucket_view=True, **options)

    def loss(self, function: Callable[..., T], *inputs: Any) -> T:
        return self.entry(function, *inputs)

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else self.entry.no_sync()

    def backward(self, loss: Tensor) -> None:
        (loss * self.size).backward()


class Sharded:
    """Every rank holds a part of each matrix (FSDP2), and gathers a block when it is needed."""

    is_sharded = True

    def __init__(
        self, world: World, model: nn.Module, blocks: nn.Module, device: torch.device
    ) -> None:
        # Importing it takes most of a second, which a single process shall not pay.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self.size = world.size
        mesh = init_device_mesh(device.type, (world.size,))
        for block in blocks.children():
            fully_shard(block, mesh=mesh)
        # What is outside of the blocks stays whole from the first pass to the end of the backward one.
        self.entry: Any = fully_shard(_Entry(model), mesh=mesh)
        self.groups = [module for module in self.entry.modules() if isinstance(module, FSDPModule)]

    def loss(self, function: Callable[..., T], *inputs: Any) -> T:
        return self.entry(function, *inputs)

    def evaluate(self, function: Callable[..., T], *inputs: Any) -> T:
        with torch.no_grad():
            found = self.loss(function, *inputs)
        # No backward pass will do it, and the weights may change before the next pass.
        for group in self.groups:
            group.reshard()
        return found

    def part(self, *, is_last: bool) -> AbstractContextManager[None]:
        self.entry.set_requires_gradient_sync(is_last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        (loss * self.size).backward()


def make_engine(
    strategy: Strategy, world: World, model: nn.Module, blocks: nn.Module, device: torch.device
) -> Engine:
    """The engine of a strategy; `auto` replicates, and one process needs none."""
    if world.size == 1:
        return Alone()
    if strategy == "fsdp":
        return Sharded(world, model, blocks, device)
    return Replicated(world, model)


def check_shares(batch_size: int, accumulate: int, world: World) -> None:
    """Refuse a batch that the ranks cannot share evenly."""
    if batch_size % (world.size * accumulate):
        raise ValueError(
            f"training.batch_size ({batch_size}) must be a multiple of ranks × training.accumulate "
            f"({world.size} × {accumulate} = {world.size * accumulate}): it is the batch of all "
            f"ranks together"
        )


# Tensors of which this rank may hold a part


def is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this rank holds a part of a tensor; asked without importing what shards it."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; where it is sharded, every rank must ask."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, spread as `like` is."""
    value = value.to(like.device)
    if not is_part(like) or is_part(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
