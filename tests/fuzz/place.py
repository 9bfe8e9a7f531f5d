"""The folder that fuzzed commands work in: tiny runs, data sets and odd files, put back after every change."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from pair_corpus import prepared as prepared_pairs
from pair_corpus import write_corpus as write_pairs
from text_corpus import prepared, write_corpus
from tiny import train_tiny

from cdcd.data.prepare import preparation

RUNS = {
    "run": {},
    "baseline": {"model": "autoregressive"},
    "masked": {"model": "masked"},
    "translator": {"task": "translation"},
    "translating_baseline": {"task": "translation", "model": "autoregressive"},
}
FILES = {
    "empty.txt": b"",
    "text.txt": b"One sunny day Mia went out.\nTom saw a cat.\n" * 20,
    "latin1.txt": "a café\n".encode("latin1"),
    "zeros.txt": bytes(1000),
    "escapes.txt": b"\x1b[31mred \x07 \xe2\x80\xae\n" * 30,
    "long.txt": b"word " * 20_000 + b"\n" + b"x" * 100_000 + b"\n",
    "rows.jsonl": b'{"text": "a b c"}\n' * 20 + b'{"text": 3}\n',
    "rows.csv": b"text,other\n" + b"a b c,d e\n" * 20,
    "lines.en": b"at five past ten\ntwo euros\n",
    "lines.de": b"zehn Uhr\nzwei\n",
}
State = dict[str, tuple[int, ...]]


class Place:
    """A folder with everything that a command can be told to read, and its copy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copy = folder / "place", folder / "copy"
        self.folder.mkdir()
        self._fill()
        self._save()

    def _fill(self) -> None:
        for name, changes in RUNS.items():
            train_tiny(self.folder / name, {"training.checkpoint_every": 3, **changes})
        corpus = write_corpus(self.folder)
        prepared(corpus, self.folder / "set", tokenizer="words", judge_share=0.1)
        _begin(corpus, self.folder / "unfinished")
        (self.folder / "pairs").mkdir()
        prepared_pairs(write_pairs(self.folder / "pairs"))
        for name, content in FILES.items():
            (self.folder / name).write_bytes(content)
        (self.folder / "folder").mkdir()
        (self.folder / "link").symlink_to("run")
        (self.folder / "dangling").symlink_to("absent")
        (self.folder / "loop").symlink_to("loop")
        os.mkfifo(self.folder / "pipe")

    def _save(self) -> None:
        copy_all(self.folder, self._copy)
        self.before = self.state()

    def state(self) -> State:
        """Returns what identifies the content of every file, and every folder."""
        return state_of(self.folder)

    def put_back(self) -> None:
        """Restores everything that a command may have changed."""
        after = self.state()
        changed = {p for p in {**self.before, **after} if self.before.get(p) != after.get(p)}
        for name in {Path(path).relative_to(self.folder).parts[0] for path in changed}:
            remove(self.folder / name)
            if os.path.lexists(self._copy / name):
                copy_all(self._copy / name, self.folder / name)
        if changed:
            self.before = self.state()


def _begin(corpus: Path, out: Path) -> None:
    """Begins a preparation and stops it where it has saved its progress."""

    def stop(*_: object) -> None:
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, suppress(InterruptedError):
        patch.setattr(preparation._Preparation, "_finish", stop)
        prepared(corpus, out)


def state_of(folder: Path) -> State:
    """Returns the kind, size and times of every file below a folder; a folder changes with its files."""
    state: State = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            is_folder = name in folders and not os.path.islink(path)
            times = () if is_folder else (status.st_size, status.st_mtime_ns, status.st_ino)
            state[path] = (status.st_mode, *times)
    return state


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it, where there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_all(source: Path, target: Path) -> None:
    """Copies a file or a folder; links stay links and pipes stay pipes."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, copy_function=copy_any)
    else:
        copy_any(str(source), str(target))


def copy_any(source: str, target: str) -> None:
    """Copies a file, or makes another pipe."""
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)
