"""Devices and precision: bfloat16 only inside the network, everything around it in float32."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def choose_device(name: str) -> torch.device:
    """Returns the device of a name; `auto` is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Returns the dtype of a name; `auto`: bfloat16 on a GPU, float32 on a CPU, where bfloat16 can crash."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    return {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}[name]


def with_bfloat16_weights(model: M) -> M:
    """Returns a copy whose linear layers hold the weights that autocast would make of them at every call."""
    copied = deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.Linear):
            module.to(torch.bfloat16)
    return copied


def working_dtype(weight: Tensor) -> torch.dtype:
    """Returns autocast's dtype where it is on, else the weight's."""
    device_type = weight.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return weight.dtype


residual_dtype: torch.dtype | None = None
"""Dtype of the residual streams under autocast; None: autocast's."""


def residual(h: Tensor) -> Tensor:
    """Returns the start of a residual stream in the dtype that all networks keep theirs in."""
    is_autocast = torch.is_autocast_enabled(h.device.type)
    return h.to(residual_dtype or working_dtype(h)) if is_autocast else h


class Autocast:
    """A network that computes in bfloat16 under a bfloat16 dtype; its inputs stay float32."""

    def __init__(
        self, network: Callable[..., Tensor], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.network, self.device_type = network, device.type
        self.enabled = dtype == torch.bfloat16

    def precision(self) -> torch.autocast:
        """Returns a context of the precision that the network computes in."""
        return torch.autocast(self.device_type, torch.bfloat16, enabled=self.enabled)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.precision():
            return self.network(*args, **kwargs)
