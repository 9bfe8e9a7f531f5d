"""The command and the Python of a text give the same text; frames are those of the sample."""

import json
import shlex
from io import BytesIO, TextIOWrapper

import pytest
from playground import of_kind, stream
from tiny import cdcd_main

from cdcd.serving.generation import Prompt
from cdcd.serving.recipes import Source, text_command
from cdcd.serving.replay import replay_page

CASES = {
    "plain": {"text": "Mia was [4]. [*]", "seed": 3},
    "settings": {
        "text": "Mia [5]",
        "settings": {"num_steps": 7, "score_temperature": 0.7, "solver": "heun"},
    },
    "brackets and quotes": {"text": r"Mia was [2], Tom? [3]"},
    "guided, put back": {
        "text": "Mia [*]",
        "settings": {"solver": "ancestral", "eta": 0.5, "guidance_scale": 2},
    },
    "re-noised": {
        "text": "Mia was [6] home. [*]",
        "settings": {"num_steps": 9},
        "changes": [
            {"step": 3, "settings": {"score_temperature": 0.5}},
            {"step": 5, "tokens": {"3": "Tom", "0": None, "2": 7}, "seed": 8},
        ],
    },
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_the_recipes_give_the_same_text(client, capfd, body):
    [end] = of_kind(stream(client, "/generate", model="stories", **body), "end")
    assert "".join(end["parts"]) == end["text"]
    again, python = shown_by(end, capfd)
    assert again == python == end["text"]


def shown_by(end, capfd):
    """Returns what the command and the lines of Python print."""
    capfd.readouterr()
    program, *words = shlex.split(end["command"])
    assert program == "cdcd"
    assert cdcd_main(*words) == 0
    printed = capfd.readouterr().out
    exec(compile(end["python"], "recipe", "exec"), {})
    return printed.removesuffix("\n"), capfd.readouterr().out.removesuffix("\n")


@pytest.mark.parametrize("name", ["baseline", "masked"])
def test_other_models_have_recipes_too(client, capfd, name):
    body = {"model": name, "text": "Mia was [*]", "seed": 5, "settings": {"temperature": 0.9}}
    events = stream(client, "/generate", **body)
    [end] = of_kind(events, "end")
    assert set(shown_by(end, capfd)) == {end["text"]}
    [start], frames = of_kind(events, "start"), of_kind(events, "frame")
    assert frames[-1]["parts"][:2] == ["Mia", " was"]
    assert frames[-1]["step"] + 1 == start["steps"]
    words = {word for frame in frames for word in frame.get("words", {}).values()}
    assert "(end of the text)" in words
    assert not {"<pad>", "<eos>"} & words


def test_a_text_that_begins_with_a_dash_is_no_option(runs):
    command = text_command(Source(str(runs["stories"])), Prompt(text="--json [2]"))
    assert command.endswith("-- " + str(runs["stories"]) + " '--json [2]'")


def test_frames_are_the_steps_of_the_sample(client, model):
    settings = {"num_steps": 6}
    events = stream(client, "/generate", model="stories", text="Mia [5]", settings=settings)
    [start], frames, [end] = (of_kind(events, kind) for kind in ("start", "frame", "end"))
    seen = []
    [generated] = model.generate(model.infill_canvas("Mia [5]"), callback=seen.append, **settings)
    assert end["text"] == generated.text
    assert [frame["step"] for frame in frames] == list(range(6))
    assert [frame["t"] for frame in frames] == pytest.approx([i.t for i in seen], rel=1e-4)
    assert start["t"][:-1] == pytest.approx([i.t for i in seen], rel=1e-4)
    assert start["given"] == [int(not noisy) for noisy in model.infill_canvas("Mia [5]").is_noisy]
    words = {}
    for frame, info in zip(frames, seen, strict=True):
        new = frame.get("words", {})
        assert not set(new) & set(words)  # Each word is said once.
        words |= new
        probs = info.probabilities[0]
        for position, ranked in frame["best"].items():
            for token, p in zip(ranked[::2], ranked[1::2], strict=True):
                assert p == pytest.approx(1000 * float(probs[int(position), token]), abs=0.51)
                assert str(token) in words


def test_the_steps_lie_on_the_warp(client, model):
    [start] = of_kind(stream(client, "/generate", text="[*]", settings={"num_steps": 8}), "start")
    # The learnt warp places its steps uniformly in u.
    assert start["u"] == pytest.approx([1 - i / 8 for i in range(9)], abs=1e-3)
    assert start["curve_u"] == sorted(start["curve_u"])
    assert (start["curve_t"][0], start["curve_t"][-1]) == pytest.approx(
        (start["t"][-1], start["t"][0])
    )


def test_translations_their_choice_and_their_recipes(client, capfd, monkeypatch):
    text = "Anna gets up at half past two."
    body = {"text": text, "num_samples": 4, "seed": 2, "settings": {"num_steps": 3}}
    events = stream(client, "/translate", **body)
    [end] = of_kind(events, "end")
    assert len(end["samples"]) == len(end["likeness"]) == 4
    assert of_kind(events, "progress")[-1]["share"] == 1
    mean = [sum(row) / 4 for row in end["likeness"]]
    assert end["mean"] == pytest.approx(mean, abs=0.1)
    assert end["mean"][end["chosen"]] == max(end["mean"])
    piped, _, command = end["command"].partition(" | ")
    assert piped == rf"printf '%s\n' '{text}'"
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(f"{text}\n".encode())))
    printed, python = shown_by(end | {"command": command}, capfd)
    assert printed == python == end["samples"][end["chosen"]]


