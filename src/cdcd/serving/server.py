"""The server at work: where it listens, what it says, and how it ends."""

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from cdcd.serving.app import OPEN_PATHS, make_app
from cdcd.serving.connections import connections
from cdcd.serving.guard import Guard, is_local
from cdcd.serving.limits import Limits
from cdcd.serving.models import Models

MOST_CONNECTIONS = 1_000


def token_for(host: str) -> str | None:
    """Returns the token that is needed at an address; none where only this machine can connect."""
    chosen = os.environ.get("CDCD_TOKEN", "")
    if chosen and (len(chosen) < 8 or not chosen.isascii() or not chosen.isprintable()):
        raise ValueError("CDCD_TOKEN must have at least 8 printable characters of ASCII")
    if chosen:
        return chosen
    return None if is_local(host) else secrets.token_urlsafe(24)


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Whoever comes before the server is ready waits.
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error}; choose another --port or --host"
        ) from None
    return listener


def address(listener: socket.socket, host: str, token: str | None) -> str:
    """Returns the address of the page, with the token in the part that browsers send to nobody."""
    name = f"[{host}]" if ":" in host else host
    fragment = f"#token={token}" if token else ""
    return f"http://{name}:{listener.getsockname()[1]}/{fragment}"


def make_server(
    models: Models, limits: Limits, host: str = "127.0.0.1", token: str | None = None
) -> uvicorn.Server:
    """Returns the server of some models behind its guard."""
    config = uvicorn.Config(
        Guard(make_app(models, limits), limits, host, token, OPEN_PATHS),
        http=connections(limits.send_seconds),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=limits.drain_seconds,
    )
    return uvicorn.Server(config)


def serve(
    models: Models,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Limits | None = None,
    say: Callable[[str], Any] = print,
) -> None:
    """Serves models until Ctrl-C; then answers in progress end first, for so long as the limits allow."""
    limits, token = limits or Limits(), token_for(host)
    listener = listening(host, port)
    server = make_server(models, limits, host, token)
    say(f"models: {', '.join(each.name for each in models)}")
    say(f"{address(listener, host, token)}   (Ctrl-C ends)")
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    say("ended")
