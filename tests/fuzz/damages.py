"""Damage to the files of a run or of a data set, as disks do it and as strangers do it, and commands that read them."""

import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from place import RUNS
from tiny import tiny_options

DEPTH = 100_000
LARGE = 100_000_000
"""Bytes of a file that is not read here: it is a sparse one."""
ODD_JSON = [
    *(
        None,
        -1,
        0,
        1,
        2,
        True,
        "x",
        "",
        [],
        {},
        [1],
        [None],
        {"a": 1},
        0.5,
        -0.5,
        1e300,
        1e-300,
        10**9,
    ),
    *(10**30, 2**63, float("nan"), float("inf"), "1", "none", "/etc/passwd", "../../x", "\x1b[31m"),
]
ODD_BYTES = {
    "empty": b"",
    "null": b"null",
    "minus one": b"-1",
    "text": b'"x"',
    "list": b"[]",
    "object": b"{}",
    "deep": b"[" * DEPTH + b"]" * DEPTH,
    "deep objects": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "not UTF-8": b'{"\xff\xfe": 1}\n',
    "zeros": bytes(4096),
    "a long number": b'{"config":' + b"9" * 5_000 + b"}",
    "BOM": b"\xef\xbb\xbf{}",
}
Damage = Callable[[Path, Path], None]
"""Changes a file, given the folder of the run or data set and the file below it."""


# Damage of any file


def _replaced(content: bytes, root: Path, path: Path) -> None:
    path.write_bytes(content)


