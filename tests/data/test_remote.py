"""Prepared data sets at addresses are fetched whole, once, and only what is right is kept."""

import json
import shutil
import subprocess
import sys

import fsspec
import pair_corpus
import pytest
import text_corpus
from tiny import cdcd_main

from cdcd.data import remote
from cdcd.data.pairs import PreparedPairs, holds_pairs
from cdcd.data.remote import Remote, fetch
from cdcd.data.sequences import TokenDataset, is_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set of texts in several shards, and one of pairs."""
    folder = tmp_path_factory.mktemp("made")
    text_corpus.prepared(text_corpus.write_corpus(folder), folder / "texts", shard_tokens=2000)
    pair_corpus.prepared(pair_corpus.write_corpus(folder), "pairs")
    return folder


@pytest.fixture(params=["file", "memory"])
def bucket(request, made, tmp_path):
    """The address of a copy of both, on one of fsspec's file systems."""
    files = fsspec.filesystem(request.param)
    path = str(tmp_path / "bucket") if request.param == "file" else "/bucket"
    for name in ("texts", "pairs"):
        files.put(f"{made}/{name}/", f"{path}/{name}/", recursive=True)
    yield f"{request.param}://{path}"
    files.rm(path, recursive=True)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, and a process that has asked for no manifest yet."""
    monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
    remote.manifest.cache_clear()
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def reads(monkeypatch):
    """Every file that is read at an address, with the position that its reading begins at."""
    noted, blocks = [], Remote.blocks

    def note(self, start, end):
        noted.append((self.url.partition("texts/")[2], start))
        return blocks(self, start, end)

    monkeypatch.setattr(Remote, "blocks", note)
    return noted


def overwrite(url, change):
    """Changes the content of a file at an address."""
    with fsspec.open(url, "rb") as file:
        content = file.read()
    with fsspec.open(url, "wb") as file:
        file.write(change(content))
    remote.manifest.cache_clear()


def shard_files(folder):
    described = json.loads((folder / "dataset.json").read_text())
    shards = [shard["name"] for split in described["splits"].values() for shard in split["shards"]]
    return [f"{name}.{suffix}" for name in shards for suffix in ("tokens", "ends")]


def test_a_data_set_at_an_address_is_the_one_in_the_folder(bucket, made):
    here, there = TokenDataset(made / "texts"), TokenDataset(f"{bucket}/texts")
    assert there.content_hash == here.content_hash
    assert there.splits == here.splits
    for split in here.splits:
        assert text_corpus.texts_of(there, split) == text_corpus.texts_of(here, split)
    there.verify()
    assert is_dataset(f"{bucket}/texts")
    assert not holds_pairs(f"{bucket}/texts")


def test_pairs_at_an_address_are_those_in_the_folder(bucket, made):
    here, there = PreparedPairs(made / "pairs"), PreparedPairs(f"{bucket}/pairs")
    assert there.content_hash == here.content_hash
    assert pair_corpus.texts_of(there, "valid") == pair_corpus.texts_of(here, "valid")
    there.verify()
    assert holds_pairs(f"{bucket}/pairs")


def test_the_manifest_comes_first_and_every_file_once(bucket, made, reads, cache, capsys):
    folder = fetch(f"{bucket}/texts")
    names = [name for name, _ in reads]
    assert names == ["dataset.json", "tokenizer/bytes.json", *shard_files(made / "texts")]
    assert len(names) > 8
    assert folder.parent == cache
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fetching {len(names) - 2} files (0.00 GB) of {bucket}/texts into ")
    remote.manifest.cache_clear()
    assert fetch(f"{bucket}/texts") == folder
    assert [name for name, _ in reads[len(names) :]] == ["dataset.json"]


def test_another_data_set_at_the_same_address_is_another_folder(bucket, made, tmp_path):
    before = fetch(f"{bucket}/texts")
    text_corpus.prepared(made / "corpus.txt", tmp_path / "other", seed=1)
    files, path = fsspec.core.url_to_fs(f"{bucket}/texts")
    files.rm(path, recursive=True)
    files.put(f"{tmp_path}/other/", f"{path}/", recursive=True)
    remote.manifest.cache_clear()
    assert fetch(f"{bucket}/texts") != before
    assert (
        TokenDataset(f"{bucket}/texts").content_hash
        == TokenDataset(tmp_path / "other").content_hash
    )


def test_a_fetch_that_breaks_off_goes_on_where_it_ended(bucket, made, reads, monkeypatch, cache):
    monkeypatch.setattr(remote, "BLOCK", 1000)
    noted, left = Remote.blocks, [7]

    def break_off(self, start, end):
        for block in noted(self, start, end):
            if self.url.endswith(".tokens"):
                left[0] -= 1
                if not left[0]:
                    with self._failing():
                        raise OSError("the line is dead")
            yield block

    with monkeypatch.context() as context:
        context.setattr(Remote, "blocks", break_off)
        with pytest.raises(
            ValueError, match=r"could not be read: the line is dead; when it can"
        ) as e:
            fetch(f"{bucket}/texts")
    assert f"{bucket}/texts/" in str(e.value)
    done = {name for name, _ in reads}
    [part] = cache.rglob("*.part")
    size = part.stat().st_size
    assert size > 0
    assert size % 1000 == 0
    assert list(cache.rglob("dataset.json")) == []
    reads.clear()
    fetch(f"{bucket}/texts")
    broken = part.name[1:].removesuffix(".part")
    again = [name for name, _ in reads if name in done and name.endswith((".tokens", ".ends"))]
    assert again == [broken]
    assert (broken, size) in reads
    assert list(cache.rglob("*.part")) == []
    TokenDataset(f"{bucket}/texts").verify()


def test_a_killed_fetch_goes_on(made, tmp_path):
    """Without a chance to tidy up: the process ends between two blocks."""
    code = f"""
