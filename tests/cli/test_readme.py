"""Every command and example of the README runs, on a tiny model in place of the demo's."""

import re
import shlex
from io import BytesIO, TextIOWrapper

import pytest
from paths import ROOT
from tiny import train_tiny

from cdcd.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    [
        line.split("  #")[0].strip()
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith(("cdcd ", "echo "))
    ]
    for kind, block in BLOCKS
    if kind == "bash"
]
COMMANDS = [block for block in COMMANDS if block]
EXAMPLES = [block for kind, block in BLOCKS if kind == "python"]
SMALL_NETWORK = ["--network.width", "32", "--network.num-heads", "2", "--network.num-blocks", "1"]
SMALL_SEQ2SEQ = ["--seq2seq.width", "32", "--seq2seq.num-heads", "2"]
SHORTER = ["--training.steps", "2", "--training.batch-size", "4", "--training.compile", "off"]
SHORTER += ["--training.valid-sequences", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder as a reader would have it: a trained demo and a text file."""
    folder = tmp_path_factory.mktemp("reader")
    train_tiny(folder / "runs" / "demo", {"data.length": 48})
    stories = [
        f"The {animal} sat on the {place}. It saw a {other} run by and went to sleep again.\n"
        for animal in ("cat", "dog", "fox", "hen", "cow", "owl", "ant", "pig")
        for place in ("mat", "hill", "roof", "wall", "gate", "cart")
        for other in ("bird", "goat", "mouse", "horse", "child")
    ]
    (folder / "my_stories.txt").write_text("".join(stories))
    return folder


@pytest.mark.parametrize("commands", COMMANDS, ids=lambda block: block[0][:30])
def test_commands_run(commands, folder, monkeypatch, capsys):
    """A block's commands run one after another, as a reader would type them."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CDCD_MODELS", str(ROOT / "models"))
    for command in commands:
        words = shlex.split(command)
        if words[0] == "echo":
            _, said, _, *words = words
            monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(f"{said}\n".encode())))
        _, *arguments = words
        assert main(arguments + _shorter(arguments)) == 0, command
        assert capsys.readouterr().out


def _shorter(arguments: list[str]) -> list[str]:
    """Options that make a command tiny."""
    if "--resume" in arguments:
        return ["--training.steps", "9"]
    if arguments[0] == "train":
        size = SMALL_SEQ2SEQ if "numerals" in arguments else SMALL_NETWORK
        if "--init-from" in arguments:
            size = []
        more = ["--training.validate-every", "1"] if "judge" in arguments else []
        if "my_stories.txt" in arguments:
            more += ["--data.vocab-size", "400"]
        elif "--data" not in arguments and "--init-from" not in arguments:
            more += ["--data.num-documents", "50"]
        return SHORTER + size + more
    if arguments[:2] == ["data", "prepare"]:
        return ["--vocab-size", "400", "--workers", "1"]
    return ["--num-steps", "2"] if arguments[0] == "evaluate" else []


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CDCD_MODELS", str(ROOT / "models"))
    shorter = example.replace("range(1000)", "range(10)")
    exec(compile(shorter, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_something_to_test():
    assert sum(map(len, COMMANDS)) >= 12
    assert EXAMPLES
