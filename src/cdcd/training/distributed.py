"""The processes that train one model together, and what they send each other.

`torchrun` starts one process for each GPU and gives it a rank in its environment; `join` reads that
and opens the process group. Without torchrun there is no group, and every method returns its input.

Tensors on a GPU travel by NCCL. Small things in main memory (flags, messages, paths) travel by gloo
and never wait for the GPU.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from cdcd.networks.precision import choose_device

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
"""The time a rank waits for the others: longer than one of them reads a corpus or writes a checkpoint."""


class SaidElsewhere(Exception):  # noqa: N818
    """Another rank has already printed this error, which is the cause."""


@dataclass(frozen=True)
class World:
    """This process among those that train the model together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The number of this process among those of its machine, and of the GPU that it takes."""
    local_size: int = 1
    store: Store | None = field(default=None, compare=False, repr=False)
    """Notes that the ranks leave for each other."""

    @property
    def is_main(self) -> bool:
        """True in the one process that prints and writes."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Returns this process's own device for a name in the configuration."""
        device = choose_device(name)
        if device.type != "cuda" or self.size == 1:
            return device
        if self.local_size > torch.cuda.device_count():
            raise ValueError(
                f"{self.local_size} processes on this machine, which has "
                f"{torch.cuda.device_count()} GPUs; lower torchrun's --nproc-per-node"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def rows(self, batch_size: int) -> slice:
        """Returns this rank's rows of the global batch."""
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Returns the sum over the ranks, on every rank."""
        if self.size == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def gather(self, rows: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all_rows ..."]:
        """Returns the rows of all ranks in order, on every rank; each has as many."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def take_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites tensors by those of the main process, bit for bit."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0)

    def largest(self, number: int) -> int:
        """Returns the largest of the ranks' numbers; a flag that is 1 on any rank becomes 1 on all."""
        if self.size == 1:
            return number
        maximum = torch.tensor(number)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)

    def on_main(self, function: Callable[[], T]) -> T:
        """Calls a function on the main process only; its result, or its error, reaches every rank."""
        if self.size == 1:
            return function()
        outcome: list[tuple[T | None, Exception | None]] = [(None, None)]
        if self.is_main:
            try:
                outcome = [(function(), None)]
            except (ValueError, OSError) as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType]

    def is_first_to_say(self, message: str) -> bool:
        """Returns whether no other rank has said this: what all would say is said once."""
        return self.store is None or self.store.add(f"said {message}", 1) == 1


ALONE = World()


@contextmanager
def join() -> Iterator[World]:
    """Opens the group that torchrun started, if any; an error that all ranks meet is raised once."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    rank, local_rank, local_size = (
        int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = _open_store()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    world = World(rank, size, local_rank, local_size, store)
    try:
        yield world
    except Exception as error:
        # The others may be gone: the group is left as it is, and the process ends.
        if not world.is_first_to_say(f"{type(error).__name__}: {error}"):
            raise SaidElsewhere from error
        raise
    # A group that something still holds when Python ends takes the process down with it.
    gc.collect()
    dist.destroy_process_group()


def leave(code: int) -> int:
    """Returns an exit code for Python to end with; after an error among several ranks, exits here.

    The group is still open, and cannot be closed without the others, who may be dead; its threads would
    turn the end of Python into an abort.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _open_store() -> Store:
    """Opens the store in which the ranks read each other's addresses.

    torchrun keeps its store over restarts, with the addresses of the dead in it (torch 2.13 waits for
    them), so every attempt puts its own prefix before all keys. Machines count attempts each for
    themselves: with several of them, torchrun must make a new store instead.
    """
    store, rank, _ = next(rendezvous("env://", timeout=TIMEOUT))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        return PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    if rank == 0 and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        print(
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all machines, or a restart may not find the "
            "other ranks",
            file=sys.stderr,
        )
    return store


def is_lost_contact(error: RuntimeError) -> bool:
    """Returns whether an error says that another rank does not answer."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "NCCL", "Connection closed", "Connection reset")
    return any(word in str(error) for word in words)
