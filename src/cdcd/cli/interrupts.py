"""Ctrl-C at any time: at once where nothing is begun, else by a KeyboardInterrupt that cleans up.

This module is the first to be imported: until then, Python answers with a traceback.
"""

import os
import signal
import sys

EXIT_CODE = 128 + signal.SIGINT
received: list[int] = []
"""The interrupts of a command at work: some code turns KeyboardInterrupt into errors of its own."""


def say_interrupted() -> int:
    """Prints the line that answers Ctrl-C, and returns the exit code."""
    text = "\ninterrupted\n" if sys.stderr.isatty() else "interrupted\n"
    os.write(2, text.encode())
    return EXIT_CODE


def leave_at_once(number: int, frame: object) -> None:
    """Ends the process: the handler while modules are imported, which need no cleaning up."""
    os._exit(say_interrupted())


def _note(number: int, frame: object) -> None:
    received.append(number)
    raise KeyboardInterrupt


class Interruptible:
    """A context in which Ctrl-C raises KeyboardInterrupt, if the process would leave at once otherwise."""

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGINT) is leave_at_once:
            signal.signal(signal.SIGINT, _note)

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) is _note:
            signal.signal(signal.SIGINT, leave_at_once)
