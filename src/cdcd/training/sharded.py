"""The optimiser's state of a sharded model (torch.distributed.checkpoint): every rank writes what it holds.

It is there to resume one's own run, on any number of ranks. The weights are in `weights.safetensors`
beside it. The description of the shards is a pickle, which could run a stranger's code: it is read so
that it can name nothing but the types that torch describes tensors with.
"""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cdcd.files import open_regular
from cdcd.training.checkpoint import Tensors, with_prefixes, without_prefix

PREFIX = "optimiser"
DESCRIBING = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata"),
            *("TensorProperties", "TensorStorageMetadata", "BytesStorageMetadata"),
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
"""The types that the description of shards may name, with their modules; also those of numbers."""


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Writes the parts of tensors that this rank holds; all ranks call it."""
    try:
        save(with_prefixes({PREFIX: tensors}), checkpoint_id=folder)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise OSError(0, reasons) from None


def read_shards(folder: Path, parameters: Tensors) -> Tensors:
    """Reads the optimiser's state of parameters, spread as they are over any number of ranks."""
    tensors, reader = {}, _Reader(folder)
    for name, described in reader.read_metadata().state_dict_metadata.items():
        # Earlier versions wrote the weights beside it.
        if name.startswith(f"{PREFIX}.") and isinstance(described, TensorStorageMetadata):
            parameter = parameters.get(name.split(".", 3)[-1])
            if parameter is None or described.size not in (parameter.shape, torch.Size([])):
                raise ValueError(f"{folder} has a tensor {name} of another model")
            has_its_shape = described.size == parameter.shape
            tensors[name] = (
                torch.zeros_like(parameter.detach())
                if has_its_shape
                else torch.zeros((), device=parameter.device)
            )
    with warnings.catch_warnings():
        # A single process is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return without_prefix(PREFIX, tensors)


class _Reader(FileSystemReader):
    """Reads shards whose description names types of tensors and files beside it, nothing else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = Path(self.path) / ".metadata"
        with open_regular(file) as opened:
            try:
                metadata = _Unpickler(opened).load()
                files = [stored.relative_path for stored in metadata.storage_data.values()]
            except (
                pickle.UnpicklingError,
                EOFError,
                LookupError,
                TypeError,
                AttributeError,
            ) as error:
                raise ValueError(f"{file} is damaged: {error}") from None
        for name in files:
            if Path(name).name != name:
                raise ValueError(f"{file} is damaged: {name} is no file beside it")
        return metadata


class _Unpickler(pickle.Unpickler):
    """Builds the types of `DESCRIBING` alone."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        is_dtype = module_name == "torch" and isinstance(
            getattr(torch, global_name, None), torch.dtype
        )
        if is_dtype or (module_name, global_name) in DESCRIBING:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
