"""One process at a time writes a folder; the others are told in one line who does."""

import errno
import fcntl
import os
import platform
import re
import shutil
import signal
import time

import pytest
from forks import end_of, fork, fork_cdcd, wait_for
from interruptions import assert_same_run
from text_corpus import write_corpus
from tiny import cdcd_main, contents, metrics, tiny_options

from cdcd import lock as lock_module
from cdcd.data.prepare import preparation
from cdcd.files import FileWarning
from cdcd.lock import LOCK, Lock, locked
from cdcd.training import run as runs
from cdcd.training.trainer import Trainer


def let_all_arrive(monkeypatch, owner, name, folder, number):
    """Makes a function wait until so many processes have called it."""
    function = getattr(owner, name)

    def waiting(*arguments, **settings):
        (folder / f"arrived-{os.getpid()}").touch()
        wait_for(lambda: len(list(folder.glob("arrived-*"))) == number)
        return function(*arguments, **settings)

    monkeypatch.setattr(owner, name, waiting)


def let_one_write(monkeypatch, owner, name, folder):
    """Makes a method that writes wait until the other processes have ended."""
    method = getattr(owner, name)

    def waiting(self):
        (folder / f"writes-{os.getpid()}").touch()
        wait_for((folder / "go").exists)
        return method(self)

    monkeypatch.setattr(owner, name, waiting)


def assert_one_writes(folder, number, *command):
    """Runs a command in several processes at once, of which one may write, and the others name it."""
    outputs = [folder / f"output-{i}" for i in range(number)]
    processes = [fork_cdcd(*command, output=output) for output in outputs]
    wait_for(lambda: sum(process.is_alive() for process in processes) == 1)
    (folder / "go").touch()
    codes = end_of(*processes)
    assert sorted(codes) == [0] + [2] * (number - 1)
    [writer] = [p.pid for p, code in zip(processes, codes, strict=True) if code == 0]
    assert [path.name for path in folder.glob("writes-*")] == [f"writes-{writer}"]
    for output, code in zip(outputs, codes, strict=True):
        if code:
            expected = (
                f"cdcd .*: error: .* is being written by process {writer} on "
                f"{re.escape(platform.node())} since 20.*; wait until it ends, or stop it\n"
            )
            lines = [line for line in output.read_text().splitlines(True) if "learning" not in line]
            assert re.fullmatch(expected, "".join(lines))


NUMBERS = pytest.mark.parametrize("number", [2, 8])


@NUMBERS
def test_one_process_resumes_a_run(run, trained, tmp_path, monkeypatch, number):
    let_one_write(monkeypatch, Trainer, "train", tmp_path)
    more = ("--training.steps", 8)
    assert_one_writes(tmp_path, number, "train", "--resume", "--out", run, *more)
    alone = shutil.copytree(trained, tmp_path / "alone")
    assert cdcd_main("train", "--resume", "--out", alone, *more) == 0
    assert_same_run(run, alone)
    assert contents(run).keys() == contents(alone).keys()


@NUMBERS
def test_one_process_starts_a_run(trained, tmp_path, monkeypatch, number):
    """All have seen that there is no run, and one of them has it."""
    let_all_arrive(monkeypatch, runs, "initial_checkpoint", tmp_path, number)
    let_one_write(monkeypatch, Trainer, "train", tmp_path)
    assert_one_writes(tmp_path, number, "train", "--out", tmp_path / "new" / "run", *tiny_options())
    assert metrics(tmp_path / "new" / "run") == metrics(trained)
    assert_same_run(tmp_path / "new" / "run", trained)
    assert os.listdir(tmp_path / "new") == ["run"]
    assert contents(tmp_path / "new" / "run").keys() == contents(trained).keys()


