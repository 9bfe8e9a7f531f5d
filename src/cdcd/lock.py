"""Locks on folders that one process at a time may write: a run, a data set, an evaluation.

The operating system holds a lock (flock) and releases it when its holder ends, however it ends. So no
lock is stale; the file `.lock` only says who has it, and is removed with the lock.
"""

import errno
import fcntl
import json
import os
import platform
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from cdcd.files import warn, without_empty_folders

WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""The errors of file systems that cannot lock, such as some of clusters."""
LOCK = ".lock"
SIGNED_WITHIN = 2.0
"""Seconds that a process may need from locking a file to writing its name into it."""
THIS_PROCESS = uuid.uuid4().hex
"""Tells this process, and those forked from it, from one of the same number on another host."""


class Lock:
    """A lock on a folder; the same process can have it several times."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pid = folder, os.getpid()
        self.descriptor: int | None = _take(folder)

    def release(self) -> None:
        """Gives the lock back, if this process has it; a forked one has none."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None and self.pid == os.getpid():
            with suppress(OSError):
                (self.folder / LOCK).unlink()
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder, which is made where it does not exist and removed again if it stays empty."""
    with without_empty_folders(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            yield
        finally:
            lock.release()


def refuse_locked(folder: Path) -> None:
    """Raises an error where another process writes a folder."""
    if (folder / LOCK).exists():
        Lock(folder).release()


def _take(folder: Path) -> int | None:
    """Returns the open file that is locked; None where this process has the lock already."""
    path = folder / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "is no regular file: remove it", str(path))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one who had the lock may have removed the file since it was opened.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    _sign(descriptor)
                    return descriptor
            os.close(descriptor)
        except BlockingIOError:
            is_own, holder = _read_holder(descriptor)
            os.close(descriptor)
            if is_own:
                return None
            raise ValueError(
                f"{folder} is being written by {holder}; wait until it ends, or stop it"
            ) from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(descriptor)
                raise
            warn(f"{folder} is on a file system without locks: write it from one process at a time")
            return descriptor


def _sign(descriptor: int) -> None:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    holder = {"process": THIS_PROCESS, "pid": os.getpid(), "host": platform.node(), "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _read_holder(descriptor: int) -> tuple[bool, str]:
    """Returns whether this process has the lock, and who has it.

    A process signs just after it has locked the file, so one that is read in between is read again.
    """
    end = time.monotonic() + SIGNED_WITHIN
    while True:
        try:
            holder = json.loads(os.pread(descriptor, 1000, 0))
            who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
            return (holder["process"], holder["pid"]) == (THIS_PROCESS, os.getpid()), who
        except (ValueError, KeyError, TypeError):
            if time.monotonic() > end:
                return False, "another process"
            time.sleep(0.01)
