"""`cdcd evaluate --check`: shares of documents that keep the rules of an exact judge."""

import json

import pytest
from tiny import cdcd_main, silent, train_tiny

from cdcd.evaluation.checks import GAPS, WHOLE, CheckConfig, CheckedEvaluation

WORDS = ("yes", "no", "tea", "milk", "now", "later", "here", "there")
DIALOGUES = [f"U: {a}. | S: {b}. | U: {c}." for a in WORDS for b in WORDS for c in WORDS]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A diffusion model and an autoregressive one of dialogues, hardly trained."""
    place = tmp_path_factory.mktemp("checks")
    (place / "dialogues.txt").write_text("\n".join(DIALOGUES))
    for name, model in (("run", "diffusion"), ("baseline", "autoregressive")):
        source = {"data.source": str(place / "dialogues.txt"), "data.tokenizer": "symbols"}
        train_tiny(place / name, source | {"model": model, "data.length": 12})
    return place


@pytest.fixture(scope="module")
def evaluation(place):
    config = CheckConfig(num_samples=16, batch_size=16)
    return CheckedEvaluation([place / "run"], "dialogues", config, console=silent())


def test_shares_are_counted(evaluation):
    [known] = [text for text in DIALOGUES if text in evaluation.known][:1]
    new = "U: this. | S: is. | U: new."
    texts = [known, known, new, "U: no | S: end", "nothing"]
    row = evaluation._row("x", {}, WHOLE, texts)
    shares = {name: (m.value, m.low < m.value < m.high) for name, m in row.measures.items()}
    assert shares == {
        "turns": (4 / 5, True),
        "alternating": (4 / 5, True),
        "ended": (3 / 5, True),
        "unique": (2 / 3, True),
        "novel": (1 / 2, True),
    }
    assert evaluation._row("x", {}, WHOLE, ["nothing"]).measures.keys() == {
        *("turns", "alternating", "ended"),
    }


def test_only_the_second_turn_is_hidden_and_the_rest_stays(evaluation):
    [canvas] = evaluation.canvases[:1]
    given = [None if t is None else evaluation.tokenizer.piece(t) for t in canvas.tokens]
    assert given[:3] == evaluation.held_out[0].split()[:3]
    assert given[3:5] == [None, None]
    filled = evaluation.systems[0].model.generate(canvas, num_steps=2)[0].tokens
    kept = [evaluation.tokenizer.piece(token) for token in filled]
    assert kept[:3] == given[:3]
    assert kept[5:8] == given[5:8] == evaluation.held_out[0].split()[5:]


def test_the_report_has_the_data_both_tasks_and_the_baseline(place, capsys):
    out = place / "report"
    command = ("evaluate", place / "run", "--check", "dialogues", "--baseline", place / "baseline")
    options = ("--num-samples", 8, "--num-steps", 2, "--sweep", "score-temperature=1,0.5")
    assert cdcd_main(*command, *options, "--out", out) == 0
    assert "judge: dialogues" in capsys.readouterr().out
    report = json.loads((out / "checks.json").read_text())
    rows = [(row["system"], row["task"], row["num_documents"]) for row in report["rows"]]
    assert rows[0] == ("data", WHOLE, 8)
    assert rows[1:] == [*[("cdcd", WHOLE, 8), ("cdcd", GAPS, 8)] * 2, ("baseline", WHOLE, 8)]
    assert all(m["value"] == 1 for m in report["rows"][0]["measures"].values())
    assert report["rows"][1]["settings"] == {"task": WHOLE, "score_temperature": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--check", "dialogs"), "unknown judge dialogs; did you mean dialogues?"),
        (("--check", "dialogues", "--judge", "x"), "--judge: not for --check"),
        (("--check", "dialogues", "--protocol", "half"), "--protocol: not for --check"),
    ],
)
def test_mistakes_are_one_line(place, capsys, options, message):
    assert cdcd_main("evaluate", place / "run", *options, "--out", place / "x") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
