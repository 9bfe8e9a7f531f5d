"""Runs a command in this process and says what is wrong with how it ended.

Right is exit code 0, or exit code 2 with one line that is no report of a bug and nothing left behind.
"""

import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from place import State, state_of
from tiny import cdcd_main

SECONDS = 10
"""Time that a command may compute."""
WAITING_SECONDS = 20
"""Time after which a command that computes nothing is taken to hang."""
ALLOWED_BYTES = 1_500_000_000
"""Memory that a command may take."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONGEST_LINE = 2_000

BEGUN = ("is not finite after step", "when it is mended, go on with")
"""Messages of commands that were not refused: they have worked, and say what they leave."""


class TooLong(BaseException):
    """A command that does not end: no code of the library catches it."""


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command, and what it wrote to stderr."""

    code: int | str
    errors: str

    def problem(self, before: State, after: State) -> str | None:
        """Returns what is wrong, if anything is, given the folder before and after the command."""
        if self.code not in (0, 2):
            return f"ended with {self.code}"
        if "Traceback" in self.errors or "this is a bug" in self.errors:
            return "a traceback or a bug"
        if UNPRINTABLE.search(self.errors):
            return "unprintable characters"
        lines = [line for line in self.errors.splitlines() if ": warning: " not in line]
        if max(map(len, lines), default=0) > LONGEST_LINE:
            return "an endless line"
        if self.code == 0:
            return None
        if len(lines) != 1 or not lines[0].startswith("cdcd"):
            return f"{len(lines)} lines instead of one"
        if any(words in lines[0] for words in BEGUN):
            return None
        return None if before == after else f"left behind: {_differences(before, after)}"


def _differences(before: State, after: State) -> str:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(sorted(names)[:5])


def run_command(
    arguments: Sequence[str], folder: Path, allowed_bytes: int = ALLOWED_BYTES
) -> tuple[Outcome, str | None]:
    """Runs a command inside of a folder; returns its outcome and what is wrong with it."""
    before = state_of(folder)
    with _output() as errors, _limits(allowed_bytes):
        try:
            code: int | str = cdcd_main(*arguments)
        except TooLong:
            code = "no end"
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    outcome = Outcome(code, errors.read_text(encoding="utf-8", errors="replace"))
    return outcome, outcome.problem(before, state_of(folder))


class Opened:
    """The files that Python opens in a context, by their real paths; there is one for a process."""

    def __init__(self) -> None:
        self.paths: set[str] | None = None
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and self.paths is not None and isinstance(arguments[0], str | Path):
            self.paths.add(os.path.realpath(arguments[0]))

    @contextmanager
    def noted(self) -> Iterator[set[str]]:
        """Notes what is opened."""
        self.paths = paths = set()
        try:
            yield paths
        finally:
            self.paths = None


@contextmanager
def _output() -> Iterator[Path]:
    """Sends what is written to stdout nowhere, and to stderr into a file."""
    file = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.err"
    sys.stdout.flush()
    sys.stderr.flush()
    kept, streams = [os.dup(number) for number in (0, 1, 2)], (sys.stdin, sys.stdout, sys.stderr)
    opened = [os.open(os.devnull, os.O_RDWR)] * 2
    opened.append(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
    sys.stdin = open(0, closefd=False, encoding="utf-8")
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = open(2, "w", closefd=False, encoding="utf-8", errors="backslashreplace")
    try:
        yield file
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        for descriptor in {*kept, *opened}:
            os.close(descriptor)


@contextmanager
def _limits(allowed_bytes: int) -> Iterator[None]:
    """Bounds the time and the memory of what runs inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, _stop) for number in timers.values()}
    resource.setrlimit(resource.RLIMIT_DATA, (_memory() + allowed_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1)
    signal.setitimer(signal.ITIMER_REAL, WAITING_SECONDS, 1)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _stop(number: int, frame: object) -> None:
    raise TooLong


def _memory() -> int:
    """Returns the bytes of data of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmData:\s+(\d+)", status)[0]) * 1024
