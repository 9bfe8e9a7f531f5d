"""The memory of this machine, and estimates that are compared with it before work begins."""

import os
from collections.abc import Iterator
from pathlib import Path

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which a container's limit is, in bytes or as a word for none."""


def available_memory() -> int:
    """Returns the bytes of memory that this machine has, or that its container allows."""
    return min(_limits())


def _limits() -> Iterator[int]:
    yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in map(Path, CONTAINER_LIMITS):
        if file.is_file() and (limit := file.read_text().strip()).isdecimal():
            yield int(limit)


def refuse_beyond(available: int, needed: float, subject: str, remedy: str) -> None:
    """Raises an error where an estimate of the needed bytes is above those that are available."""
    if needed > available:
        raise ValueError(
            f"{subject} would need about {needed / 1e9:,.1f} GB of memory, and there are "
            f"{available / 1e9:,.1f} GB; {remedy}"
        )
