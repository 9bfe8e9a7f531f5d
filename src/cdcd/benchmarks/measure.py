"""Clocks and ceilings: timing, memory, the device's own rate of matrix products, and what it is."""

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
        return Timing(statistics.median(seconds), min(seconds), max(seconds), tuple(seconds))

    @property
    def spread(self) -> float:
        """Slowest less fastest, over the median."""
        return (self.max - self.min) / self.median

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"spread": self.spread}


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(
    work: Callable[[], Any], device: torch.device, *, repeats: int, warmup: int = 1
) -> Timing:
    """Time repeats of some work, each waited for, after a few that are not counted."""
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
    """How many TFLOP/s a large square matrix product reaches."""

    tflops: float
    size: int
    dtype: str
    timing: Timing

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def matrix_rate(device: torch.device, size: int | None = None, *, repeats: int = 7) -> MatrixRate:
    """Measure it on random numbers: bfloat16 on a GPU, float32 on a CPU with as many threads as we use."""
    is_cuda = device.type == "cuda"
    size = size or (CUDA_SIZE if is_cuda else CPU_SIZE)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2)
    )
    out = torch.empty_like(a)
    # A GPU's product is shorter than the clock likes: several in a row.
    several = 10 if is_cuda else 1

    def work() -> None:
        for _ in range(several):
            torch.mm(a, b, out=out)

    timing = timed(work, device, repeats=repeats, warmup=3)
    rate = several * 2 * size**3 / timing.median / TERA
    return MatrixRate(rate, size, str(dtype).removeprefix("torch."), timing)


def reset_peak_memory(device: torch.device) -> None:
    """Start to look for the peak from here on, where the system can."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif (refs := Path("/proc/self/clear_refs")).exists():
        # A container may forbid it: then the peak is that of the whole process.
        try:
            refs.write_text("5")
        except OSError:
            return


def peak_memory(device: torch.device) -> dict[str, int]:
    """Bytes: what tensors took of a GPU and what was held for them, or this process's memory."""
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    return {"rss": _peak_rss()}


def _peak_rss() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def process_age() -> float | None:
    """Seconds since this process was started, imports included; None where the system does not say."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return None
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def out_of_memory_as_error(what: str) -> Iterator[None]:
    """Say which shape did not fit, and what to do."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"not enough memory for {what}; lower --training.batch-size, raise "
            f"--training.accumulate or choose a smaller shape"
        ) from None
    except MemoryError:
        raise OutOfMemory(f"not enough memory for {what}; choose a smaller shape") from None


class OutOfMemory(ValueError):  # noqa: N818
    """A shape that the device has no room for."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch is about memory, on a GPU or a CPU."""
    is_cuda = isinstance(error, torch.OutOfMemoryError)
    return is_cuda or "can't allocate memory" in str(error) or "not enough memory" in str(error)


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and command: what a number means nothing without."""
    found: dict[str, Any] = {
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
        found["load_average"] = os.getloadavg()[0]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "gpu_memory": properties.total_memory}
        found |= {"cuda": torch.version.cuda}
    return found


def _program() -> str:
    """What was started; `python -m cdcd` is the same as `cdcd`."""
    return Path(sys.argv[0]).name.replace("__main__.py", "cdcd")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
