"""Runs from strangers: whatever is in their files, one line says what is wrong, and little memory is taken.

Each hostile run is a copy of a good one with a change. Its checksums are right: strangers can write them.
"""

import hashlib
import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import cdcd_main, start_tiny, train_tiny
from torch.distributed.checkpoint.state_dict_saver import save

from cdcd.training.checkpoint import RunDirectory
from cdcd.training.sharded import read_shards
from cdcd.training.tensor_files import to_bytes

CONFIG, VOCABULARY, METRICS = "config.json", "tokenizer/words.json", "metrics.jsonl"
CHECKPOINT = "checkpoints/step-00000006"
DESCRIPTION = f"{CHECKPOINT}/checkpoint.json"
WEIGHTS, OPTIMISER = f"{CHECKPOINT}/weights.safetensors", f"{CHECKPOINT}/optimiser.safetensors"
Change = Callable[[Path], Any]

ALLOWED_BYTES = 250_000_000
"""Memory that refusing a run may take: enough to parse the largest JSON, not for what a header claims."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("good") / "run", {"training.checkpoint_every": 0})


@pytest.fixture
def run(good, tmp_path):
    return shutil.copytree(good, tmp_path / "run")


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Lets this process take only `ALLOWED_BYTES` more than it has."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("memory is bounded by a limit that Linux has")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(fields["VmData"].split()[0]) * 1024 + ALLOWED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def sign(run: Path) -> None:
    """Writes the checksums of what is in a run now."""
    folder = run / CHECKPOINT
    described = json.loads((folder / "checkpoint.json").read_bytes())
    for name in described["sha256"]:
        file = folder / name
        if file.is_file() and not file.is_symlink() and file.stat().st_size < 1e9:
            described["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    with suppress(ValueError, OSError):
        described["belongs_to"] = RunDirectory(run).belongings()
    (folder / "checkpoint.json").write_text(json.dumps(described))


# Changes of any file


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(target: str) -> Change:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


def bytes_of(content: bytes) -> Change:
    return lambda path: path.write_bytes(content)


def sparse(size: int) -> Change:
    """Makes a file of many bytes that takes no room on the disk."""
    return lambda path: os.truncate(path, size)


ODD_FILES = {
    "a pipe": pipe,
    "a folder": folder,
    "a link to a device": link("/dev/zero"),
    "a link to a file outside": link("/etc/hostname"),
    "a link to itself": link("words.json"),
}
ODD_TEXTS = {
    "empty": bytes_of(b""),
    "not UTF-8": bytes_of(b'{"\xff": 1}'),
    "cut": bytes_of(b'{"config":'),
    "a list": bytes_of(b"[]"),
    "a number": bytes_of(b"7"),
    "deep": bytes_of(b"[" * 200_000),
    "deep objects": bytes_of(b'{"a":' * 200_000),
    "a long number": bytes_of(b'{"a":' + b"9" * 5000 + b"}"),
    "large": sparse(70_000_000),
    "huge": sparse(10**12),
}


# Changes of JSON


def edited(edit: Callable[[Any], Any]) -> Change:
    def change(path: Path) -> None:
        content = json.loads(path.read_bytes())
        edit(content)
        path.write_text(json.dumps(content))

    return change


def entry(value: Any, *names: str) -> Change:
    """Sets an entry of a JSON file."""

    def edit(content: Any) -> None:
        for name in names[:-1]:
            content = content[name]
        content[names[-1]] = value

    return edited(edit)


ODD_CONFIGS = {
    **{f"vocab_size {v!r}": entry(v, "vocab_size")
       for v in ("x", None, -1, 0, 1, True, 15.0, [], {}, 2**24 + 1, 10**400, 40)},
    **{f"config {v!r}": entry(v, "config") for v in (None, 3, "x", [], [1])},
    **{f"{name} {v!r}": entry(v, "config", name)
       for name in ("data", "sampling", "network", "objective") for v in (None, 3, "x", [1])},
    "an unknown setting": entry(1, "config", "network", "depth"),
    "an unknown section": entry({}, "config", "future"),
    "a width of text": entry("x", "config", "network", "width"),
    "another width": entry(64, "config", "network", "width"),
    "an enormous width": entry(65_536, "config", "network", "width"),
    "another depth": entry(200, "config", "network", "num_blocks"),
    "another model": entry("autoregressive", "config", "model"),
    "another task": entry("translation", "config", "task"),
    "no averages": entry(0.0, "config", "training", "average_decay"),
    "no vocab_size": edited(lambda c: c.pop("vocab_size")),
}  # fmt: skip
ODD_VOCABULARIES = {
    "one word less": edited(lambda c: c["words"].pop()),
    "more words": edited(lambda c: c["words"].extend(map(str, range(50)))),
    "words twice": edited(lambda c: c["words"].__setitem__(0, c["words"][1])),
    "numbers": entry([1, 2], "words"),
    "a text": entry("abc", "words"),
    "no words": entry({}, "words"),
    "other words": edited(lambda c: c.update(symbols=c.pop("words"))),
}
ODD_DESCRIPTIONS = {
    **{f"sha256 {v!r}": entry(v, "sha256") for v in (None, 3, [], {"a": 1}, {})},
    **{f"belongs_to {v!r}": entry(v, "belongs_to") for v in (None, 3, [], {"config.json": 1})},
    **{f"step {v!r}": entry(v, "step") for v in (None, "6", 5, [6])},
}


# Changes of tensors


def tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def change(path: Path) -> None:
        content = load_file(path)
        edit(content)
        save_file(content, path)

    return change


def first(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Changes the first tensor."""

    def edit(content: dict[str, torch.Tensor]) -> None:
        name = min(content)
        content[name] = change(content[name]).contiguous()

    return tensors(edit)


