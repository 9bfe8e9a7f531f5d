"""A thousand fuzzed commands and a hundred hostile runs; `make fuzz` runs twenty thousand.

They run in one process of their own, without the checks of types and shapes: those take longer than the commands.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import cdcd_main, contents, train_tiny

FUZZER = Path(__file__).parent / "fuzz.py"


@pytest.mark.parametrize("arguments", [("--cases", 250), ("--cases", 60, "--only", "runs")])
def test_every_command_ends_with_success_or_one_line(arguments):
    """Hostile runs must read nothing outside of them, too, and take little memory."""
    command = [sys.executable, FUZZER, "--seed", "0", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert f"{arguments[1]:,} cases" in done.stdout


# What the fuzzer has found


@pytest.mark.parametrize("name", ["loop", "~no_such_user/text.txt"])
def test_a_path_that_leads_nowhere_is_one_line(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for command in (("train", "--out", "new", "--data", name), ("demo", "--out", "loop")):
        assert cdcd_main(*command) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert "bug" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_run_whose_log_is_too_large_is_not_changed(tmp_path, capfd):
    run = train_tiny(tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(b"")
    before = contents(run)
    with (run / "metrics.jsonl").open("r+b") as file:
        file.truncate(10**12)
    assert cdcd_main("train", "--resume", "--out", run, "--training.steps", 8) == 2
    assert "metrics.jsonl has 1,000,000,000,000 bytes" in capfd.readouterr().err
    with (run / "metrics.jsonl").open("r+b") as file:
        file.truncate(0)
    assert contents(run) == before
