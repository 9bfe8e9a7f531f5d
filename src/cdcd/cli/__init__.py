"""The command line: `cdcd VERB RUN …`. Every verb is a call into the library.

Nothing is imported here but what answers Ctrl-C: the rest takes seconds.
"""

import signal
import sys
from collections.abc import Sequence

from cdcd.cli.interrupts import leave_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, by default that of the process, and returns its exit code."""
    if sys.platform == "win32":
        print("cdcd runs on Linux and macOS; on Windows, use it in WSL", file=sys.stderr)
        return 2
    if arguments is None:
        signal.signal(signal.SIGINT, leave_at_once)
    from cdcd.cli.verbs import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