def header(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the header of a file, whose tensors stay as they are."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        described = json.loads(content[8 : 8 + length])
        edit(described)
        new = json.dumps(described).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])

    return change


def claim(**changes: Any) -> Change:
    """Makes the header claim other things of its first tensor."""
    return header(lambda described: described[min(described)].update(changes))


def header_of(size: int) -> Change:
    return lambda path: path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])


ODD_TENSORS = {
    "empty": bytes_of(b""),
    "zeros": bytes_of(bytes(1000)),
    "text": bytes_of(b"no tensors at all, but text" * 9),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"12345678"),
    "huge": sparse(10**12),
    **{f"a header of {n} bytes": header_of(n) for n in (0, 1, 9, 10**8, 10**15, 2**64 - 1)},
    "a huge shape": claim(shape=[10**6, 10**6]),
    "a huge shape that fits its offsets": claim(shape=[10**6, 10**6], data_offsets=[0, 4 * 10**12]),
    "an overflowing shape": claim(shape=[2**40, 2**40, 0]),
    "a negative shape": claim(shape=[-1, -1]),
    "a shape of text": claim(shape=["x"]),
    "no shape": claim(shape=None),
    "many dimensions": claim(shape=[1] * 10_000),
    "negative offsets": claim(data_offsets=[-4, 0]),
    "offsets of text": claim(data_offsets=["a", "b"]),
    "an unknown type": claim(dtype="F4"),
    "a type that is a number": claim(dtype=4),
    "an entry that is none": header(lambda d: d.update({min(d): 3})),
    "a tensor less": tensors(lambda t: t.pop(min(t))),
    "a tensor more": tensors(lambda t: t.update(more=torch.zeros(3))),
    "another name": tensors(lambda t: t.update({"other.name.of.it": t.pop(min(t))})),
    "another shape": first(lambda t: torch.cat([t.flatten(), t.flatten()])),
    "another type": first(lambda t: t.double()),
    "whole numbers": first(lambda t: t.int()),
}
NOT_FINITE = {
    "NaN": first(lambda t: torch.full_like(t, float("nan"))),
    "infinite": first(lambda t: torch.full_like(t, -float("inf"))),
}

CASES = [
    (name, file, change)
    for file, changes in (
        (CONFIG, ODD_FILES | ODD_TEXTS | ODD_CONFIGS),
        (VOCABULARY, ODD_FILES | ODD_TEXTS | ODD_VOCABULARIES),
        (DESCRIPTION, ODD_FILES | ODD_TEXTS | ODD_DESCRIPTIONS),
        (WEIGHTS, ODD_FILES | ODD_TENSORS | NOT_FINITE),
        (OPTIMISER, ODD_FILES | ODD_TENSORS),
        (METRICS, {name: ODD_FILES[name] for name in ODD_FILES if "link to a" in name}),
    )
    for name, change in changes.items()
]


