"""Jobs: each model has one worker, a thread with a bounded queue; each client has a bounded box of events.

A job emits events from the worker's thread, and its client reads them in the server's event loop. Where the
client is slow, frames are left out, every second one of those that wait, but never the last, nor any event of
another kind. A job whose client has gone is taken out of the queue, or ends at its next step.
"""

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MOST_WAITING = 256
"""Events that wait for a client."""
PASSING = ("frame", "queue", "progress")
"""Kinds of events of which later ones matter more."""
LAST = ("end", "error")


class LeftError(Exception):
    """The client has gone."""


class QueueFullError(Exception):
    """Too many requests wait for a model."""


@dataclass(frozen=True)
class Event:
    """A part of an answer."""

    kind: str
    data: Any


class Job:
    """A piece of work for a client; it is made in the client's event loop."""

    def __init__(self, work: Callable[["Job"], Any]) -> None:
        self.work = work
        self.loop, self.ready = asyncio.get_running_loop(), asyncio.Event()
        self.lock, self.waiting = threading.Lock(), deque[Event]()
        self.is_cancelled = False
        self.forget: Callable[[], None] = lambda: None

    def emit(self, kind: str, data: Any) -> None:
        """Puts an event into the client's box, from any thread; where the client has gone, it raises."""
        self.check()
        with self.lock:
            self.waiting.append(Event(kind, data))
            if len(self.waiting) > MOST_WAITING:
                self.waiting = thinned(self.waiting)
        try:
            self.loop.call_soon_threadsafe(self.ready.set)
        except RuntimeError:  # The event loop has ended.
            raise LeftError from None

    def check(self, *_: object) -> None:
        """Raises where the client has gone: a callback of work that has no events."""
        if self.is_cancelled:
            raise LeftError

    def cancel(self) -> None:
        """Ends the job where it has not ended."""
        self.is_cancelled = True
        self.forget()

    async def events(self) -> AsyncIterator[Event]:
        """Yields the events to the last; a reader that stops before cancels the job."""
        try:
            while True:
                await self.ready.wait()
                self.ready.clear()
                while event := self._take():
                    yield event
                    if event.kind in LAST:
                        return
        finally:
            self.cancel()

    async def last(self) -> Event:
        """Returns the last event."""
        return [event async for event in self.events() if event.kind in LAST][-1]

    def _take(self) -> Event | None:
        with self.lock:
            return self.waiting.popleft() if self.waiting else None


def thinned(events: deque[Event]) -> deque[Event]:
    """Returns events without every second one of the passing kinds; the last of each kind stays."""
    kept, is_dropped = deque[Event](), dict.fromkeys(PASSING, True)
    for event in reversed(events):
        if event.kind in PASSING:
            is_dropped[event.kind] = not is_dropped[event.kind]
            if is_dropped[event.kind]:
                continue
        kept.appendleft(event)
    return kept


class Worker:
    """A thread that does one job at a time, in the order in which they came."""

    def __init__(self, name: str, most_waiting: int) -> None:
        self.most_waiting, self.queue = most_waiting, deque[Job]()
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name=f"cdcd {name}", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> None:
        """Puts a job into the queue, and tells its client the place in it."""
        with self.changed:
            if len(self.queue) >= self.most_waiting:
                raise QueueFullError
            job.forget = lambda: self._forget(job)
            self.queue.append(job)
            job.emit("queue", {"place": len(self.queue)})
            self.changed.notify()

    def __len__(self) -> int:
        return len(self.queue)

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: len(self.queue) > 0)
                job = self.queue.popleft()
                self._say_places()
            run(job)
            del job  # Nothing of it is kept while there is nothing to do.

    def _forget(self, job: Job) -> None:
        with self.changed:
            if job in self.queue:
                self.queue.remove(job)
                self._say_places()

    def _say_places(self) -> None:
        for number, job in enumerate(self.queue, start=1):
            with suppress(LeftError):
                job.emit("queue", {"place": number})


def run(job: Job) -> None:
    """Does a job's work; what it raises becomes its last event."""
    try:
        job.emit("queue", {"place": 0})
        job.emit("end", job.work(job))
    except LeftError:
        pass
    except Exception as error:
        is_mistake = isinstance(error, ValueError)
        if not is_mistake:
            traceback.print_exception(error, file=sys.stderr)
        message = str(error) if is_mistake else "internal error; the server's terminal has more"
        data = {"message": message, "type": "invalid_request_error" if is_mistake else "error"}
        _emit_if_there(job, data)


def _emit_if_there(job: Job, error: dict[str, str]) -> None:
    with suppress(LeftError):
        job.emit("error", error)
