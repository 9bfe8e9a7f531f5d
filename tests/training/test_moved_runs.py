"""A run that was moved, or came from a stranger, opens no text but what the user names; and no other text."""

import json
import os
import re
import shutil

import pytest
from tiny import cdcd_main, contents, resume_tiny, start_tiny, tiny_options, train_tiny

from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.training.checkpoint import RunDirectory

MORE = ("--training.steps", 8)


def resume(run, *options):
    return cdcd_main("train", "--resume", "--out", run, *MORE, *options)


@pytest.fixture(scope="module")
def lines():
    return [f"a{i % 9} b{i % 7} c{i % 5} d{i % 3}\n" for i in range(60)]


@pytest.fixture(scope="module")
def made(tmp_path_factory, lines):
    """A text and a run on it, both of them also as a prepared data set."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("".join(lines))
    changes = {"data.source": str(folder / "text.txt"), "data.tokenizer": "words"}
    train_tiny(folder / "on_text", changes | {"data.length": 8})
    config = PrepareConfig(
        source=str(folder / "text.txt"), tokenizer="words", valid_share=0.2, workers=1
    )
    prepare(config, folder / "set")
    train_tiny(folder / "on_set", {"data.source": str(folder / "set"), "data.length": 8})
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it all: runs that are elsewhere than they were made, beside a copy of their text."""
    return shutil.copytree(made, tmp_path / "moved")


def assert_refused(capsys, run, *options, message):
    before = contents(run)
    assert resume(run, *options) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert error.count("\n") == 1
    assert contents(run) == before


@pytest.mark.parametrize(("name", "text"), [("on_text", "text.txt"), ("on_set", "set")])
def test_a_moved_run_opens_the_text_that_is_confirmed(folder, made, capsys, name, text):
    run = folder / name
    message = f"was made elsewhere; its data is said to be at {made / text}: give --data PATH to"
    assert_refused(capsys, run, message=message)
    assert resume(run, "--data", folder / text) == 0
    assert RunDirectory(run).config.data.source == str(folder / text)
    assert capsys.readouterr().err == ""
    # From now on the run is at home.
    assert resume(run, "--training.steps", 9) == 0


def test_the_path_is_confirmed_by_naming_it(folder, made):
    assert resume(folder / "on_text", "--data", made / "text.txt") == 0


def test_auto_resumes_with_the_text_that_is_named(made, tmp_path):
    changes = {"data.source": str(made / "text.txt"), "data.tokenizer": "words", "data.length": 8}
    assert cdcd_main("train", "--out", tmp_path / "run", *tiny_options(changes)) == 0
    run = (tmp_path / "run").rename(tmp_path / "moved")
    options = tiny_options(changes | {"training.steps": 8})
    assert cdcd_main("train", "--resume", "auto", "--out", run, *options) == 0
    assert RunDirectory(run).steps()[-1] == 8


