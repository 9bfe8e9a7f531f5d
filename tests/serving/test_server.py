"""The server: what it answers, what it refuses, and what it says to browsers."""

import json
import random
import socket

import httpx
import pytest
from playground import of_kind, running, stream

from cdcd.inference import names
from cdcd.serving.guard import HEADERS
from cdcd.serving.limits import Limits
from cdcd.serving.models import Models, load_models
from cdcd.serving.server import address, listening, token_for
from models import pack_tiny


def test_health_and_models(client):
    health = client.get("/health").json()
    assert (health["status"], health["waiting"]) == ("ok", 0)
    models = {each["name"]: each for each in client.get("/models").json()["models"]}
    assert set(models) == {"stories", "baseline", "masked", "numerals"}
    assert [models[name]["fills_gaps"] for name in ("stories", "masked", "baseline")] == [
        True,
        True,
        False,
    ]
    assert models["numerals"]["languages"] == ["en", "de"]
    controls = {each["name"]: each["value"] for each in models["stories"]["controls"]}
    assert controls["num_steps"] == 4
    assert controls["solver"] == "euler"
    listed = client.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == list(models)


def test_every_answer_has_the_headers_of_a_strict_policy(client):
    answers = [
        client.get("/"),
        client.get("/health"),
        client.get("/nothing"),
        client.post("/generate", json={}),
    ]
    answers.append(client.get("/static/app.js"))
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "server" not in answer.headers
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/types.d.ts",
        "/etc/passwd",
        "/static/",
    ],
)
def test_no_path_reaches_the_file_system(address, path):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        # By hand: a client's library would tidy the path.
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    assert answer.startswith("HTTP/1.1 404")
    assert "import" not in answer
    assert "root:" not in answer


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/generate", {"text": "Mia"}, "there is no gap in the text"),
        ("/generate", {"text": "Mia [99]"}, "a gap of [99] tokens cannot be filled"),
        ("/generate", {"text": "Mai [2]"}, "'Mai' is not in the model's vocabulary"),
        ("/generate", {"text": "[2]", "model": "stroies"}, "did you mean stories?"),
        ("/generate", {"text": "[2]", "model": "numerals"}, "numerals is not a model of text"),
        ("/translate", {"text": "Hi.", "model": "stories"}, "stories is not a translator"),
        (
            "/generate",
            {"text": "[2]", "settings": {"num_steps": 5000}},
            "num_steps is 5000; this server takes at most",
        ),
        (
            "/generate",
            {"text": "[2]", "settings": {"score_temperature": 0}},
            "score_temperature is 0",
        ),
        ("/generate", {"text": "[2]", "settings": {"stepz": 3}}, "stepz"),
        ("/generate", {"text": "[2]", "sed": 1}, "sed: Extra inputs are not permitted"),
        (
            "/generate",
            {"text": "[2]", "seed": -1},
            "seed: Input should be greater than or equal to 0",
        ),
        ("/generate", {"text": "x" * 10_001}, "text: String should have at most 10000 characters"),
        ("/generate", {"text": "[2]", "changes": [{"step": 4}]}, "the step of a change is 4"),
        ("/generate", {"text": "[2]", "changes": [{"step": 0}] * 33}, "changes"),
        (
            "/generate",
            {"text": "Mia [2] was", "model": "baseline"},
            "an autoregressive model cannot fill gaps",
        ),
        (
            "/generate",
            {"text": "[2]", "model": "masked", "changes": [{"step": 0}]},
            "for diffusion models",
        ),
        ("/translate", {"text": " "}, "there is no text to translate"),
        ("/translate", {"text": "a\nb"}, "the text has several lines"),
        ("/translate", {"text": "two " * 90}, "this model reads at most"),
        (
            "/translate",
            {"text": "Hi.", "num_samples": 17},
            "num_samples: Input should be less than or equal to 16",
        ),
        (
            "/v1/completions",
            {"prompt": ["Mia"] * 9, "n": 2},
            "this server takes from 1 to 16 samples",
        ),
        ("/v1/completions", {"prompt": "Mia", "temperature": 0}, "score_temperature is 0.0"),
    ],
)
def test_mistakes_are_one_line_with_the_limit(client, path, body, message):
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_bodies_that_are_too_large_or_no_json(client):
    assert client.post("/generate", json={"text": "x" * 70_000}).status_code == 413
    chunks = (b"[" * 1024 for _ in range(70))
    json_type = {"content-type": "application/json"}
    assert client.post("/generate", content=chunks, headers=json_type).status_code in (400, 413)
    # A form of a strange page is sent without asking; JSON is not.
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post(
            "/generate", content=b'{"text": "[2]"}', headers={"content-type": kind}
        )
        assert answer.status_code == 415
    assert client.request("OPTIONS", "/generate").status_code == 405
    assert client.get("/generate").status_code == 405


