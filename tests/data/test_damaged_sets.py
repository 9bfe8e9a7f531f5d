"""Every file of a prepared data set, damaged in many ways: one line that names it, or what was prepared."""

import json
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pair_corpus
import pytest
import text_corpus
import torch
from tiny import cdcd_main, contents, tiny_config, tiny_options

from cdcd.data.pairs import PreparedPairs
from cdcd.data.sequences import ShuffledBatches, TokenDataset
from cdcd.training.corpora import load_corpus

KINDS = {"texts": TokenDataset, "pairs": PreparedPairs}


@pytest.fixture(scope="module", params=KINDS)
def prepared(request, tmp_path_factory):
    """A data set of each kind, whose vocabulary is smaller than the numbers of its files' type."""
    place = tmp_path_factory.mktemp("sets")
    kind = request.param
    if kind == "texts":
        corpus = text_corpus.write_corpus(place)
        text_corpus.prepared(corpus, place / "set", tokenizer="words", shard_tokens=2500)
    else:
        pair_corpus.prepared(pair_corpus.write_corpus(place), tokenizer="words")
    return kind, place / "set"


@pytest.fixture
def copy(prepared, tmp_path):
    kind, folder = prepared
    shutil.copytree(folder, tmp_path / "set")
    return kind, tmp_path / "set"


@pytest.fixture(autouse=True)
def nothing_hangs():
    def stop(*_):
        raise TimeoutError("it hangs")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def read(kind, folder, layout="stream"):
    """Reads all that a training of two steps reads, and returns its tokens."""
    task = {"task": "translation"} if kind == "pairs" else {"data.layout": layout}
    config = tiny_config({"data.source": str(folder), **task})
    corpus = load_corpus(config)
    data = ShuffledBatches(corpus.train, 8, 0)
    held_out = corpus.valid.rows(torch.arange(len(corpus.valid)))
    batches = [held_out, data.batch(0), data.batch(1)]
    for tokens in batches:
        assert tokens.max() < corpus.tokenizer.vocab_size
        assert tokens.min() >= 0
    return batches


def mistake_of(action, folder):
    """The error of a user's mistake in a folder, or nothing; any other error is a fault."""
    try:
        action()
    except ValueError as error:
        message = str(error)
    else:
        return []
    assert "\n" not in message
    assert len(message) < 1000
    assert str(folder) in message
    return [message]


def mistakes(kind, folder):
    """The errors of reading a data set and of comparing it with its checksums."""
    actions = (
        lambda: read(kind, folder),
        lambda: read(kind, folder, "documents"),
        lambda: [list(part) for part in documents(kind, folder)],
        lambda: KINDS[kind](folder).verify(),
    )
    return [message for action in actions for message in mistake_of(action, folder)]


def documents(kind, folder):
    dataset = KINDS[kind](folder)
    sides = [dataset] if isinstance(dataset, TokenDataset) else [dataset.source, dataset.target]
    return [side.documents(split) for side in sides for split in side.splits]


def flip(byte, bit):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[int(byte * (len(content) - 1))] ^= 1 << bit
        path.write_bytes(content)

    return damage


def replace_by(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


DAMAGES = {
    **{f"flip {byte} {bit}": flip(byte, bit) for byte in (0, 0.3, 0.501, 1) for bit in (0, 7)},
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "absent": Path.unlink,
    "folder": replace_by(Path.mkdir),
    "pipe": replace_by(os.mkfifo),
    "endless": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "deep": lambda path: path.write_text("[" * 100_000),
    "null": lambda path: path.write_text("null"),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff"}'),
    "random": lambda path: path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size)),
}


def test_a_whole_set(prepared):
    assert mistakes(*prepared) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_damaged(copy, prepared, damage):
    kind, folder = copy
    for name, content in contents(prepared[1]).items():
        if content is None:
            continue
        file = folder / name
        DAMAGES[damage](file)
        # A flipped bit of a description may be in words that say nothing.
        assert mistakes(kind, folder) or (damage.startswith("flip") and file.suffix == ".json")
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        shutil.copy(prepared[1] / name, file)


