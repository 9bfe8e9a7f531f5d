"""Time, memory and hardware: clocks, peak memory, the device's rate of matrix products, versions."""

import os
import platform
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdcd._version import __version__

CUDA_SIZE, CPU_SIZE = 8192, 2048
TERA = 1e12


@dataclass(frozen=True)
class Timing:
    """Seconds of equal repeats."""

    median: float
    min: float
    max: float
    all: tuple[float, ...]

    @staticmethod
    def of(seconds: Sequence[float]) -> "Timing":
        """Summarises the seconds of the repeats."""
        return Timing(statistics.median(seconds), min(seconds), max(seconds), tuple(seconds))

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields and the spread: slowest less fastest, over the median."""
        return asdict(self) | {"spread": (self.max - self.min) / self.median}


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(
    work: Callable[[], Any], device: torch.device, *, repeats: int, warmup: int = 1
) -> Timing:
    """Times repeats of some work, each waited for, after `warmup` repeats that are not counted."""
    for _ in range(warmup):
        work()
    seconds = []
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - started)
    return Timing.of(seconds)


@dataclass(frozen=True)
class MatrixRate:
    """TFLOP/s that a large square matrix product reaches."""

    tflops: float
    size: int
    dtype: str
    timing: Timing


def matrix_rate(device: torch.device, size: int | None = None, *, repeats: int = 7) -> MatrixRate:
    """Measures the rate on random numbers: bfloat16 on a GPU, float32 on the threads of a CPU."""
    is_cuda = device.type == "cuda"
    size = size or (CUDA_SIZE if is_cuda else CPU_SIZE)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2)
    )
    out = torch.empty_like(a)
    # One product on a GPU is shorter than the clock can tell.
    num_products = 10 if is_cuda else 1

    def work() -> None:
        for _ in range(num_products):
            torch.mm(a, b, out=out)

    timing = timed(work, device, repeats=repeats, warmup=3)
    rate = num_products * 2 * size**3 / timing.median / TERA
    return MatrixRate(rate, size, str(dtype).removeprefix("torch."), timing)


def reset_peak_memory(device: torch.device) -> None:
    """Lets `peak_memory` of a GPU begin anew; that of a CPU is of the whole process."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Returns bytes: of tensors on a GPU and of what was reserved for them, or of this process."""
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rss": peak if sys.platform == "darwin" else peak * 1024}


@contextmanager
def out_of_memory_as_error(shape: str) -> Iterator[None]:
    """Turns running out of memory into a `ValueError` that names the shape and the remedy."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise ValueError(
            f"not enough memory for {shape}; lower --training.batch-size, raise "
            f"--training.accumulate or choose a smaller shape"
        ) from None


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)


def environment(device: torch.device) -> dict[str, Any]:
    """Returns hardware, versions and command, without which a number means nothing."""
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cdcd": __version__,
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if hasattr(os, "getloadavg"):
        facts["load_average"] = os.getloadavg()[0]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"gpu": properties.name, "gpu_memory": properties.total_memory}
        facts |= {"cuda": torch.version.cuda}
    return facts


def _program() -> str:
    """Returns the command's name; `python -m cdcd` is the same as `cdcd`."""
    return Path(sys.argv[0]).name.replace("__main__.py", "cdcd")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
