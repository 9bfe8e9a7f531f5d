"""Processes forked from the one that runs the tests: they start at once, since nothing is imported anew."""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from tiny import cdcd_main


def fork(
    function: Callable[..., Any],
    *arguments: Any,
    output: Path,
    environment: Mapping[str, str] | None = None,
) -> ForkProcess:
    """Starts a function in a forked process that ends with its result as exit code and writes to `output`."""

    def run() -> None:
        os.environ.update(environment or {})
        sys.stdout = sys.stderr = output.open("a", buffering=1)
        for descriptor in (1, 2):
            os.dup2(sys.stdout.fileno(), descriptor)
        sys.exit(function(*arguments))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def fork_cdcd(*arguments: object, output: Path) -> ForkProcess:
    """Starts a command in a forked process."""
    return fork(cdcd_main, *arguments, output=output)


def fork_ranks(
    num_ranks: int, function: Callable[..., Any], *arguments: Any, output: Path
) -> list[ForkProcess]:
    """Starts a function on every rank, each with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    return [
        fork(
            function,
            *arguments,
            output=output,
            environment=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(num_ranks)
    ]


def end_of(*processes: ForkProcess, seconds: float = 120) -> list[int | None]:
    """Waits for processes to end and returns their exit codes."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(end - time.monotonic(), 0))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something has happened, and fails where it does not."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)
