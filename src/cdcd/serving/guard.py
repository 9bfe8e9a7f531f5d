"""The guard before the server: who may ask, how much, and what a browser may do with the answer.

* Browsers of this machine run pages of strangers too. A page elsewhere cannot read answers, since nothing allows
  it to, nor ask: a body must be JSON, for which a browser asks first, and the name of the host must be ours, so
  that a name that is pointed at this machine later (DNS rebinding) is refused.
* Where others can connect, every request but those of the page itself needs a token.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from cdcd.serving.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class TooLargeError(Exception):
    """A body is larger than allowed."""


def error_body(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Returns an error in the form that clients of OpenAI's interface know."""
    return {"error": {"message": message, "type": kind}}


def is_local(host: str) -> bool:
    """Returns whether an address is this machine's own."""
    return host in LOCAL


@dataclass(frozen=True)
class Guard:
    """An application behind the guard."""

    application: Application
    limits: Limits
    host: str = "127.0.0.1"
    """The address that the server listens at."""
    token: str | None = None
    open_paths: frozenset[str] = frozenset()
    """Paths that need no token: the page itself, in which there is nothing secret."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        limited = self._limited(receive)
        guarded = self._guarded(send)
        if refusal := self._refusal(scope):
            return await _refuse(guarded, *refusal)
        return await self.application(scope, limited, guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """Returns the status and the reason why a request is refused."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if is_local(self.host) and not is_local(_host_in(headers.get(b"host", ""))):
            return 421, "this server is known by the names 127.0.0.1 and localhost alone"
        if self.token and scope["path"] not in self.open_paths:
            given = headers.get(b"authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return 401, "a token is needed: Authorization: Bearer TOKEN, as the server printed"
        if scope["method"] == "POST":
            return self._refused_body(headers)
        return None

    def _refused_body(self, headers: dict[bytes, str]) -> tuple[int, str] | None:
        kind = headers.get(b"content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            return 415, "the body must be JSON: Content-Type: application/json"
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.limits.body:
            return 413, f"the body is larger than the {self.limits.body:,} bytes allowed"
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Returns a `receive` that stops a body that is larger than allowed, where no length is given."""
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.limits.body:
                raise TooLargeError
            return message

        return limited

    def _guarded(self, send: Send) -> Send:
        """Returns a `send` that adds the headers."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", [])}
                more = [
                    (n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own
                ]
                message["headers"] = [*message.get("headers", []), *more]
            await send(message)

        return guarded


def _host_in(header: str) -> str:
    """Returns the host of a Host header, without the port."""
    if header.startswith("["):
        return header[1:].split("]")[0]
    return header.rsplit(":", 1)[0].lower()


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps(error_body(message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
