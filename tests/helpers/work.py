"""Work counted instead of timed, so that no other program changes the result."""

import sys


def count_calls(function, *args, **kwargs):
    """Counts the calls that a function leads to, of Python and of compiled functions."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return calls