def _cut(share: float, root: Path, path: Path) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def _longer(root: Path, path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n{}\n")


def _huge(root: Path, path: Path) -> None:
    os.truncate(path, 10**12)


def _flipped(places: Sequence[tuple[float, int]], root: Path, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for share, mask in places:
        if content:
            content[int(share * len(content))] ^= mask
    path.write_bytes(content)


def _absent(root: Path, path: Path) -> None:
    path.unlink()


def _folder(root: Path, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(root: Path, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(target: str, root: Path, path: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def _outside(root: Path, path: Path) -> None:
    """Puts a link to the same file, outside of the folder, in its place."""
    copy = root.parent / f"outside-{path.name}"
    shutil.move(path, copy)
    path.symlink_to(copy)


def _swapped(root: Path, path: Path) -> None:
    """Puts the content of another file of the folder in its place."""
    others = sorted(each for each in root.rglob("*") if each.is_file() and each != path)
    path.write_bytes(others[len(path.name) % len(others)].read_bytes())


SHARE = st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999])
MASK = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 255])
ANY_FILE: st.SearchStrategy[Damage] = st.one_of(
    st.sampled_from(sorted(ODD_BYTES.values())).map(lambda content: partial(_replaced, content)),
    SHARE.map(lambda share: partial(_cut, share)),
    st.lists(st.tuples(SHARE, MASK), min_size=1, max_size=8).map(lambda p: partial(_flipped, p)),
    st.sampled_from([_longer, _huge, _absent, _folder, _pipe, _outside, _swapped]),
    st.sampled_from(["/dev/zero", "/etc/hostname", "absent", ".", "words.json", "config.json"]).map(
        lambda target: partial(_link, target)
    ),
)


# Damage of JSON and of the headers of weights


def _entry(choices: Sequence[int], value: Any, root: Path, path: Path) -> None:
    """Changes, removes or adds an entry of JSON that is reached by choices."""
    try:
        content = json.loads(
            path.read_bytes().splitlines()[0] if path.suffix == ".jsonl" else path.read_bytes()
        )
    except (ValueError, IndexError):
        return
    path.write_text(
        json.dumps(_edited(content, list(choices), value)) + "\n" * (path.suffix == ".jsonl")
    )


def _edited(content: Any, choices: list[int], value: Any) -> Any:
    if not choices or not isinstance(content, dict | list) or not content:
        return value
    choice = choices.pop(0)
    if isinstance(content, list):
        index = choice % len(content)
        return [_edited(e, choices, value) if i == index else e for i, e in enumerate(content)]
    names = sorted(content)
    name = names[choice % len(names)]
    if choice % 11 == 10:
        return {n: each for n, each in content.items() if n != name}
    if choice % 11 == 9:
        return content | {f"{name}_": value}
    return content | {name: _edited(content[name], choices, value)}


def _header(choices: Sequence[int], value: Any, root: Path, path: Path) -> None:
    """Changes an entry of the header of a file of tensors."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    edited = _edited(json.loads(content[8 : 8 + length]), list(choices), value)
    header = json.dumps(edited).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def _tensors(change: str, choice: int, root: Path, path: Path) -> None:
    """Rewrites a file of tensors with one of them changed."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = sorted(tensors)[choice % len(tensors)]
    changed = {
        "nan": lambda t: torch.full_like(t, float("nan")),
        "infinite": lambda t: torch.full_like(t, float("inf")),
        "huge": lambda t: torch.full_like(t, 1e30),
        "zero": torch.zeros_like,
        "double": lambda t: t.double(),
        "half": lambda t: t.half(),
        "whole": lambda t: t.long(),
        "flat": lambda t: t.flatten(),
        "twice": lambda t: torch.cat([t.flatten()] * 2),
        "none": lambda t: t.flatten()[:0],
    }
    if change == "absent":
        del tensors[name]
    elif change == "more":
        tensors["more"] = torch.zeros(3)
    else:
        tensors[name] = changed[change](tensors[name]).contiguous()
    save_file(tensors, path)


CHOICES = st.lists(st.sampled_from(range(60)), min_size=1, max_size=4)
VALUE = st.sampled_from(ODD_JSON)
ENTRIES: st.SearchStrategy[Damage] = st.tuples(CHOICES, VALUE).map(lambda p: partial(_entry, *p))
HEADERS: st.SearchStrategy[Damage] = st.tuples(CHOICES, VALUE).map(lambda p: partial(_header, *p))
TENSORS: st.SearchStrategy[Damage] = st.tuples(
    st.sampled_from(
        ["nan", "infinite", "huge", "zero", "double", "half", "whole", "flat", "twice", "none", "absent", "more"]
    ),
    st.sampled_from(range(40)),
).map(lambda p: partial(_tensors, *p))  # fmt: skip


def damages_of(name: str) -> st.SearchStrategy[Damage]:
    """Returns damage that fits the kind of a file."""
    if name.endswith((".json", ".jsonl")):
        return st.one_of(ANY_FILE, ENTRIES, ENTRIES)
    if name.endswith(".safetensors"):
        return st.one_of(ANY_FILE, HEADERS, TENSORS)
    return ANY_FILE


# Cases


RESUME = ["train", "--resume", "--out", "damaged", "--training.steps", "7"]
SAMPLING = ["--device", "cpu", "--num-steps", "2"]
TEXT_COMMANDS = [
    ["sample", "damaged", *SAMPLING],
    ["infill", "damaged", "One [2]", *SAMPLING],
    RESUME,
    ["info", "damaged"],
    ["info", "damaged", "--json"],
]
UNFINISHED = ["--workers", "1", "--valid-share", "0.1", "--test-share", "0.1"]
TINY_PAIRS = tiny_options({"task": "translation", "data.source": "damaged"})
COMMANDS = {
    "run": TEXT_COMMANDS,
    "baseline": [
        ["sample", "damaged", "--device", "cpu"],
        RESUME,
        ["evaluate", "run", "--judge", "damaged", *SAMPLING, "--num-samples", "4", "--mauve", "none"],
    ],
    "masked": TEXT_COMMANDS,
    "translator": [["translate", "damaged", "--source", "lines.en", *SAMPLING], RESUME],
    "translating_baseline": [["translate", "damaged", "--source", "lines.en", "--device", "cpu"]],
    "set": [
        ["data", "verify", "damaged"],
        ["train", "--out", "new", *tiny_options({"data.source": "damaged"})],
    ],
    "pairs/set": [["data", "verify", "damaged"], ["train", "--out", "new", *TINY_PAIRS]],
    "unfinished": [["data", "prepare", "--source", "corpus.txt", "--tokenizer", "bytes", *UNFINISHED, "--out", "damaged"]],
}  # fmt: skip


@dataclass(frozen=True)
class DamagedCase:
    """A folder, what is done to its files and a command that reads them."""

    source: str
    damage: tuple[tuple[str, Damage], ...]
    is_signed: bool
    command: tuple[str, ...]

    def prepare(self, place: Path) -> None:
        """Makes the damaged copy in a folder."""
        root = place / "damaged"
        shutil.copytree(place / self.source, root)
        for name, damage in self.damage:
            path = root / name
            if is_readable(path):
                with suppress(Exception):
                    damage(root, path)
        if self.is_signed:
            sign(root)

    def __str__(self) -> str:
        done = ", ".join(f"{name}: {_named(damage)}" for name, damage in self.damage)
        signed = ", signed" * self.is_signed
        return f"{self.source} ({done}{signed}): cdcd {' '.join(self.command)}"


def _named(damage: Any) -> str:
    arguments = getattr(damage, "args", ())
    function = getattr(damage, "func", damage)
    return f"{function.__name__.lstrip('_')} {' '.join(repr(each)[:60] for each in arguments)}"


def is_readable(path: Path) -> bool:
    """Returns whether a path is a regular file of common size."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < LARGE


def sign(root: Path) -> None:
    """Writes the checksums of what is in a run now, as a stranger can."""
    from cdcd.training.checkpoint import RunDirectory

    for path in root.glob("checkpoints/*/checkpoint.json"):
        if not is_readable(path):
            continue
        with suppress(Exception):
            described = json.loads(path.read_bytes())
            for name in described["sha256"]:
                file = path.parent / name
                if is_readable(file):
                    described["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
            if "belongs_to" in described:
                described["belongs_to"] = RunDirectory(root).belongings()
            path.write_text(json.dumps(described))


def damaged_cases(place: Path, only: str = "") -> st.SearchStrategy[DamagedCase]:
    """Returns cases for the files of all folders in a place, of all runs, or of one."""
    names = {"": [*COMMANDS], "runs": [*RUNS]}.get(only, [only])
    return st.sampled_from(names).flatmap(lambda name: _cases_of(place, name))


def _cases_of(place: Path, source: str) -> st.SearchStrategy[DamagedCase]:
    root = place / source
    files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    files = [name for name in files if not re.search("step-0000000[03]", name)]
    one = st.sampled_from(files).flatmap(lambda name: st.tuples(st.just(name), damages_of(name)))
    return st.builds(
        DamagedCase,
        st.just(source),
        st.lists(one, min_size=1, max_size=2).map(tuple),
        st.booleans(),
        st.sampled_from(COMMANDS[source]).map(tuple),
    )