def leaves(value, *path):
    """The paths of all values in JSON."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, *path, key)


WRONG = (None, -1, 10**30, True, "x", [1], {}, {"train": None})
UNREAD = ("config", "cdcd_version", "empty", "pairs", "tokenizer")
"""What is in a description for people, or is compared where there is something to compare it with."""


def with_wrong_values(described):
    """Yields descriptions in which one value is wrong, and the path of it."""
    for path in leaves(described):
        for wrong in WRONG:
            changed = {"root": json.loads(json.dumps(described))}
            holder, last = changed, "root"
            for key in path:
                holder, last = holder[last], key
            holder[last] = wrong
            yield path, json.dumps(changed["root"])


@pytest.mark.parametrize("name", ["dataset.json", "source/dataset.json"])
def test_wrong_types_in_a_description(copy, name):
    kind, folder = copy
    if not (folder / name).exists():
        pytest.skip("texts have no sides")
    described = json.loads((folder / name).read_text())
    for path, changed in with_wrong_values(described):
        (folder / name).write_text(changed)
        assert mistakes(kind, folder) or path[0] in UNREAD


@pytest.mark.parametrize(
    ("bit", "kind", "message"),
    [
        (7, "tokens", r"holds the token 327\d\d, of a vocabulary of \d+"),
        (6, "ends", "the ends of its documents do not fit its tokens"),
    ],
)
def test_the_shard_and_the_remedy_are_named(copy, bit, kind, message):
    if copy[0] == "pairs":
        pytest.skip("a side is a data set of texts")
    flip(1, bit)(copy[1] / f"valid-00000.{kind}")
    (found, *_) = mistakes(*copy)
    assert f"{copy[1] / 'valid-00000.tokens'} or the file of its ends is damaged: " in found
    assert found.endswith(f"with: cdcd data verify {copy[1]}")
    assert re.search(message, found), found


def test_the_first_number_beyond_the_vocabulary(copy):
    kind, folder = copy
    sides = [folder] if kind == "texts" else [folder / "source", folder / "target"]
    beyond = KINDS[kind](folder).tokenizer.vocab_size
    for file in (side / "valid-00000.tokens" for side in sides):
        content = np.fromfile(file, "<u2")
        for token, is_known in ((beyond - 1, True), (beyond, False)):
            np.array([token, *content[1:]], "<u2").tofile(file)
            assert (mistake_of(partial(read, kind, folder), folder) == []) == is_known
        content.tofile(file)


def test_training_names_a_damaged_shard(copy, capfd):
    kind, folder = copy
    if kind == "pairs":
        pytest.skip("a side is a data set of texts")
    contents = {file: np.fromfile(file, "<u2") for file in folder.glob("train-*.tokens")}
    for file, content in contents.items():
        (content | 1 << 15).tofile(file)
    out = folder.parent / "run"
    assert cdcd_main("train", "--out", out, *tiny_options({"data.source": str(folder)})) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "cdcd data verify" in error
    assert f"when it is mended, go on with: cdcd train --resume --out {out}" in error
    for file, content in contents.items():
        content.tofile(file)
    assert cdcd_main("train", "--resume", "--out", out) == 0


def test_wrong_types_in_a_record_of_progress(tmp_path, monkeypatch):
    corpus, folder = text_corpus.write_corpus(tmp_path), tmp_path / "set"
    text_corpus.interrupted(corpus, folder, monkeypatch)
    record = json.loads((folder / ".progress.json").read_text())
    for path, changed in with_wrong_values(record):
        if path[:1] == ("begun",):
            continue  # It must be equal to the settings.
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        (copy / ".progress.json").write_text(changed)
        mistake_of(partial(text_corpus.prepared, corpus, copy), copy)
        shutil.rmtree(copy)
