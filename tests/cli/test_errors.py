"""What commands print when something fails: one line, nothing that a terminal would obey, a report of a bug."""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from tiny import cdcd_main, contents, tiny_options, train_tiny

from cdcd.cli import info as info_module
from cdcd.cli.messages import one_line, printable
from cdcd.data.tokenizers import WordTokenizer
from cdcd.inference.text_model import Generated, TextModel


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("errors") / "run")


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """The folder in which reports of bugs are written."""
    folder = tmp_path / "reports"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fail_with(monkeypatch, error):
    def describe(_):
        raise error

    monkeypatch.setattr(info_module, "describe", describe)


# Bugs, memory and mistakes


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape '[3]' is invalid\nmore lines"),
        *(kind("why") for kind in (TypeError, KeyError, IndexError, OverflowError, RecursionError)),
        AssertionError(),
        type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("of Rust"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unforeseen_error_is_one_line_and_a_report(run, capfd, monkeypatch, reports, error):
    fail_with(monkeypatch, error)
    assert cdcd_main("info", run) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    [report] = reports.iterdir()
    first = re.escape(str(error).split("\n")[0])
    expected = rf"cdcd info: error: {type(error).__name__}: {first} \(this is a bug of cdcd; please report it with {report}\)\n"
    assert re.fullmatch(expected, shown.err), shown.err
    text = report.read_text(encoding="utf-8")
    assert f"cdcd info {run}" in text
    assert "Traceback (most recent call last)" in text
    assert "in describe" in text


def test_the_traceback_is_shown_on_request(run, monkeypatch, reports):
    monkeypatch.setenv("CDCD_TRACEBACK", "1")
    for error in (TypeError("why"), ValueError("why")):
        fail_with(monkeypatch, error)
        with pytest.raises(type(error), match="why"):
            cdcd_main("info", run)
    assert not list(reports.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_no_bug(run, capfd, monkeypatch, reports, error):
    fail_with(monkeypatch, error)
    assert cdcd_main("info", run) == 2
    assert re.fullmatch(
        r"cdcd info: error: not enough memory; lower the batch size .*\n", capfd.readouterr().err
    )
    assert not list(reports.iterdir())


def test_a_file_that_is_not_utf8_is_named_with_its_line(run, tmp_path, capfd, monkeypatch):
    (tmp_path / "latin1.txt").write_bytes(b"a\nb\xe9\n")

    def describe(_):
        return (tmp_path / "latin1.txt").read_text(encoding="utf-8")

    monkeypatch.setattr(info_module, "describe", describe)
    assert cdcd_main("info", run) == 2
    assert "latin1.txt, line 2: not UTF-8 text (byte 0xe9)" in capfd.readouterr().err


# Empty and unknown arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--out", ""), "--out: it is empty"),
        (("train", "--out", "x", "--data", ""), "--data: it is empty"),
        (("train", "--out", "x", "--data.source", ""), "--data.source: it is empty"),
        (("train", "--out", "x", "--training.steps", ""), "--training.steps: it is empty"),
        (("sample", ""), "RUN: it is empty"),
        (("info", ""), "RUN: it is empty"),
        (("evaluate", "", "--judge", "x"), "RUN: it is empty"),
        (("data", "verify", ""), "FOLDER: it is empty"),
        (("data", "prepare", "--source", "", "--out", "x"), "--source: it is empty"),
        (("train", "--out=--"), "--out is --, which is no value"),
        (("sample", "x", "--dtype=--"), "--dtype is --, which is no value"),
        (("sampel", "x"), "unknown command sampel; did you mean sample?"),
        (("data", "prepar"), "unknown command prepar; did you mean prepare?"),
        (("tarin", "--out", "x"), "unknown command tarin; did you mean train?"),
    ],
)
def test_empty_and_unknown_arguments(tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cdcd_main(*arguments) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert contents(tmp_path) == {}


def test_a_setting_of_other_models_says_whose_it_is(run, capfd):
    for option, owner in (("--top-k", "autoregressive sampling"), ("--num-rounds", "mask-predict")):
        assert cdcd_main("sample", run, option, 5) == 2
        name = option.removeprefix("--").replace("-", "_")
        assert re.search(
            rf"{name} is a setting of .*{owner}, not of decoder ode; this is a diffusion model",
            capfd.readouterr().err,
        )


def test_training_without_data_says_what_it_learns(tmp_path, capsys):
    assert cdcd_main("train", "--out", tmp_path / "run", *tiny_options()) == 0
    assert "training on the built-in tales; for text of your own: --data" in capsys.readouterr().out
    data = ("--data", "tales")
    assert cdcd_main("train", "--out", tmp_path / "named", *tiny_options(), *data) == 0
    assert "built-in" not in capsys.readouterr().out


# Text that a terminal would obey


ESCAPES = {"\x1b[31m": r"\x1b[31m", "\x07": r"\x07", "\r": r"\r", "\x7f": r"\x7f", "\x9b": r"\x9b"}
ESCAPES |= {"\u202e": r"\u202e", "\u2066": r"\u2066", "\udcff": r"\udcff", "\u2028": r"\u2028"}


@pytest.mark.parametrize(("text", "escaped"), ESCAPES.items(), ids=ESCAPES.values())
def test_control_characters_are_escaped(text, escaped):
    assert printable(f"a{text}b\n\té…") == f"a{escaped}b\n\té…"
    assert one_line(f"a{text}b\nc") == rf"a{escaped}b\nc"


def test_messages_escape_and_cut_arguments(run, capfd):
    assert cdcd_main("sample", run, "--prompt", "\x1b[31mred") == 2
    error = capfd.readouterr().err
    assert "\x1b" not in error
    assert r"\x1b" in error
    for words in ("x" * 120_000, "a " * 60_000 + "x"):
        assert cdcd_main("sample", run, "--prompt", words) == 2
        error = capfd.readouterr().err
        assert len(error) < 1_000
        assert error.count("\n") == 1
        for option in (("--solver", words), (f"--solver={words}",)):
            assert cdcd_main("sample", run, *option) == 2
            assert len(capfd.readouterr().err) < 1_000


def on_terminal(function):
    """Returns what a function writes to a terminal."""
    parent, child = pty.openpty()
    before = os.dup(1)
    sys.stdout.flush()
    os.dup2(child, 1)
    try:
        with open(1, "w", closefd=False) as terminal, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            function()
    finally:
        os.dup2(before, 1)
        os.close(child)
    return os.read(parent, 1 << 16).decode()


def test_a_path_that_is_not_utf8_is_escaped_in_a_file(run, tmp_path):
    """Pictures are written into a folder of this name, and their paths are printed."""
    command = [sys.executable, "-m", "cdcd", "plot", run, "--out", os.fsencode(tmp_path) + b"/\xff"]
    done = subprocess.run(command, capture_output=True, check=True)
    paths = done.stdout.decode().splitlines()
    assert f"{tmp_path}/\\udcff/training.png" in paths
    assert done.stderr == b""


def test_samples_are_escaped_on_a_terminal_alone(run, monkeypatch, capsys):
    text = "a\x1b]0;title\x07"
    monkeypatch.setattr(
        TextModel, "generate", lambda *_, **__: [Generated(text, (3,), (False,), (0, 0))]
    )
    monkeypatch.setattr(WordTokenizer, "decode", lambda *_: text)
    assert cdcd_main("sample", run) == 0
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setenv("TERM", "dumb")
    shown = on_terminal(lambda: cdcd_main("sample", run))
    assert r"a\x1b]0;title\x07" in shown
    assert "\x1b]" not in shown


# Readers that leave


@pytest.mark.parametrize(
    ("unbuffered", "arguments"),
    [("", ["info", "{run}"]), ("1", ["info", "{run}"]), ("", ["--help"]), ("1", ["--help"])],
)
def test_a_reader_that_leaves_is_no_error(run, unbuffered, arguments):
    arguments = [argument.format(run=run) for argument in arguments]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cdcd", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_pipe_inside_is_an_error(run, capfd, monkeypatch):
    """Another process that died is no reader of the output."""
    fail_with(monkeypatch, BrokenPipeError(32, "Broken pipe"))
    assert cdcd_main("info", run) == 2
    assert "Broken pipe" in capfd.readouterr().err


def test_windows_is_told_what_works(monkeypatch, capfd):
    monkeypatch.setattr(sys, "platform", "win32")
    assert cdcd_main("info", Path("x")) == 2
    assert capfd.readouterr().err == "cdcd runs on Linux and macOS; on Windows, use it in WSL\n"
