"""A real server on a free port, in a thread of the test's process, and what clients do with it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from cdcd.serving.limits import Limits
from cdcd.serving.models import Models
from cdcd.serving.server import listening, make_server


@contextmanager
def started(
    models: Models, limits: Limits | None = None, *, buffer: int = 0, **guard: Any
) -> Iterator[tuple[str, Any]]:
    """Yields the address of a server, and the server; `buffer` is the bytes that wait for a slow client."""
    listener = listening("127.0.0.1", 0)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    server = make_server(models, limits or Limits(), **guard)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def running(models: Models, limits: Limits | None = None, **guard: Any) -> Iterator[str]:
    """Yields the address of a server."""
    with started(models, limits, **guard) as (address, _):
        yield address


def events_in(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yields the kind and the data of server-sent events."""
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def stream(client: httpx.Client, path: str, **body: Any) -> list[tuple[str, Any]]:
    """Returns all events of an answer."""
    with client.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            answer.read()
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        return list(events_in(answer.iter_lines()))


def of_kind(events: list[tuple[str, Any]], kind: str) -> list[Any]:
    """Returns the data of the events of a kind."""
    return [data for each, data in events if each == kind]
