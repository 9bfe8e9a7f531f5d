"""The files of a prepared data set, as they are written and checked.

DIR/dataset.json            what is in it; written last, so that it stands for a whole data set
DIR/tokenizer/              the tokenizer of all of its tokens
DIR/train-00000.tokens      documents one after another, each ended by EOS: raw uint16 or uint32
DIR/train-00000.ends        where each document ends, in tokens from the shard's start: uint64
DIR/.progress.json          while it is being prepared: how far it is
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
DESCRIPTION = "dataset.json"
PROGRESS = ".progress.json"


@dataclass(frozen=True)
class SplitSummary:
    """What a split of a data set holds."""

    documents: int = 0
    tokens: int = 0
    """Tokens, the ends of documents included."""
    bytes: int = 0
    """Bytes of text."""
    unknown: int = 0
    """Unknown tokens."""
    undecodable: int = 0
    """Bytes that are not UTF-8."""


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content
