"""The command line: `cdcd VERB RUN …`. Every verb is a call into the library.

Nothing is imported here but what answers Ctrl-C: the rest takes seconds.
"""

import os
import signal
import sys
from collections.abc import Sequence

from cdcd.cli.interrupts import EXIT_CODE, leave_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, by default that of the process, and returns its exit code."""
    if sys.platform == "win32":
        print("cdcd runs on Linux and macOS; on Windows, use it in WSL", file=sys.stderr)
        return 2
    if arguments is None:
        signal.signal(signal.SIGINT, leave_at_once)
    from cdcd.cli.verbs import run

    code = run(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None and code == EXIT_CODE:
        # All is cleaned up, and Python would take another second to end.
        os._exit(code)
    return code
