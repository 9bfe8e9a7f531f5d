"""Sharded training state (torch.distributed.checkpoint): every rank writes what it holds.

It is there to resume one's own run, on any number of ranks. What is loaded to sample or to fine-tune
is `weights.safetensors` beside it.
"""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cdcd.files import file_hash
from cdcd.training.distributed import World

Tensors = dict[str, Tensor]


def write_shards(folder: Path, tensors: Tensors, world: World) -> dict[str, str]:
    """Writes this rank's parts, with all ranks, and returns the SHA-256 of every rank's files by name."""
    try:
        save(tensors, checkpoint_id=folder)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise OSError(0, reasons) from None
    own = list(folder.glob(f"__{world.rank}_*"))
    if world.is_main:
        own.append(folder / ".metadata")
    sums = {file.name: file_hash(file) for file in own}
    return {name: hashed for each in world.collect(sums) for name, hashed in each.items()}


def read_shards(folder: Path, tensors: Tensors) -> None:
    """Reads what was saved under their names into tensors, whole or sharded over any number of ranks."""
    with warnings.catch_warnings():
        # A single process is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())


def empty_state(folder: Path, prefix: str, parameters: Tensors) -> Tensors:
    """Makes tensors for the saved state of parameters: spread as a parameter of that shape is, or small."""
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {}
    for name, described in saved.items():
        if name.startswith(f"{prefix}.") and isinstance(described, TensorStorageMetadata):
            parameter = parameters[name.removeprefix(f"{prefix}.").split(".", 2)[2]]
            if described.size == parameter.shape:
                tensors[name] = torch.zeros_like(parameter.detach())
            else:
                tensors[name] = torch.zeros(described.size, device=parameter.device)
    return tensors
