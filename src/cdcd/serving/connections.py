"""Connections whose other end may stop to read: they are cut off after a while, wherever the answer is."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection that waits for its client for so many seconds, and is then cut off."""

    seconds = 60.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whatever does not fit into the kernel's buffer counts as waiting.
        transport.set_write_buffer_limits(0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.timer = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def connections(seconds: float) -> type[Connection]:
    """Returns the class of connections that wait so long."""
    return type("Connection", (Connection,), {"seconds": seconds})