@NUMBERS
def test_one_process_prepares_a_data_set(tmp_path, monkeypatch, number):
    command = ["data", "prepare", "--source", write_corpus(tmp_path), "--tokenizer", "words"]
    command += ["--workers", 1, "--out"]
    assert cdcd_main(*command, tmp_path / "alone") == 0
    let_all_arrive(monkeypatch, preparation, "_make_tokenizer", tmp_path, number)
    let_one_write(monkeypatch, preparation._Preparation, "run", tmp_path)
    assert_one_writes(tmp_path, number, *command, tmp_path / "set")
    assert contents(tmp_path / "set") == contents(tmp_path / "alone")


def hold(folder):
    lock = Lock(folder)
    (folder / "held").touch()
    time.sleep(600)
    lock.release()


@pytest.fixture
def held(tmp_path):
    """A folder that another process has locked, and that process."""
    folder = tmp_path / "held"
    folder.mkdir()
    process = fork(hold, folder, output=tmp_path / "output")
    wait_for((folder / "held").exists)
    yield folder, process
    process.kill()


def test_a_holder_is_named_that_has_not_signed_yet(tmp_path, monkeypatch):
    sign = lock_module._sign

    def sign_late(descriptor):
        (tmp_path / "locked").touch()
        time.sleep(0.5)
        sign(descriptor)

    (tmp_path / "folder").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "_sign", sign_late)
        process = fork(hold, tmp_path / "folder", output=tmp_path / "output")
    try:
        wait_for((tmp_path / "locked").exists)
        with pytest.raises(ValueError, match=f"is being written by process {process.pid} on"):
            Lock(tmp_path / "folder")
    finally:
        process.kill()


def test_a_lock_ends_with_its_process_however_it_ends(held):
    folder, process = held
    with pytest.raises(ValueError, match=f"{folder} is being written by process {process.pid} on"):
        Lock(folder)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (folder / LOCK).exists()
    with locked(folder):
        pass
    assert not (folder / LOCK).exists()


def test_evaluations_and_reproductions_are_locked(run, held, capsys):
    folder, process = held
    before = contents(folder)
    for command in (
        ("evaluate", run, "--judge", run, "--out", folder),
        ("reproduce", "table1", "--out", folder, "--tables"),
    ):
        assert cdcd_main(*command) == 2
        message = capsys.readouterr().err
        assert f"{folder} is being written by process {process.pid}" in message
        assert message.count("\n") == 1
    assert contents(folder) == before


def test_a_folder_that_stays_empty_is_removed_again(tmp_path):
    for name, is_left in (("a/b/c", False), ("a/b/d", True)):
        with locked(tmp_path / name):
            if is_left:
                (tmp_path / name / "file").touch()
        assert (tmp_path / "a").exists() == is_left


def test_a_refused_evaluation_leaves_nothing(run, capsys):
    before = contents(run)
    assert cdcd_main("evaluate", run, "--judge", run / "none") == 2
    assert contents(run) == before


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic"):
        Lock(tmp_path / "folder")
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "folder" / LOCK).unlink()
    os.mkfifo(tmp_path / "folder" / LOCK)
    with pytest.raises(OSError, match="is no regular file"):
        Lock(tmp_path / "folder")


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(FileWarning, match="is on a file system without locks"), locked(tmp_path):
        pass
    assert contents(tmp_path) == {}


def test_one_process_has_a_lock_several_times_and_its_children_none(tmp_path):
    first, second = Lock(tmp_path), Lock(tmp_path)
    second.release()
    child = fork(Lock, tmp_path, output=tmp_path / "output")
    child.join()
    assert "is being written by process" in (tmp_path / "output").read_text()
    assert (tmp_path / LOCK).exists()
    first.release()
    assert not (tmp_path / LOCK).exists()


def test_a_lock_whose_file_is_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Its holder may remove the file after another process has opened it, and before that locks it."""
    flock, files = fcntl.flock, []

    def removing(descriptor, operation):
        if not files:
            (tmp_path / LOCK).unlink()
        files.append(os.fstat(descriptor).st_ino)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    lock = Lock(tmp_path)
    assert len(files) == 2
    assert (tmp_path / LOCK).stat().st_ino == os.fstat(lock.descriptor).st_ino
    lock.release()
