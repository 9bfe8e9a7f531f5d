"""Preparations that are killed, and go on to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import text_corpus
from text_corpus import prepared, write_corpus
from tiny import contents

from cdcd.data.sequences import TokenDataset


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


SLOWLY = """
import signal, sys, time
from pathlib import Path
# Tests that run in the background inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from cdcd.data.prepare import encoding, preparation as preparing
encoding.CHUNK_CHARACTERS, preparing.SAVE_EVERY = 300, 2000
write = preparing._Preparation._write
def slowly(self, sides, split):
    if len(list(Path(sys.argv[2]).glob("*.tokens"))) >= int(sys.argv[4]):
        time.sleep(3600)
    write(self, sides, split)
preparing._Preparation._write = slowly
config = preparing.PrepareConfig(source=sys.argv[1], tokenizer="bytes", valid_share=0.1,
    test_share=0.1, shard_tokens=2500, workers=int(sys.argv[3]), valid_source=sys.argv[1])
preparing.prepare(config, Path(sys.argv[2]))
"""


def slow_process(corpus, out, workers, shards):
    """Prepares up to so many shards, and then waits for ever."""
    command = [sys.executable, "-c", SLOWLY, str(corpus), str(out), str(workers), str(shards)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_shards(process, out, count):
    while len(list(out.glob("*.tokens"))) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("workers", "signals"),
    [(1, (signal.SIGKILL, signal.SIGINT)), (2, (signal.SIGKILL, signal.SIGKILL))],
)
def test_going_on_after_an_interruption(corpus, tmp_path, workers, signals):
    # The whole is prepared by one worker, so the number of workers does not change it.
    options = {"shard_tokens": 2500, "valid_source": str(corpus)}
    whole = prepared(corpus, tmp_path / "whole", **options)
    out = tmp_path / "set"
    # Within the first source, and later.
    for shards, signal_number in zip((5, 8), signals, strict=True):
        process = slow_process(corpus, out, workers, shards)
        wait_for_shards(process, out, shards)
        os.kill(process.pid, signal_number)
        output, _ = process.communicate(timeout=60)
        if signal_number == signal.SIGINT:
            assert "stopped; the same command goes on" in output
    progress = json.loads((out / ".progress.json").read_text())
    assert progress["documents"] > 0
    assert contents(prepared(corpus, out, **options).path) == contents(whole.path)


def test_workers_end_with_a_killed_parent(corpus, tmp_path):
    process = slow_process(corpus, tmp_path / "set", 2, 3)
    wait_for_shards(process, tmp_path / "set", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.communicate()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def unfinished(corpus, tmp_path, monkeypatch):
    """A data set that was interrupted after its first notes."""
    text_corpus.interrupted(corpus, tmp_path / "set", monkeypatch)
    return tmp_path / "set"


def interrupt(_):
    raise KeyboardInterrupt


def test_going_on_does_not_tokenise_again(unfinished, corpus, monkeypatch):
    monkeypatch.setattr("cdcd.data.prepare.encoding.encode_documents", interrupt)
    prepared(corpus, unfinished)


def test_an_unfinished_data_set_is_not_taken_for_whole(unfinished):
    assert not (unfinished / "dataset.json").exists()
    with pytest.raises(ValueError, match=r"set is not finished; go on with the command"):
        TokenDataset(unfinished)


def test_going_on_with_other_settings(unfinished, corpus):
    before = contents(unfinished)
    for changes, message in (
        ({"seed": 1}, r"set was begun with seed 0, not 1; go on with the same settings"),
        ({"valid_share": 0.2}, r"begun with valid_share 0.1, not 0.2"),
    ):
        with pytest.raises(ValueError, match=message):
            prepared(corpus, unfinished, **changes)
    corpus.write_text("another text\n")
    with pytest.raises(ValueError, match=r"begun with source_bytes \[\d+\], not \[13\]; .* text"):
        prepared(corpus, unfinished)
    assert contents(unfinished) == before


def test_going_on_with_another_version(unfinished, corpus):
    (unfinished / ".progress.json").write_text('{"config": {}, "sizes": [], "state": null}')
    with pytest.raises(ValueError, match=r"set was begun by another version of cdcd; delete it"):
        prepared(corpus, unfinished)


def test_going_on_with_files_that_were_changed(unfinished, corpus):
    file = unfinished / "train-00000.tokens"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"train-00000.tokens has .* it was changed since"):
        prepared(corpus, unfinished)
