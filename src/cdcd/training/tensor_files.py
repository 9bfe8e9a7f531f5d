"""Safetensors files, read so that none asks for more memory than it has bytes.

The header is read first and must describe exactly the bytes of the file. Then a model can be compared
with it, and only then are the tensors read.
"""

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cdcd.files import JSON_LIMIT, open_regular, parse_json, size_of

Tensors = dict[str, Tensor]

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
"""The types of tensors that a checkpoint may hold, by their names in the header."""
MAX_DIMENSIONS = 8


def to_bytes(tensors: Tensors) -> bytes:
    """Returns the content of a file with these tensors."""
    # A copy, because safetensors refuses tensors that share memory.
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    # Safetensors makes the content twice. Where there is no memory for that, this raises MemoryError, and
    # safetensors would panic.
    bytearray(JSON_LIMIT + 2 * sum(each.nbytes for each in copies.values()))
    return save(copies)


def read_header(path: Path) -> Tensors:
    """Returns the tensors of a file on the meta device: their shapes and types, without values."""
    with open_regular(path) as file:
        size = size_of(file)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, JSON_LIMIT):
            raise ValueError(f"{path.name} ({size} bytes) has no header of safetensors")
        try:
            return _described(parse_json(file.read(length)), size - 8 - length)
        except ValueError as error:
            raise ValueError(f"{path.name} ({size} bytes): {error}") from None


def _described(header: Any, num_bytes: int) -> Tensors:
    """Returns the tensors of a header that describes `num_bytes` bytes, one tensor after another."""
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    tensors, spans = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                tensors[name] = _meta(name, dtype, shape, end - start)
                spans.append((start, end))
            case _:
                raise ValueError(f"its header does not describe the tensor {name}")
    ends = [0, *(end for _, end in sorted(spans))]
    if ends[:-1] != [start for start, _ in sorted(spans)] or ends[-1] != num_bytes:
        raise ValueError(f"its header describes {ends[-1]} bytes of tensors, it has {num_bytes}")
    return tensors


def _meta(name: str, dtype: str, shape: list[Any], num_bytes: int) -> Tensor:
    if dtype not in DTYPES:
        raise ValueError(f"the tensor {name} is of the type {dtype}, not {', '.join(DTYPES)}")
    is_shape = all(type(size) is int and 0 < size < 2**48 for size in shape)
    if not is_shape or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"the tensor {name} has no shape")
    if math.prod(shape) * DTYPES[dtype].itemsize != num_bytes:
        raise ValueError(f"the tensor {name} has {num_bytes} bytes, which its shape does not take")
    return torch.empty(shape, dtype=DTYPES[dtype], device="meta")


def read_tensors(path: Path, checksum: str | None) -> Tensors:
    """Returns the tensors of a file whose header has been read, after comparing its checksum."""
    with open_regular(path) as file:
        content = file.read(size_of(file))
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(f"{path.name} ({len(content)} bytes) does not match its checksum")
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(f"{path.name} is no safetensors file: {error}") from None


def check_shapes(expected: Tensors, weights: Tensors, owner: str) -> None:
    """Refuses weights of another model, and names the first tensor that differs."""
    for name, tensor in expected.items():
        if name not in weights:
            raise ValueError(f"{owner} has no tensor {name}: it is of another model")
        if weights[name].shape != tensor.shape:
            raise ValueError(
                f"{owner} is of another model size: {name} is {tuple(weights[name].shape)} there and "
                f"{tuple(tensor.shape)} here"
            )
        if weights[name].dtype != tensor.dtype:
            raise ValueError(
                f"{owner} has a tensor {name} of {weights[name].dtype}, it must be of {tensor.dtype}"
            )
    if extra := sorted(set(weights) - set(expected)):
        raise ValueError(f"{owner} has a tensor {extra[0]} that this model has not")


def check_finite(tensors: Tensors, owner: str) -> None:
    """Refuses weights that hold NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise ValueError(f"{owner} has a tensor {name} with NaN or infinite values")