def test_one_sample_has_nothing_to_choose_from(client):
    [end] = of_kind(stream(client, "/translate", text="Anna gets up.", num_samples=1), "end")
    assert end["chosen"] == 0
    assert len(end["samples"]) == 1


def test_the_replay_of_the_command_is_that_of_the_server(client, runs, tmp_path, capsys):
    body = {"text": "Mia [5]", "seed": 2, "settings": {"num_steps": 5}}
    page = client.post("/replay", json={"model": "stories", **body})
    assert page.headers["content-disposition"] == 'attachment; filename="replay.html"'
    file = tmp_path / "replay.html"
    words = ["Mia [5]", "--seed", "2", "--num-steps", "5", "--device", "cpu", "--replay", file]
    assert cdcd_main("infill", runs["stories"], *words) == 0
    assert file.read_bytes() == page.content
    text = capsys.readouterr().out.removesuffix("\n")
    assert json.loads(recording_in(page.text))["end"]["text"] == text
    words = [
        "--prompt",
        "Mia",
        "--seed",
        "2",
        "--num-steps",
        "5",
        "--device",
        "cpu",
        "--replay",
        file,
    ]
    assert cdcd_main("sample", runs["stories"], *words) == 0
    page = client.post("/replay", json=body | {"text": "Mia [*]"})
    assert file.read_bytes() == page.content


def recording_in(page):
    return page.split('id="recording">')[1].split("</script>")[0]


def test_a_replay_loads_nothing_and_its_data_cannot_leave_their_element(client):
    text = "</script><script>alert(1)</script><!-- [2]"
    page = client.post("/replay", json={"model": "stories", "text": "Mia [2]"}).text
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "import " not in page.split("<script>")[1]
    assert "export " not in page.split("<script>")[1]
    hostile = replay_page({"start": {}, "frames": [], "words": {}, "end": None, "command": text})
    assert hostile.count("</script>") == 2
    assert json.loads(recording_in(hostile))["command"] == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-samples", "2"], "--replay is of one whole sample"),
        (["--length", "9"], "--replay is of one whole sample"),
        (["--best-of", "2"], "--replay is of one whole sample"),
    ],
)
def test_a_replay_is_of_one_sample(runs, tmp_path, capsys, options, message):
    file = tmp_path / "replay.html"
    assert cdcd_main("sample", runs["stories"], "--replay", file, *options) == 2
    assert message in capsys.readouterr().err
    assert not file.exists()
