"""The most that one request may ask for; what is beyond is refused with a line that says so."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server."""

    queue: int = 128
    """Requests that wait for one model."""
    body: int = 65_536
    """Bytes of a request."""
    characters: int = 10_000
    """Characters of a text."""
    samples: int = 16
    """Samples of one request."""
    steps: int = 1_000
    """Steps of sampling, or network calls of another decoder."""
    changes: int = 32
    """Changes from a step on."""
    send_seconds: float = 60.0
    """Seconds that a client may take to read a part of an answer."""
    drain_seconds: int = 30
    """Seconds that answers in progress have to end after Ctrl-C."""
