"""Cards: what a run, a file of facts and reports of every kind say, and nothing else."""

import json

import pytest
from tiny import cdcd_main, train_tiny

from cdcd.evaluation.card import Facts, read_facts, write_card
from models import pack_tiny

FACTS = """
[mine]
summary = "Short stories."
licence = "CC-BY-4.0"
languages = ["en"]
data = "Written by hand."
example = "cdcd sample mine"
prompts = ["", "Mia was [3] home."]
"""


def interval(value):
    return {"value": value, "low": value - 0.25, "high": value + 0.25}


REPORTS = {
    "half-given": {
        "judge": {"name": "runs/judge"},
        "protocol": {"prefix": "a prefix of 12 given", "seed": 3},
        "environment": {"cdcd": "0.1.0", "device": "a GPU"},
        "rows": [
            {
                "system": "cdcd",
                "settings": {"score_temperature": 0.9},
                "measured": [{"source": "run", "nll": interval(2.5), "entropy": interval(5.0)}],
                "mean": {"nll": {"value": 9.0, "error": 1.0}, "mauve": {"value": 0.5, "error": 0}},
            }
        ],
    },
    "gaps": {
        "protocol": {"category": "tales"},
        "rows": [
            {"system": "cdcd", "settings": {"task": "gaps"}, "measures": {"right": interval(0.5)}}
        ],
    },
    "translated": {
        "rows": [
            {
                "system": "cdcd",
                "settings": {},
                "scores": {"bleu": interval(30.0), "length_ratio": 1.0},
                "exact": {"num_right": 3, "num_sentences": 4},
            }
        ],
    },
    "held_out": {
        "rows": [
            {
                "system": "cdcd",
                "method": "diffusion bound",
                "measured": [{"run": "x", "nats_per_token": interval(1.5)}],
            }
        ],
    },
    "corpus": {"entropy": {"bits_per_byte": interval(0.5), "divergence": interval(0.0)}},
}
LINES = [
    "### Half given",
    "| system | score_temperature | AR-NLL | entropy | MAUVE |",
    "| cdcd | 0.9 | 2.5 [2.25, 2.75] | 5 [4.75, 5.25] | 0.5 |",
    "Judge: judge; a prefix of 12 given; seed 3; cdcd 0.1.0; a GPU.",
    "| cdcd | gaps | 0.5 [0.25, 0.75] |",
    "Judge: tales; seed 0",
    "| system | BLEU | right |",
    "| cdcd | 30 [29.75, 30.25] | 0.75 [0.3006, 0.9544] |",
    "| system | method | nats per token |",
    "| cdcd | diffusion bound | 1.5 [1.25, 1.75] |",
    "| the language itself, exactly | 0.5 [0.25, 0.75] |",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("card")
    train_tiny(place / "run")
    pack_tiny(place / "run", place / "mine")
    (place / "facts.toml").write_text(FACTS)
    for name, report in REPORTS.items():
        (place / name).mkdir()
        (place / name / "report.json").write_text(json.dumps(report))
    return place


def test_a_card_shows_reports_of_every_kind(place):
    options = [word for name in REPORTS for word in ("--report", place / name / "report.json")]
    out = place / "all" / "mine"
    command = ("export", place / "run", "--out", out, "--facts", place / "facts.toml")
    assert cdcd_main(*command, "--machine", "an abacus, 3 minutes", *options) == 0
    card = (out / "README.md").read_text(encoding="utf-8")
    for line in LINES:
        assert line in card
    assert card.startswith('---\nlicense: "cc-by-4.0"\n')
    for text in ("Short stories.", "Written by hand.", "an abacus, 3 minutes", "cdcd sample mine"):
        assert text in card
    assert "`Mia was [3] home.`" in card
    assert "divergence" not in card
    # The limits were not among the facts.
    assert "## Limits\n\nNot stated." in card


def test_a_baseline_shares_the_facts_of_its_model(place):
    facts = read_facts(place / "facts.toml", "mine-autoregressive")
    assert facts.summary.startswith("The autoregressive model of the size and data of mine")
    assert (facts.licence, facts.prompts) == ("CC-BY-4.0", ("",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[yours]", "unknown model in .*: mine; known: yours"),
        ("[mine]\nlicense = 'MIT'", "unknown fact of mine in .*: license; did you mean licence?"),
        ("[mine]\nprompts = 'Mia'", "prompts of mine must be text, or a list of texts"),
        ("[mine]\nprompts = [1]", "prompts of mine must be text, or a list of texts"),
        ("[mine", "is not TOML in UTF-8"),
    ],
)
def test_facts_that_are_wrong_are_named(place, tmp_path, content, message):
    (tmp_path / "facts.toml").write_text(content)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        read_facts(tmp_path / "facts.toml", "mine")


def test_a_file_that_is_no_report_is_refused(place, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    model = pack_tiny(place / "run", tmp_path / "model")
    with pytest.raises(ValueError, match=r"x\.json is no report of cdcd evaluate: it has no rows"):
        write_card(model, Facts(), [tmp_path / "x.json"], device="cpu")
