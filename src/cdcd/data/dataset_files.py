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
from dataclasses import dataclass, field, fields
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


SHARD = {"name": str, "tokens": int, "documents": int}
"""The pattern of the description of a shard that is being written."""
WHOLE_SHARD = {**SHARD, "sha256": {"tokens": str, "ends": str}}
COUNTS = dict.fromkeys(("documents", "tokens", "bytes", "unknown", "undecodable"), int)
TEXTS = {
    "tokenizer": {"hash": str},
    "dtype": str,
    "splits": {"*": {**COUNTS, "shards": [WHOLE_SHARD]}},
}
"""The pattern of the description of texts."""
PAIRS = {"sides": dict.fromkeys(SIDES, str), "pairs": {"*": {"*": int}}}
"""The pattern of the description of pairs."""
WANTED = {int: "a whole number from 0 on", str: "a text", list: "a list", dict: "an object"}
REMEDY = "copy it again or prepare the data again"


def check_types(value: Any, pattern: Any, file: Path | str, name: str = "") -> None:
    """Raises an error where a value of JSON does not fit a pattern: a type, or a list or an object of one.

    The only value of a list is the pattern of all, and so is that of the name `*` in an object.
    """
    kind = pattern if isinstance(pattern, type) else type(pattern)
    if type(value) is not kind or (kind is int and not 0 <= value < 1 << 63):
        raise ValueError(
            f"{file} is damaged: {name} is {repr(value)[:40]}, not {WANTED[kind]}; {REMEDY}"
        )
    for key, inner, inner_pattern in _inner(value, pattern):
        check_types(inner, inner_pattern, file, f"{name}.{key}".lstrip("."))


def _inner(value: Any, pattern: Any) -> list[tuple[int | str, Any, Any]]:
    """Returns the values inside a list or an object, with their names and patterns."""
    if isinstance(pattern, list):
        return [(number, each, pattern[0]) for number, each in enumerate(value)]
    if not isinstance(pattern, dict):
        return []
    if "*" in pattern:
        return [(key, each, pattern["*"]) for key, each in value.items()]
    return [(key, value.get(key), each) for key, each in pattern.items()]


def file_sizes(shard: dict[str, Any], token_bytes: int) -> dict[str, int]:
    """Returns the bytes of the files of a shard, by their suffixes."""
    return {"tokens": shard["tokens"] * token_bytes, "ends": shard["documents"] * 8}


def split_content(name: str, described: dict[str, Any], file: Path | str) -> SplitContent:
    """Returns the contents of a split that a file describes, after comparing them with their shards."""
    content = SplitContent(**{each.name: described[each.name] for each in fields(SplitContent)})
    shards = content.shards
    is_right = name in SPLITS
    is_right &= [shard["name"] for shard in shards] == [
        f"{name}-{number:05d}" for number in range(len(shards))
    ]
    is_right &= sum(shard["tokens"] for shard in shards) == content.tokens
    is_right &= sum(shard["documents"] for shard in shards) == content.documents
    is_right &= all(0 < shard["documents"] <= shard["tokens"] for shard in shards)
    if not is_right:
        raise ValueError(f"{file} is damaged: its split {name[:40]!r} does not add up; {REMEDY}")
    return content


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
    return checked_description(read_json(file), file)


def checked_description(described: dict[str, Any], file: Path | str) -> dict[str, Any]:
    """Returns a description of a data set after checking its format and its types."""
    check_types(described, {"format": int}, file)
    if (present := described["format"]) != FORMAT:
        raise ValueError(f"{file} is of format {present}, this version of cdcd reads {FORMAT}")
    check_types(described, PAIRS if "sides" in described else TEXTS, file)
    return described