@pytest.mark.parametrize(
    ("file", "change"), [case[1:] for case in CASES], ids=[f"{f}: {n}" for n, f, _ in CASES]
)
def test_a_hostile_run_is_refused_in_one_line(run, capfd, file, change):
    change(run / file)
    if file != DESCRIPTION:
        sign(run)
    commands = [("train", "--resume", "--out", run, "--training.steps", 8)]
    if file not in (OPTIMISER, METRICS):
        commands.append(("sample", run, "--device", "cpu"))
        commands.append(("train", "--init-from", run, "--preset", "demo", "--out", f"{run}-tuned"))
    for command in commands:
        with bounded_memory():
            assert cdcd_main(*command) == 2
        shown = capfd.readouterr()
        assert shown.err.count("\n") == 1, shown.err
        assert shown.err.startswith(f"cdcd {command[0]}: error: "), shown.err
        assert str(run) in shown.err or "holds no pairs to translate" in shown.err
    with bounded_memory():
        assert cdcd_main("info", run) in (0, 2)


# Memory of a good run

LOADING = """
import sys
from pathlib import Path
import cdcd

def memory(name):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))

cdcd.load(sys.argv[1], device="cpu")
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
model = cdcd.load(sys.argv[2], device="cpu")
print(memory("VmHWM") - before)
"""


def test_loading_takes_at_most_twice_the_bytes_of_the_weights(good, tmp_path):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of memory is read on Linux")
    start_tiny(tmp_path / "large", {"network.width": 384, "network.num_blocks": 6})
    [file] = tmp_path.glob("large/checkpoints/*/weights.safetensors")
    command = [sys.executable, "-c", LOADING, good, tmp_path / "large"]
    taken = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    size = file.stat().st_size
    assert size > 50e6
    assert 0.5 * size < taken < 2 * size + 30e6


# Sharded training state


def test_the_description_of_shards_can_name_no_code(tmp_path):
    """A pickle can call anything: the file that would be made shows that it was called."""
    save({"optimiser.adam.step.w": torch.zeros(3)}, checkpoint_id=tmp_path)
    description = tmp_path / ".metadata"
    assert read_shards(tmp_path, {"w": torch.zeros(3)}).keys() == {"adam.step.w"}
    for code in (
        b"cposix\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "called").encode(),
        b"ctorch\nload\n(S'x'\ntR.",
        b"not a pickle",
        b"",
        pickle.dumps([1, 2]),
    ):
        description.write_bytes(code)
        with pytest.raises(ValueError, match=r"\.metadata is damaged"):
            read_shards(tmp_path, {"w": torch.zeros(3)})
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "name", ["sharded/../../../config.json", "sharded//etc/hostname", "sharded/x"]
)
def test_only_shards_are_compared_with_checksums(run, capfd, name):
    entry("0" * 64, "sha256", name)(run / DESCRIPTION)
    (run / CHECKPOINT / "sharded").mkdir()
    huge = run / CHECKPOINT / "sharded" / "x"
    huge.touch()
    sparse(10**12)(huge)
    assert cdcd_main("train", "--resume", "--out", run, "--training.steps", 8) == 2
    assert f"is damaged: {name} is not a shard of this model" in capfd.readouterr().err


def test_shards_are_read_beside_their_description_only(tmp_path):
    save({"optimiser.adam.exp_avg.w": torch.zeros(3)}, checkpoint_id=tmp_path / "shards")
    description = tmp_path / "shards" / ".metadata"
    content = description.read_bytes()
    assert b"__0_0.distcp" in content
    description.write_bytes(content.replace(b"__0_0.distcp", b"../../a.file"))
    with pytest.raises(ValueError, match="is no file beside it"):
        read_shards(tmp_path / "shards", {"w": torch.zeros(3)})


def test_a_checkpoint_that_memory_cannot_hold_is_a_plain_error(capfd):
    """The library that writes it would panic, which is no `Exception`."""
    half = torch.zeros(ALLOWED_BYTES // 8)
    with bounded_memory(), pytest.raises(MemoryError):
        to_bytes({"half": half, "other half": half[: len(half) // 2]})
    assert capfd.readouterr().err == ""