def test_nothing_is_opened_before(folder, tmp_path, capsys):
    """A run of a stranger names a pipe, which would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", "/etc/hostname", "/dev/zero"):
        file = folder / "on_text" / "config.json"
        described = json.loads(file.read_text())
        described["config"]["data"]["source"] = str(source)
        file.write_text(json.dumps(described))
        assert_refused(capsys, folder / "on_text", message=f"said to be at {source}: give --data")


@pytest.mark.parametrize("name", ["on_text", "on_set"])
def test_another_text_is_refused(folder, lines, capsys, name):
    (folder / "other.txt").write_text("".join([*lines[:-1], "a1 b1 c1 d2\n"]))
    other = folder / "other.txt"
    if name == "on_set":
        config = PrepareConfig(
            source=str(other), tokenizer=str(folder / name), valid_share=0.2, workers=1
        )
        prepare(config, folder / "other")
        other = folder / "other"
        capsys.readouterr()
    message = f"{other} is not the text that {folder / name} is trained on"
    assert_refused(capsys, folder / name, "--data", other, message=message)


def test_a_text_that_has_changed_is_refused(tmp_path, lines, capsys):
    text = tmp_path / "text.txt"
    text.write_text("".join(lines))
    changes = {"data.source": str(text), "data.tokenizer": "words", "data.length": 8}
    train_tiny(tmp_path / "run", changes)
    text.write_text("".join(reversed(lines)))
    assert_refused(
        capsys, tmp_path / "run", message=f"{text} is not the text that .* is trained on"
    )
    text.write_text("".join(lines))
    assert resume(tmp_path / "run") == 0


def test_a_text_does_not_become_a_built_in_corpus(folder, capsys):
    message = "data.source is fixed at .*text.txt by the run"
    assert_refused(capsys, folder / "on_text", "--data", "tales", message=message)


def test_a_moved_run_on_a_built_in_corpus_goes_on(tmp_path):
    run = train_tiny(tmp_path / "run")
    resume_tiny(run.rename(tmp_path / "moved"), changes={"training.steps": 8})


def test_a_run_of_an_earlier_version_asks_once(folder, made, capsys):
    file = made / "on_text" / "config.json"
    run = shutil.copytree(made / "on_text", folder / "earlier")
    described = json.loads(file.read_text())
    del described["made_at"], described["text_sha256"]
    (run / "config.json").write_text(json.dumps(described))
    assert_refused(capsys, run, message="was made elsewhere; its data is said to be at")
    assert resume(run, "--data", folder / "text.txt") == 0
    warning = capsys.readouterr().err
    assert warning.startswith(f"cdcd: warning: {run} was made by an earlier version of cdcd")
    assert resume(run, "--training.steps", 9) == 0
    assert capsys.readouterr().err == ""


def test_where_a_run_was_made_is_not_in_clear(tmp_path):
    start_tiny(tmp_path / "run")
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()
    assert RunDirectory(tmp_path / "run").is_where_it_was_made
    os.symlink(tmp_path, tmp_path / "link")
    assert RunDirectory(tmp_path / "link" / "run").is_where_it_was_made
    (tmp_path / "run").rename(tmp_path / "moved")
    assert not RunDirectory(tmp_path / "moved").is_where_it_was_made


# Tuning

TUNED = ("--preset", "demo", "--training.steps", 1, "--training.batch-size", 2)


def tune(parent, text, out, *options):
    return cdcd_main("train", "--init-from", parent, "--data", text, "--out", out, *TUNED, *options)


def test_the_text_of_a_parent_from_elsewhere_is_not_opened(folder, made, tmp_path, capsys):
    (tmp_path / "own.txt").write_text("a1 b1 c1 d1\n" * 40)
    (made / "text.txt").rename(made / "kept.txt")
    os.mkfifo(made / "text.txt")
    try:
        assert tune(folder / "on_text", tmp_path / "own.txt", tmp_path / "new") == 0
    finally:
        (made / "kept.txt").replace(made / "text.txt")
    warning = capsys.readouterr().err
    assert re.search(f"text, said to be at {made / 'text.txt'}, is not opened", warning)


@pytest.mark.parametrize("count", [0, 2, 20])
def test_words_that_the_parent_does_not_know_are_counted(made, tmp_path, capsys, count):
    known = [f"d{i % 3} c{i % 5} a{i % 9} b{i % 7}\n" for i in range(60)]
    (tmp_path / "own.txt").write_text("".join([*known, *["a1 b1 x y\n"] * count]))
    before = contents(tmp_path)
    code = tune(made / "on_text", tmp_path / "own.txt", tmp_path / "new")
    shown = capsys.readouterr()
    shares = re.findall(r"([\d.]+)% of the words of the text are unknown", shown.out + shown.err)
    assert len(shares) == (count > 0)
    if count:
        assert float(shares[0]) == pytest.approx(50 * count / (60 + count), rel=0.2)
    assert code == (2 if count == 20 else 0)
    if code:
        assert "more than 5%: train a new run without --init-from, or accept" in shown.err
        assert contents(tmp_path) == before
        options = ("--allow-unknown",)
        assert tune(made / "on_text", tmp_path / "own.txt", tmp_path / "new", *options) == 0
        assert "of the words of the text are unknown" in capsys.readouterr().out


def test_unknown_words_are_allowed_where_a_run_is_tuned(tmp_path, capsys):
    assert cdcd_main("train", "--out", tmp_path / "new", "--allow-unknown") == 2
    assert "--allow-unknown goes with --init-from" in capsys.readouterr().err
