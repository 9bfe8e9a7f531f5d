"""Ctrl-C at any time: at once where nothing is begun, else by a KeyboardInterrupt that cleans up."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGINT
received: list[int] = []
"""The interrupts of a command at work: some code turns KeyboardInterrupt into errors of its own."""


def say_interrupted() -> int:
    """Prints the line that answers Ctrl-C, and returns the exit code."""
    text = "\ninterrupted\n" if sys.stderr.isatty() else "interrupted\n"
    os.write(2, text.encode())
    return EXIT_CODE


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Ends the process: the handler while modules are imported, which need no cleaning up."""
    os._exit(say_interrupted())


def _note(number: int, frame: FrameType | None) -> None:
    received.append(number)
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt, if the process would leave at once otherwise."""
    if signal.getsignal(signal.SIGINT) is not leave_at_once:
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave_at_once)
