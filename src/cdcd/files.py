"""Durable and atomic writing of files, checksums, JSON: a file is whole or absent."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        write_durably(temporary, content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
