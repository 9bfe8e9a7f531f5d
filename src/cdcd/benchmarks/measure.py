"""Time, operations, memory and hardware, without which a number means nothing."""

import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cdcd._version import __version__

TERA = 1e12
MATRIX_SIZE = {"cuda": 8192, "cpu": 2048}
"""Rows of the matrices whose product is the device's own rate."""


def now(device: torch.device) -> float:
    """Reads the clock when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(
    work: Callable[[], Any], device: torch.device, *, repeats: int, parts: int = 1
) -> dict[str, Any]:
    """Times repeats of some work of equal parts, each repeat waited for.

    Returns the seconds of a part: all of them, their median, and their spread, slowest less fastest over the
    median.
    """
    times = [now(device)]
    for _ in range(repeats):
        work()
        times.append(now(device))
    seconds = [(end - start) / parts for start, end in pairwise(times)]
    median = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / median
    return {"median": median, "spread": spread, "all": seconds}


def count_flops(work: Callable[[], Any]) -> int:
    """Counts the operations of the matrix products in some work, those of attention included.

    A product of an (m × k) and a (k × p) matrix has 2·m·k·p. Causal attention is counted in full. The
    work must be neither compiled nor recorded, and in float32, where no kernel hides its products.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    return counter.get_total_flops()


def matrix_rate(device: torch.device) -> dict[str, Any]:
    """Measures the TFLOP/s of a large product: bfloat16 on a GPU, float32 on the threads of a CPU."""
    size = MATRIX_SIZE[device.type]
    # One product on a GPU is shorter than the clock can tell.
    num_products, dtype = (10, torch.bfloat16) if device.type == "cuda" else (1, torch.float32)
    generator = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator, device=device, dtype=dtype)

    def work() -> None:
        for _ in range(num_products):
            torch.mm(a, b)

    timed(work, device, repeats=3)
    timing = timed(work, device, repeats=7)
    rate = num_products * 2 * size**3 / timing["median"] / TERA
    return {"tflops": rate, "size": size, "dtype": str(dtype)[6:], "timing": timing}


@contextmanager
def watched_memory(device: torch.device, shape: str) -> Iterator[None]:
    """Lets `peak_memory` of a GPU begin anew; running out of memory is an error that names the shape."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except RuntimeError as error:
        words = ("out of memory", "can't allocate memory", "not enough memory")
        if not any(word in str(error) for word in words):
            raise
        raise ValueError(
            f"not enough memory for {shape}; lower --training.batch-size, raise "
            f"--training.accumulate or choose a smaller shape"
        ) from None


def peak_memory(device: torch.device) -> int:
    """Returns the largest number of bytes of the tensors on a GPU, or of this whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # Windows has none.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def environment(device: torch.device) -> dict[str, Any]:
    """Returns hardware, versions and command."""
    is_cuda = device.type == "cuda"
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if is_cuda else None,
        "cuda": torch.version.cuda if is_cuda else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cdcd": __version__,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
