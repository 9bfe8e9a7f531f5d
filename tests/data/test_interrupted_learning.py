"""Learning a vocabulary is stopped by Ctrl-C at once, and leaves no process behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdcd.data import learning_process, tokenizer_learning
from cdcd.data.tokenizer_learning import train_sentencepiece

COMMANDS = {
    "data": ("data", "prepare", "--source", "corpus.txt", "--out", "set"),
    "train": ("train", "--data", "corpus.txt", "--out", "run"),
}
# Tests that run in the background inherit that Ctrl-C is ignored.
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from cdcd.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def slow_corpus(tmp_path_factory):
    """A corpus whose vocabulary takes long to learn."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    lines = [" ".join("".join(rng.choices("abcdefghij", k=6)) for _ in range(200))] * 3000
    lines = ["".join(rng.sample(line, 400)) for line in lines]
    (folder / "corpus.txt").write_text("\n".join(lines))
    return folder


def learning(folder, verb):
    """Starts a command, and waits until SentencePiece is loaded in a child; returns both."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *COMMANDS[verb]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        assert process.poll() is None, process.communicate()
        for child in map(int, children.read_text().split()):
            if "_sentencepiece" in Path(f"/proc/{child}/maps").read_text():
                return process, child
        time.sleep(0.01)


def wait_for_the_end(child):
    end = time.monotonic() + 10
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("verb", COMMANDS)
def test_ctrl_c_stops_learning(slow_corpus, verb):
    process, child = learning(slow_corpus, verb)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
    assert not Path(f"/proc/{child}").exists()
    assert os.listdir(slow_corpus) == ["corpus.txt"]


def test_learning_ends_with_a_killed_parent(slow_corpus):
    process, child = learning(slow_corpus, "data")
    process.kill()
    process.communicate()
    wait_for_the_end(child)


TEXTS = ["one sunny day", "the sun was out", "caf\u00e9 — 日本"] * 40


def test_the_process_learns_the_same_to_the_byte(monkeypatch):
    apart = train_sentencepiece(TEXTS, 320)
    monkeypatch.setattr(tokenizer_learning, "train_in_a_process", learning_process.train)
    assert train_sentencepiece(TEXTS, 320) == apart


def test_errors_are_those_of_sentencepiece():
    with pytest.raises(ValueError, match=r'unknown enumeration value of "none"'):
        learning_process.train_in_a_process(TEXTS, {"vocab_size": 320, "model_type": "none"})


@pytest.mark.parametrize("module", ["cdcd.absent", "tabnanny"])
def test_a_process_that_dies(monkeypatch, module):
    monkeypatch.setattr(learning_process, "COMMAND", ("-m", module))
    with pytest.raises(ValueError, match="died, perhaps for want of memory; lower tokenizer_bytes"):
        learning_process.train_in_a_process(TEXTS * 10_000, {})
