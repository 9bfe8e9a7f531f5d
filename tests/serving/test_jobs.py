"""Jobs, their queue and their boxes of events."""

import asyncio
import threading
from collections import deque

import pytest

from cdcd.serving.jobs import MOST_WAITING, Event, Job, LeftError, QueueFullError, Worker, thinned


def kinds_and_data(events):
    return [(event.kind, event.data) for event in events]


async def read(job):
    return kinds_and_data([event async for event in job.events()])


def emitting(*frames, then="done"):
    def work(job):
        for frame in frames:
            job.emit("frame", frame)
        return then

    return work


def test_a_job_has_its_place_its_frames_and_its_end():
    async def main():
        job = Job(emitting(1, 2))
        Worker("test", 4).submit(job)
        return await read(job)

    places, frames = (
        [("queue", {"place": 1}), ("queue", {"place": 0})],
        [("frame", 1), ("frame", 2)],
    )
    assert asyncio.run(main()) == [*places, *frames, ("end", "done")]


def held_worker(most_waiting=4):
    """A worker whose first job waits until it is told to go on."""
    go_on, worker = threading.Event(), Worker("held", most_waiting)
    first = Job(lambda _: go_on.wait(30))
    worker.submit(first)
    return worker, first, go_on


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.001)


def test_waiting_jobs_see_their_place_fall():
    async def main():
        worker, first, go_on = held_worker()
        await until(lambda: len(worker) == 0)
        second, third = Job(emitting()), Job(emitting())
        worker.submit(second)
        worker.submit(third)
        go_on.set()
        await read(first)
        return await read(second), await read(third)

    second, third = asyncio.run(main())
    assert [data["place"] for kind, data in second if kind == "queue"] == [1, 0]
    assert [data["place"] for kind, data in third if kind == "queue"] == [2, 1, 0]


def test_a_client_that_leaves_gives_up_its_place():
    async def main():
        worker, _, go_on = held_worker()
        await until(lambda: len(worker) == 0)
        second, third = Job(emitting()), Job(emitting())
        worker.submit(second)
        worker.submit(third)
        second.cancel()
        assert len(worker) == 1
        go_on.set()
        return await read(third)

    places = [data["place"] for kind, data in asyncio.run(main()) if kind == "queue"]
    assert places == [2, 1, 0]


def test_the_queue_is_bounded():
    async def main():
        worker, _, go_on = held_worker(most_waiting=2)
        await until(lambda: len(worker) == 0)
        worker.submit(Job(emitting()))
        worker.submit(Job(emitting()))
        with pytest.raises(QueueFullError):
            worker.submit(Job(emitting()))
        go_on.set()

    asyncio.run(main())


def test_work_ends_at_the_next_step_after_its_client_has_gone():
    async def main():
        done, at_work, ended = [], threading.Event(), threading.Event()

        def work(job):
            try:
                for step in range(1_000_000):
                    job.emit("frame", step)
                    at_work.set()
                    done.append(step)
            except LeftError:
                ended.set()
                raise

        job = Job(work)
        Worker("test", 4).submit(job)
        async for event in job.events():
            if event.kind == "frame":
                break
        job.cancel()
        await asyncio.to_thread(ended.wait, 30)
        assert ended.is_set()
        assert len(done) < 1_000_000

    asyncio.run(main())


def test_mistakes_and_failures_are_the_last_event(capsys):
    def failing(error):
        def work(job):
            raise error

        return work

    async def main():
        worker, answers = Worker("test", 4), []
        for error in (ValueError("x is 3, it must be at most 2"), RuntimeError("secret path")):
            job = Job(failing(error))
            worker.submit(job)
            answers.append((await read(job))[-1])
        job = Job(emitting(then="still there"))
        worker.submit(job)
        return answers, (await read(job))[-1]

    (mistake, failure), last = asyncio.run(main())
    assert mistake == (
        "error",
        {"message": "x is 3, it must be at most 2", "type": "invalid_request_error"},
    )
    assert failure[1]["type"] == "error"
    assert "secret" not in failure[1]["message"]
    assert "RuntimeError: secret path" in capsys.readouterr().err
    assert last == ("end", "still there")


def test_a_client_that_does_not_read_gets_fewer_frames_but_the_last():
    async def main():
        ended, count = threading.Event(), 20 * MOST_WAITING

        def work(job):
            job.emit("start", "start")
            for step in range(count):
                job.emit("frame", step)
                assert len(job.waiting) <= MOST_WAITING + 1
            ended.set()
            return "end"

        job = Job(work)
        Worker("test", 4).submit(job)
        await asyncio.to_thread(ended.wait, 30)
        return count, await read(job)

    count, events = asyncio.run(main())
    frames = [data for kind, data in events if kind == "frame"]
    assert len(events) <= MOST_WAITING + 3
    assert frames == sorted(frames)
    assert frames[-1] == count - 1
    assert events[-1] == ("end", "end")
    assert ("start", "start") in events


def test_thinning_keeps_the_last_of_each_kind():
    events = deque([Event("start", 0), *(Event("frame", i) for i in range(7)), Event("queue", 9)])
    kept = kinds_and_data(thinned(events))
    assert kept == [
        ("start", 0),
        ("frame", 0),
        ("frame", 2),
        ("frame", 4),
        ("frame", 6),
        ("queue", 9),
    ]
