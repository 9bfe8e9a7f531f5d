"""The files of a prepared data set, as they are written and checked.

DIR/dataset.json            describes the data set; written last, so that it means a whole data set
DIR/tokenizer/              the tokenizer of all of its tokens
DIR/train-00000.tokens      documents one after another, each ended by EOS: raw uint16 or uint32
DIR/train-00000.ends        the end of each document, in tokens from the shard's start: uint64
DIR/.progress.json          while it is being prepared: what a killed process goes on from

A data set of pairs has two of them, with as many documents in the same order:

DIR/dataset.json            the outcomes of the pairs, and the SHA-256 of the descriptions of both sides
DIR/tokenizer/              the tokenizer of both sides
DIR/source/, DIR/target/    each a data set as above
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdcd.files import read_json

FORMAT = 1
DESCRIPTION = "dataset.json"
PROGRESS = ".progress.json"
SPLITS = ("train", "valid", "test", "judge")
SIDES = ("source", "target")


@dataclass
class SplitContent:
    """The contents of a split, of which a preparation has written a part."""

    documents: int = 0
    tokens: int = 0
    """Tokens, the ends of documents included."""
    bytes: int = 0
    """Bytes of text."""
    unknown: int = 0
    """Unknown tokens."""
    undecodable: int = 0
    """Bytes that are not UTF-8."""
    shards: list[dict[str, Any]] = field(default_factory=list)
    """The name, tokens and documents of each shard, and, once it is complete, the SHA-256 of its files."""


def file_sizes(shard: dict[str, Any], token_bytes: int) -> dict[str, int]:
    """Returns the bytes of the files of a shard, by their suffixes."""
    return {"tokens": shard["tokens"] * token_bytes, "ends": shard["documents"] * 8}


def read_description(path: Path) -> dict[str, Any]:
    """Returns the description of a finished data set."""
    file = path / DESCRIPTION
    if not file.is_file():
        problem = "does not exist"
        if (path / PROGRESS).is_file():
            problem = "is not finished; go on with the command that began it"
        elif path.exists():
            problem = "is not a prepared data set (no dataset.json in it)"
        options = f"--source PATH [--target-source PATH] --out {shlex.quote(str(path))}"
        raise ValueError(f"{path} {problem}; prepare one with: cdcd data prepare {options}")
    described = read_json(file)
    if (present := described.get("format")) != FORMAT:
        raise ValueError(f"{file} is of format {present}, this version of cdcd reads {FORMAT}")
    return described
