"""`--watch`: the text of every step on a terminal, and plain output where there is none."""

from io import StringIO

import pytest
from rich.console import Console
from tiny import cdcd_main

from cdcd.cli import generate, watch
from cdcd.data.tokenizers import ByteTokenizer
from cdcd.inference.snapshots import Snapshot, Snapshots


@pytest.fixture
def terminal(monkeypatch):
    """Stands for the terminal of a command; returns what is written to it."""
    written = StringIO()

    def console(**options):
        options.setdefault("file", written)
        return Console(force_terminal=True, width=70, color_system="truecolor", **options)

    monkeypatch.setattr(generate, "Console", console)
    return written


@pytest.mark.parametrize("name", ["stories", "baseline", "masked"])
def test_on_a_terminal_every_step_can_be_seen(runs, terminal, name):
    assert cdcd_main("sample", runs[name], "--prompt", "Mia", "--watch") == 0
    assert "step " in terminal.getvalue()
    assert "nats" in terminal.getvalue()
    last = terminal.getvalue().rpartition("\x1b[2K")[2]
    assert "Mia" in last
    assert "nats" not in last


def test_of_several_batches_the_number_of_steps_is_shown(runs, terminal):
    command = ["sample", runs["stories"], "--watch", "--num-samples", "3", "--batch-size", "2"]
    assert cdcd_main(*command) == 0
    assert "nats" not in terminal.getvalue()


def test_where_there_is_no_terminal_the_output_is_plain(runs, capsys):
    command = ["infill", runs["stories"], "Mia [4] home."]
    outputs = []
    for more in ([], ["--watch"], ["--watch", "--json"], ["--json"]):
        assert cdcd_main(*command, *more) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[2] == outputs[3]
    assert "\x1b" not in "".join(outputs)


def test_shades_grow_with_certainty_and_control_characters_are_escaped(model):
    assert [watch.shade(p) for p in (0.0, 0.2, 0.5, 0.99, 1.0)] == [
        watch.SHADES[i] for i in (0, 1, 2, 4, 4)
    ]

    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode("\x1bA")
    snapshot = Snapshot(1, 4, tokens, [0.1, 1.0], [False, True], {}, 0.5, t=2.0)
    text = watch.shaded(snapshot, tokenizer)
    assert text.plain == "\\x1bA\nstep 2 of 4, t = 2, 0.50 nats"


def test_a_watch_shows_the_last_step_that_it_was_told(model):
    canvas = model.infill_canvas("Mia [4]")
    shown = watch.Watch(Snapshots(canvas), model.tokenizer, Console(file=StringIO()))
    assert shown.text().plain == ""
    model.generate(canvas, callback=shown, num_steps=5)
    assert "step 5 of 5" in shown.text().plain
