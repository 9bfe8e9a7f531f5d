"""Files that are whole or absent when they are written, and regular and bounded when they are read.

A run may come from a stranger. So nothing is read that is no regular file, that is larger than its kind
needs, or that a symbolic link leads to outside of the run.
"""

import hashlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

JSON_LIMIT = 16_000_000
"""Bytes of the largest JSON file that is read."""
VOCABULARY_LIMIT = 64_000_000
"""Bytes of the largest file of a tokenizer that is read."""


# Writing


def expanded(path: Path | str) -> Path:
    """Returns a path with the home folder in the place of ~, where there is such a user."""
    return Path(os.path.expanduser(path))


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file anew and waits until the disk has it."""
    # What is left of a killed process may be a link: it is replaced, not written through.
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        write_durably(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def without_empty_folders(folder: Path) -> Iterator[None]:
    """Removes this folder and those above it in the end, where they did not exist and are left empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False).encode())


# Reading


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file; a pipe or device, whose reading may never end, is refused."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is no regular file: it is not read")
    return file


def size_of(file: BufferedReader) -> int:
    """Returns the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_bounded(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        if (size := size_of(file)) > limit:
            raise ValueError(
                f"{path} has {size:,} bytes; at most {limit:,} are read of such a file"
            )
        return file.read(size)


def parse_json(content: bytes) -> Any:
    """Returns the value that a JSON text in UTF-8 stands for."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file."""
    raw = read_bounded(path, JSON_LIMIT)
    try:
        content = parse_json(raw)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_links_out_of(folder: Path) -> None:
    """Raises an error where a symbolic link below a folder leads out of it."""
    root = os.path.realpath(folder)
    for parent, folders, names in os.walk(root):
        for path in (os.path.join(parent, name) for name in (*folders, *names)):
            if os.path.islink(path) and not _is_below(root, os.path.realpath(path)):
                link = folder / os.path.relpath(path, root)
                raise ValueError(f"{link} is a symbolic link that leads out of {folder}: remove it")


def _is_below(root: str, path: str) -> bool:
    return os.path.commonpath([root, path]) == root


# What a user should know though it stops nothing


class FileWarning(UserWarning):
    """A file is not as it should be, and is read all the same."""


def warn(message: str) -> None:
    """Warns of a file."""
    warnings.warn(message, FileWarning, stacklevel=2)


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Prints warnings of files as one line each, without the line of code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FileWarning)
        show = warnings.showwarning

        def show_in_one_line(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if category is FileWarning:
                print(f"cdcd: warning: {message}", file=sys.stderr)
            else:
                show(message, category, *rest)

        warnings.showwarning = show_in_one_line
        yield
