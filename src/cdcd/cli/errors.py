"""The end of every command: its exit code, and the one line that says why it failed."""

import os
import platform
import select
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from cdcd._version import __version__
from cdcd.cli.interrupts import received, say_interrupted
from cdcd.cli.messages import one_line, say

MISTAKE = 2
BROKEN_PIPE = 141
"""128 + SIGPIPE, as for other programs whose reader has gone."""
WITHOUT_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
)

PANICS = "pyo3_runtime"
"""The module of the errors of libraries written in Rust, which are no `Exception`."""


class UsageError(Exception):
    """A command line that cannot be parsed."""

    def __init__(self, program: str, message: str) -> None:
        super().__init__(message)
        self.program = program


def exit_code(command: Callable[[], int], program: str, arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code; what it raises becomes one line on stderr."""
    try:
        return command()
    except UsageError as error:
        return _refused(error.program, str(error), arguments)
    except KeyboardInterrupt:
        return say_interrupted()
    except BaseException as error:
        if not (isinstance(error, Exception) or type(error).__module__ == PANICS):
            raise
        if received:
            return say_interrupted()
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            raise
        if os.environ.get("CDCD_TRACEBACK"):
            raise
        return _refused(program, _reason(error, arguments), arguments)


def _refused(program: str, reason: str, arguments: Sequence[str]) -> int:
    say(f"{program}: error: {one_line(reason, arguments)}")
    return MISTAKE


def _reason(error: BaseException, arguments: Sequence[str]) -> str:
    """Returns an error in words: a user's mistake as it says, too little memory, or a bug."""
    text = str(error).strip()
    is_mistake = isinstance(error, ValueError)
    if isinstance(error, MemoryError) or (
        not is_mistake and any(words in text for words in WITHOUT_MEMORY)
    ):
        return (
            "not enough memory; lower the batch size (--batch-size, --training.batch-size), the length "
            "of the sequences or the size of the model"
        )
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        return (
            f"{_file_in(error)}, line {line}: not UTF-8 text (byte 0x{byte:02x}); convert the file"
        )
    if is_mistake or isinstance(error, OSError):
        return text or type(error).__name__
    if isinstance(error, ImportError):
        return f"{text}; install cdcd again, with the extra that this command needs"
    first = next(iter(text.splitlines()), "")
    return (
        f"{type(error).__name__}: {first[:500]} (this is a bug of cdcd; please report it with "
        f"{_saved_traceback(error, arguments)})"
    )


def _file_in(error: BaseException) -> Path | str:
    """Returns the path in the innermost frame that has one, which was being read."""
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        for value in frame.f_locals.values():
            if isinstance(value, Path):
                return value
    return "a file"


def _saved_traceback(error: BaseException, arguments: Sequence[str]) -> str:
    """Writes the traceback into a new file, and returns its path."""
    about = (
        f"cdcd {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"cdcd {shlex.join(arguments)}\n\n"
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="cdcd-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(about + "".join(traceback.format_exception(error)))
    except OSError:
        return "the traceback that CDCD_TRACEBACK=1 shows"
    return file.name


def quietly(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code, also where the reader of its output has gone."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        pass
    except SystemExit as stopped:
        # Rich makes this of a broken pipe.
        if not isinstance(stopped.__context__, BrokenPipeError):
            raise
    # Python flushes both once more when it ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return BROKEN_PIPE


def _reader_has_gone() -> bool:
    """Returns whether nobody reads stdout or stderr any more."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