import os, sys
from cdcd.data import remote
remote.BLOCK, blocks, left = 500, remote.Remote.blocks, [int(sys.argv[1])]
def killed(self, start, end):
    for block in blocks(self, start, end):
        left[0] -= 1
        if not left[0]:
            os._exit(9)
        yield block
remote.Remote.blocks = killed
print(remote.fetch("file://{made}/texts"))
"""
    for count, expected in ((9, 9), (9, 9), (10_000, 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, str(count)], capture_output=True, text=True
        )
        assert done.returncode == expected, done.stderr
    dataset = TokenDataset(done.stdout.strip())
    dataset.verify()
    assert dataset.content_hash == TokenDataset(made / "texts").content_hash


def test_processes_that_fetch_at_once_fetch_once(made, tmp_path):
    code = f"from cdcd.data.remote import fetch; print(fetch('file://{made}/texts'))"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert len({out for out, _ in answers}) == 1
    assert sum(err.count("fetching ") for _, err in answers) == 1
    TokenDataset(answers[0][0].strip()).verify()


# What is wrong is refused, and is not kept


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("texts/train-00000.tokens", lambda c: c[:-1] + bytes([c[-1] ^ 1]), "is damaged, or changed"),
        ("texts/train-00001.ends", lambda c: c[:-8], "is damaged, or changed"),
        ("texts/dataset.json", lambda c: c[:-1], "dataset.json is damaged: it is not JSON"),
        ("texts/dataset.json", lambda c: b"[]", "dataset.json is damaged: it is not a JSON object"),
        ("texts/dataset.json", lambda c: c.replace(b'"format": 1', b'"format": 2'), "is of format 2"),
        ("texts/dataset.json", lambda c: c.replace(b"train-00000", b"../../evil0"), "does not add up"),
        ("pairs/target/dataset.json", lambda c: c + b" ", "is not the side that was prepared with"),
        ("pairs/source/train-00000.tokens", lambda c: c[1:], "is damaged, or changed"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_and_not_kept(bucket, cache, file, change, message):
    url = f"{bucket}/{file.partition('/')[0]}"
    with fsspec.open(f"{bucket}/{file}", "rb") as opened:
        before = opened.read()
    overwrite(f"{bucket}/{file}", change)
    with pytest.raises(ValueError, match=message):
        fetch(url)
    assert [path for path in cache.glob("*/dataset.json") if path.is_file()] == []
    overwrite(f"{bucket}/{file}", lambda _: before)
    (PreparedPairs if "pairs" in url else TokenDataset)(url).verify()


def test_a_tokenizer_of_another_data_set_is_refused(bucket, made, tmp_path):
    text_corpus.prepared(made / "corpus.txt", tmp_path / "words", tokenizer="words", vocab_size=300)
    files, path = fsspec.core.url_to_fs(f"{bucket}/words")
    files.put(f"{tmp_path}/words/", f"{path}/", recursive=True)
    url = f"{bucket}/words/tokenizer/words.json"
    overwrite(url, lambda content: content.replace(b'"document"', b'"documents"'))
    with pytest.raises(ValueError, match=r"words/tokenizer is damaged: its hash is"):
        fetch(f"{bucket}/words")


def test_a_longer_shard_is_read_to_its_known_end(bucket, made):
    overwrite(f"{bucket}/texts/train-00000.tokens", lambda content: content + b"more")
    assert TokenDataset(f"{bucket}/texts").content_hash == TokenDataset(made / "texts").content_hash


def test_what_is_missing_is_named(bucket):
    with pytest.raises(
        ValueError, match=r"absent is not a prepared data set \(no dataset.json in it\)"
    ):
        fetch(f"{bucket}/absent")
    files, path = fsspec.core.url_to_fs(f"{bucket}/texts/train-00000.ends")
    files.rm(path)
    with pytest.raises(ValueError, match=r"texts/train-00000.ends does not exist"):
        fetch(f"{bucket}/texts")


def test_addresses_that_cannot_be_opened_are_one_line(monkeypatch):
    with pytest.raises(
        ValueError, match=r"nosuch://x cannot be opened: Protocol not known: nosuch"
    ):
        fetch("nosuch://x")

    def without_package(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", without_package)
    with pytest.raises(
        ValueError, match=r"s3://b/x needs a package \(Install s3fs to access S3\): pip"
    ):
        fetch("s3://b/x")


def test_a_disk_that_is_too_small_is_refused_before_the_shards(bucket, monkeypatch, reads):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(ValueError, match=r"needs [\d,]+ bytes, its disk has 5 free: .*CDCD_CACHE"):
        fetch(f"{bucket}/texts")
    assert [name for name, _ in reads] == ["dataset.json", "tokenizer/bytes.json"]


# The command line


def test_verify_fetches_and_checks(bucket, capsys):
    assert cdcd_main("data", "verify", f"{bucket}/texts") == 0
    assert f"{bucket}/texts is whole: train, valid, test" in capsys.readouterr().out
    assert cdcd_main("data", "verify", f"{bucket}/absent") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{bucket}/absent is not a prepared data set" in line


def test_local_paths_are_no_addresses():
    for path in ("tales", "/a/b", "a:b", "C:\\x", "hf:wikitext", "./s3:/x", "a//b"):
        assert not remote.is_remote(path), path
    for url in ("s3://b/x", "hf://datasets/a/b", "memory://x", "simplecache::s3://b/x"):
        assert remote.is_remote(url), url


def test_the_cache_is_where_users_expect_it(monkeypatch, tmp_path):
    monkeypatch.delenv(remote.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert remote.cache_folder() == tmp_path / "cdcd" / "datasets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert remote.cache_folder() == tmp_path / ".cache" / "cdcd" / "datasets"
