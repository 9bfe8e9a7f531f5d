"""A run that is tuned from another keeps its split of the text, or is refused."""

import re
from pathlib import Path

import pytest
from tiny import cdcd_main, start_tiny, tiny_config

from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.presets import preset
from cdcd.settings import override
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.corpora import load_documents

TEXT = [f"a{i} b{i % 7} c{i % 5} d{i % 3}" for i in range(40)]
TUNED = ("--preset", "demo", "--training.steps", 1, "--training.batch-size", 2)
TUNED += ("--data.layout", "documents", "--training.seed", 5)


def text_options(source: Path) -> dict:
    return {"data.source": str(source), "data.tokenizer": "words", "data.valid_share": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some texts, a run before its first step on one of them, and a run on it prepared."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, lines in {
        "text": TEXT,
        "more": [*TEXT, "a1 b2 c3 d1"],
        "other": [f"d{i % 3} a{i}" for i in range(40)],
        "repeated": TEXT[:20] * 2,
    }.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    for name in ("text", "repeated"):
        start_tiny(folder / name, text_options(folder / f"{name}.txt") | {"training.seed": 3})
    for name, seed in {"prepared": 0, "prepared_anew": 1}.items():
        config = PrepareConfig(
            source=str(folder / "text.txt"),
            tokenizer=str(folder / "text"),
            valid_share=0.25,
            workers=1,
            seed=seed,
        )
        prepare(config, folder / name)
    changes = {"data.source": str(folder / "prepared"), "data.layout": "documents"}
    start_tiny(folder / "on_prepared", changes)
    return folder


@pytest.mark.parametrize("name", ["text", "repeated"])
def test_a_tuned_run_keeps_the_split_of_its_parent(folder, tmp_path, name):
    out, source = tmp_path / "tuned", folder / f"{name}.txt"
    assert (
        cdcd_main("train", "--init-from", folder / name, "--data", source, "--out", out, *TUNED)
        == 0
    )
    tuned, parent = (RunDirectory(run).config for run in (out, folder / name))
    assert (tuned.training.seed, parent.training.seed) == (5, 3)
    assert load_documents(tuned) == load_documents(parent)


def test_a_run_tuned_from_the_demo_keeps_its_stories(tmp_path):
    """Follows the README: the demo, with its own seed, then another preset."""
    runs.start(tiny_config({"training.seed": preset("demo").training.seed}), tmp_path / "demo")
    tuned = runs.inherited_config(preset("small"), tmp_path / "demo")
    again = runs.inherited_config(
        override(preset("small"), {"training.seed": 9}), tmp_path / "demo"
    )
    assert load_documents(tuned) == load_documents(RunDirectory(tmp_path / "demo").config)
    assert tuned.data == again.data


@pytest.mark.parametrize(
    ("parent", "data", "options", "message"),
    [
        ("text", "text.txt", ("--data.split-seed", 5), r"train on \d documents that it held out and hold"),
        ("text", "text.txt", ("--data.valid-share", 0.5), "would hold out 10 documents that it trained"),
        ("text", "text.txt", ("--data.valid-share", 0.1), "would train on 6 documents that it held out;"),
        ("text", "more.txt", (), r"train on \d documents that it held out"),
        ("text", "prepared", (), r"train on \d documents that it held out"),
        ("on_prepared", "prepared_anew", (), r"train on \d documents that it held out"),
        ("on_prepared", "text.txt", (), r"train on \d documents that it held out"),
    ],
)  # fmt: skip
def test_another_split_of_the_same_documents_is_refused(
    folder, tmp_path, capsys, parent, data, options, message
):
    arguments = ("--init-from", folder / parent, "--data", folder / data, "--out", tmp_path / "new")
    assert cdcd_main("train", *arguments, *TUNED, *options) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert f"keep the parent's data.split_seed {3 if parent == 'text' else 0}" in error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("parent", "data"), [("text", "other.txt"), ("on_prepared", "prepared"), ("text", "text.txt")]
)
def test_other_text_and_the_same_split_are_accepted(folder, tmp_path, parent, data):
    arguments = ("--init-from", folder / parent, "--data", folder / data, "--out", tmp_path / "new")
    assert cdcd_main("train", *arguments, *TUNED) == 0
