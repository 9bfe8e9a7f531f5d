"""Many clients at once, clients that leave or do not read, a thousand requests, and the end of the server."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import httpx
import pytest
from forks import wait_for
from playground import events_in, of_kind, running, started, stream
from tiny import cdcd_main

from cdcd import serving
from cdcd.serving import generation, jobs
from cdcd.serving.limits import Limits
from cdcd.serving.models import load_models

CLIENTS = 100


def test_a_hundred_clients_at_once_are_served_in_their_order(models, client):
    """Nobody is overtaken, so that nobody waits for more than the jobs before: all are done in turn."""
    worker, finished, first_places = models.by_name["stories"].worker, [], {}
    # The first job lasts until all others wait.
    held = threading.Event()
    hold_worker(worker, held)

    async def one(client, index):
        body = {"model": "stories", "text": "Mia [3]", "seed": index, "settings": {"num_steps": 2}}
        async with client.stream("POST", "/generate", json=body) as answer:
            kind = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: ") and kind == "queue" and index not in first_places:
                    first_places[index] = json.loads(line.removeprefix("data: "))["place"]
                    if len(first_places) == CLIENTS:
                        held.set()
        assert kind == "end"

    async def main():
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(
            base_url=str(client.base_url), timeout=60, limits=limits
        ) as many:
            await asyncio.gather(*(one(many, index) for index in range(CLIENTS)))

    order = note_order(worker, finished)
    with order:
        asyncio.run(main())
    assert sorted(first_places.values()) == list(range(1, CLIENTS + 1))
    # The worker has taken the jobs in the order in which they came, none twice and none left out.
    assert finished == sorted(finished)
    assert len(finished) == CLIENTS


class Hold:
    """A job without a client, which lasts until an event."""

    def __init__(self, held):
        self.held = held

    def work(self, _):
        self.held.wait(60)

    def emit(self, *_):
        pass


def hold_worker(worker, held):
    """Gives a worker a job that lasts until an event, and waits until it has begun."""
    worker.submit(Hold(held))
    while len(worker):
        time.sleep(0.001)


def note_order(worker, finished):
    """Notes, while it holds, the number of each job that a worker takes, in the order in which they came."""
    numbers, submit, run = {}, worker.submit, jobs.run

    def noted_submit(job):
        numbers[job] = len(numbers)
        submit(job)

    def noted_run(job):
        run(job)
        if job in numbers:
            finished.append(numbers[job])

    stack = ExitStack()
    stack.enter_context(mock.patch.object(worker, "submit", noted_submit))
    stack.enter_context(mock.patch.object(jobs, "run", noted_run))
    return stack


def test_a_full_queue_is_said(runs):
    models = load_models([runs["stories"]], Limits(queue=2), "cpu")
    held = threading.Event()
    worker = models.by_name["stories"].worker
    hold_worker(worker, held)
    with running(models, Limits(queue=2)) as address, httpx.Client(base_url=address) as client:
        body = {"text": "Mia [2]"}
        waiting = [client.stream("POST", "/generate", json=body) for _ in range(2)]
        for each in waiting:
            each.__enter__()
        refused = client.post("/generate", json=body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        assert "2 requests wait for stories already" in refused.json()["error"]["message"]
        assert client.get("/health").json()["waiting"] == 2
        held.set()
        for each in waiting:
            each.__exit__(None, None, None)


def test_a_client_that_leaves_frees_the_worker(models, address, monkeypatch):
    """It asks for a thousand steps and goes after the first, or does not wait; a short text comes next."""
    counted = []
    frame_of = generation.frame_of
    monkeypatch.setattr(generation, "frame_of", lambda *a: (counted.append(1), frame_of(*a))[1])
    body = {"model": "stories", "text": "[*]", "settings": {"num_steps": 1000}}
    with (
        httpx.Client(base_url=address, timeout=60) as client,
        client.stream("POST", "/generate", json=body) as answer,
    ):
        next(data for kind, data in events_in(answer.iter_lines()) if kind == "frame")
    with httpx.Client(base_url=address, timeout=60) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/replay", json=body, timeout=0.1)
        assert of_kind(stream(client, "/generate", model="stories", text="Mia [2]"), "end")
    assert len(models.by_name["stories"].worker) == 0
    assert len(counted) < 1000


def ask_and_never_read(address, num_steps):
    """Returns a connection with little room for an answer, by which one is asked for."""
    host, port = address.removeprefix("http://").split(":")
    settings = {"num_steps": num_steps}
    body = json.dumps({"model": "stories", "text": "[*]", "settings": settings}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_a_client_that_reads_nothing_for_long_is_cut_off(models, capfd):
    with started(models, Limits(send_seconds=0.2), buffer=4096) as (address, server):
        connection = ask_and_never_read(address, 400)
        wait_for(lambda: server.server_state.connections)
        wait_for(lambda: not server.server_state.connections)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
        connection.close()
    assert received.startswith(b"HTTP/1.1 200")
    assert b"event: frame" in received
    assert b"event: end" not in received
    assert capfd.readouterr().err == ""
    assert len(models.by_name["stories"].worker) == 0


def test_clients_that_never_read_hold_nobody_up(address):
    connections = [ask_and_never_read(address, 300) for _ in range(3)]
    with httpx.Client(base_url=address, timeout=60) as client:
        assert of_kind(stream(client, "/generate", model="stories", text="Mia [2]"), "end")
    for connection in connections:
        connection.close()


@pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of a process as Linux tells it"
)
def test_memory_is_flat_over_a_thousand_requests(client):
    def memory():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def ask(count):
        for seed in range(count):
            body = {"text": "Mia [2]", "seed": seed, "settings": {"num_steps": 2}}
            answer = client.post("/generate", json=body)
            assert answer.text.count("event: end") == 1
        return len(answer.content)

    ask(200)
    before = memory()
    size = ask(800)
    # Were the answers kept, they would take more.
    assert memory() - before < 800 * size / 2


def test_ctrl_c_lets_answers_end(runs):
    """The server stops to listen at once, and ends when the answer has ended."""
    command = [
        sys.executable,
        "-m",
        "cdcd",
        "serve",
        str(runs["stories"]),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline() == "models: stories\n"
    address = process.stderr.readline().split()[0]
    kinds = []
    with httpx.Client(base_url=address, timeout=60) as client:
        body = {"text": "Mia [5]", "settings": {"num_steps": 400}}
        with client.stream("POST", "/generate", json=body) as answer:
            for kind, _ in events_in(answer.iter_lines()):
                kinds.append(kind)
                if kinds.count("frame") == 1 and kind == "frame":
                    process.send_signal(signal.SIGINT)
    assert kinds[-1] == "end"
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "", "ended\n")


def test_mistakes_of_the_command(runs, tmp_path, capsys, monkeypatch):
    for arguments, message in (
        ([tmp_path / "none"], "none"),
        ([runs["stories"], "--port", "70000"], "argument --port: it is 70000"),
        ([runs["stories"], "--host", "203.0.113.7"], "cannot listen at 203.0.113.7"),
    ):
        assert cdcd_main("serve", *arguments) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "cdcd.serving.server")
    monkeypatch.delattr(serving, "server")
    assert cdcd_main("serve", runs["stories"]) == 2
    assert "the playground needs uvicorn: pip install 'cdcd[serve]'" in capsys.readouterr().err
