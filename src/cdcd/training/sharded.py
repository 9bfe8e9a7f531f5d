"""The optimiser's state of a sharded model (torch.distributed.checkpoint): every rank writes what it holds.

It is there to resume one's own run, on any number of ranks. The weights are in `weights.safetensors`
beside it.
"""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cdcd.training.checkpoint import Tensors, with_prefixes, without_prefix

PREFIX = "optimiser"


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Writes the parts of tensors that this rank holds; all ranks call it."""
    try:
        save(with_prefixes({PREFIX: tensors}), checkpoint_id=folder)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise OSError(0, reasons) from None


def read_shards(folder: Path, parameters: Tensors) -> Tensors:
    """Reads the optimiser's state of parameters, spread as they are over any number of ranks."""
    tensors = {}
    for name, described in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        # Earlier versions wrote the weights beside it.
        if name.startswith(f"{PREFIX}.") and isinstance(described, TensorStorageMetadata):
            parameter = parameters[name.split(".", 3)[3]]
            has_its_shape = described.size == parameter.shape
            tensors[name] = (
                torch.zeros_like(parameter.detach())
                if has_its_shape
                else torch.zeros(described.size, device=parameter.device)
            )
    with warnings.catch_warnings():
        # A single process is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())
    return without_prefix(PREFIX, tensors)
