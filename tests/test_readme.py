"""Every command and example of the README runs, on a tiny model in place of the demo's."""

import re
import shlex

import pytest
from mutation_check import ROOT
from tiny import train_tiny

from cdcd.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("  #")[0].strip()
    for kind, block in BLOCKS
    if kind == "bash"
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("cdcd ")
]
EXAMPLES = [block for kind, block in BLOCKS if kind == "python"]
SHORTER = ["--training.steps", "2", "--training.batch-size", "4", "--network.width", "32"]
SHORTER += ["--network.num-heads", "2", "--network.num-blocks", "1", "--data.vocab-size", "400"]
SHORTER += [
    "--training.compile",
    "off",
    "--training.valid-sequences",
    "4",
    "--data.num-documents",
    "50",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder as a reader would have it: a trained demo and a text file."""
    folder = tmp_path_factory.mktemp("reader")
    train_tiny(folder / "runs" / "demo", {"data.length": 48})
    text = "The cat sat on the mat. It saw a dog run by and went to sleep again.\n"
    (folder / "my_stories.txt").write_text(text * 40)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    _, *arguments = shlex.split(command)
    if arguments[0] == "demo":
        pytest.skip("the demo is tested in test_demo.py")
    if arguments[0] == "train" and "--resume" not in arguments:
        arguments += SHORTER
    if "--resume" in arguments:
        arguments += ["--training.steps", "9"]
    assert main(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 6
    assert EXAMPLES