def test_a_thousand_malformed_requests(client, capfd):
    draw = random.Random(0)
    atoms = [
        None,
        True,
        -1,
        1.5,
        10**30,
        "",
        "[2]",
        "\ud800",
        "\0",
        "x" * 300,
        [],
        {},
        [[]],
        {"step": 0},
        "[*] [*]",
        "[0]",
    ]
    names = [
        "text",
        "seed",
        "settings",
        "changes",
        "model",
        "prompt",
        "n",
        "suffix",
        "num_samples",
        "odd",
    ]

    def value(depth=0):
        kind = draw.random()
        if depth > 2 or kind < 0.6:
            return draw.choice(atoms)
        if kind < 0.8:
            return [value(depth + 1) for _ in range(draw.randint(0, 3))]
        return {
            draw.choice([*names, "step", "tokens", "num_steps", "eta"]): value(depth + 1)
            for _ in range(3)
        }

    paths = ["/generate", "/translate", "/replay", "/count"]
    for index in range(1000):
        body = {name: value() for name in draw.sample(names, draw.randint(0, 4))}
        # Nothing of it is right: the text has no gap, or is no text.
        body["text"] = draw.choice([None, 3, ["[2]"], "[0]", "[*] [*]", "\ud800", "[2", {"a": 1}])
        content = json.dumps(body).encode()
        if index % 5 == 0:
            content = content[: draw.randint(0, len(content) - 1)]
        if index % 7 == 0:
            content = bytes(draw.randrange(256) for _ in range(40))
        if index == 1:
            content = b"[" * 60_000
        path = (
            draw.choice(paths)
            if index % 5 == 0 or index % 7 == 0
            else draw.choice(paths[:1] + paths[2:3])
        )
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (path, content, answer.text)
        assert answer.json()["error"]["message"]
    out, errors = capfd.readouterr()
    assert "Traceback" not in out + errors
    assert of_kind(stream(client, "/generate", text="Mia [2]"), "end")


# Who may ask


def test_names_that_are_pointed_at_this_machine_are_refused(client):
    for host in ("example.org", "127.0.0.1.example.org:80", "", "[::2]"):
        assert client.get("/health", headers={"host": host}).status_code == 421
    for host in ("localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.get("/health", headers={"host": host}).status_code == 200


def test_where_others_can_connect_a_token_is_needed(models):
    with (
        running(models, host="0.0.0.0", token="a-good-token") as where,
        httpx.Client(base_url=where) as client,
    ):
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert client.get("/static/app.js", headers={"host": "example.org"}).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer a-good-toke"},
            {"authorization": "Bearer é".encode()},
        ):
            assert client.get("/models", headers=headers).status_code == 401
            assert (
                client.post("/generate", json={"text": "[2]"}, headers=headers).status_code == 401
            )
        right = {"authorization": "Bearer a-good-token"}
        assert client.get("/models", headers=right).status_code == 200


def test_a_token_is_made_where_others_can_connect(monkeypatch):
    monkeypatch.delenv("CDCD_TOKEN", raising=False)
    assert token_for("127.0.0.1") is None
    first, second = token_for("0.0.0.0"), token_for("192.0.2.1")
    assert first
    assert len(first) >= 32
    assert first != second
    monkeypatch.setenv("CDCD_TOKEN", "chosen-token")
    assert token_for("0.0.0.0") == token_for("127.0.0.1") == "chosen-token"
    monkeypatch.setenv("CDCD_TOKEN", "short")
    with pytest.raises(ValueError, match="at least 8 printable"):
        token_for("0.0.0.0")


def test_addresses():
    with listening("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert address(first, "127.0.0.1", None) == f"http://127.0.0.1:{port}/"
        assert address(first, "::1", "t") == f"http://[::1]:{port}/#token=t"
        with pytest.raises(
            ValueError, match=f"cannot listen at 127.0.0.1, port {port}: .*another --port"
        ):
            listening("127.0.0.1", port)


def test_runs_of_the_same_name_are_told_apart(runs):
    models = load_models([runs["stories"], runs["stories"]], Limits(), "cpu")
    assert list(models.by_name) == ["stories", "stories-2"]


def test_without_a_run_the_installed_models_are_served(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(names, "_roots", lambda: [tmp_path])
    with pytest.raises(ValueError, match=r"no model is installed .*; or give the runs to serve"):
        load_models([], Limits(), "cpu")
    pack_tiny(runs["stories"], tmp_path / "small")
    assert list(load_models([], Limits(), "cpu").by_name) == ["small"]


def test_without_a_model_of_a_kind():
    with pytest.raises(ValueError, match="this server has not a translator; start it with one"):
        Models([]).named("", translator=True)
