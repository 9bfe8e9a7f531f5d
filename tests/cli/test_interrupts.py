"""Ctrl-C: one line and exit code 130 at any time, also while modules are imported."""

import os
import signal
import subprocess
import sys
import time

import pytest
from forks import end_of, fork, wait_for
from tiny import cdcd_main, cdcd_process, train_tiny

from cdcd import cli
from cdcd.cli import info, interrupts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("interrupts") / "run")


@pytest.mark.parametrize("seconds", [0.3, 0.6, 1.0, 1.5, 2.0])
def test_a_process_is_interrupted(run, seconds):
    """In the first second or two, torch is imported; then samples are drawn, for a minute."""
    process = cdcd_process("sample", run, "--num-samples", 200_000)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "", "interrupted\n")


def test_the_answer_is_ready_before_anything_is_imported():
    """What `cdcd` and `cdcd.cli` import must take milliseconds: before it, Python prints a traceback."""
    names = set(printed_by("import cdcd.cli; print(*sys.modules)").split())
    assert "cdcd.cli.interrupts" in names
    assert not names & {"typing", "argparse", "ast", "inspect", "dataclasses", "cdcd.settings"}


def printed_by(code):
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_while_a_command_is_at_work_it_may_clean_up(run, tmp_path, monkeypatch):
    """Where some code makes another error of KeyboardInterrupt, it is still an interrupt."""

    def describe(_):
        (tmp_path / "begun").touch()
        try:
            signal.pause()
        except KeyboardInterrupt:
            raise ImportError("interrupted inside an import") from None
        finally:
            (tmp_path / "cleaned").touch()

    monkeypatch.setattr(info, "describe", describe)

    def command():
        monkeypatch.setattr(sys, "argv", ["cdcd", "info", str(run)])
        return cli.main()

    process = fork(command, output=tmp_path / "output")
    wait_for((tmp_path / "begun").exists)
    time.sleep(0.1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert end_of(process) == [130]
    assert (tmp_path / "cleaned").exists()
    assert (tmp_path / "output").read_text() == "interrupted\n"


def test_a_command_called_from_python_leaves_signals_alone(run, capsys):
    before = signal.getsignal(signal.SIGINT)
    assert cdcd_main("info", run) == 0
    assert signal.getsignal(signal.SIGINT) is before is not interrupts.leave_at_once
