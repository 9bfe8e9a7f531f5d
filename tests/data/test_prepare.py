"""Preparing texts: every document once, the same bytes whatever the chunks; splits; mistakes."""

import json
import lzma
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from dying import end_process
from rich.console import Console
from text_corpus import TEXTS, config_for, prepared, texts_of, write_corpus
from tiny import cdcd_main, contents

from cdcd.cli.parser import Parser
from cdcd.data.dataset_files import SPLITS
from cdcd.data.prepare import PrepareConfig, encoding, prepare
from cdcd.data.prepare.encoding import chunked, encode_documents
from cdcd.data.prepare.preparation import splits_of
from cdcd.data.sequences import TokenDataset
from cdcd.data.tokenizers import ByteTokenizer, SymbolTokenizer, tokenizer_hash
from cdcd.data.vocabulary import EOS, UNKNOWN
from cdcd.settings import add_options, field_docs


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


# The result


def test_every_document_once_in_order(corpus, tmp_path):
    dataset = prepared(corpus, tmp_path / "set", judge_share=0.1)
    assert dataset.splits == SPLITS
    split_of = np.array(SPLITS)[splits_of(np.arange(600), config_for(corpus, judge_share=0.1))]
    for split in SPLITS:
        wanted = [text for text, its in zip(TEXTS, split_of, strict=True) if its == split]
        assert texts_of(dataset, split) == wanted
        summary = dataset.summary(split)
        assert summary.documents == len(wanted)
        assert summary.bytes == sum(map(len, wanted))
        assert summary.tokens == summary.bytes + len(wanted)
        assert summary.unknown == 0
    dataset.verify()


def test_the_format_on_disk(corpus, tmp_path):
    out = tmp_path / "set"
    dataset = prepared(corpus, out)
    described = json.loads((out / "dataset.json").read_text())
    assert described["format"] == 1
    assert described["dtype"] == "uint16"
    assert described["tokenizer"] == {
        "kind": "bytes",
        "hash": tokenizer_hash(dataset.tokenizer),
        "vocab_size": 259,
    }
    assert described["config"]["source"] == str(corpus)
    assert "workers" not in described["config"]
    tokens = np.fromfile(out / "train-00000.tokens", dtype="<u2")
    ends = np.fromfile(out / "train-00000.ends", dtype="<u8")
    assert (tokens[ends - 1] == EOS).all()
    assert (tokens == EOS).sum() == len(ends)
    assert not (out / ".progress.json").exists()
    assert {file.name.split(".")[0] for file in out.iterdir() if file.is_file()} == {
        "dataset", "train-00000", "valid-00000", "test-00000",
    }  # fmt: skip


def test_large_vocabularies_take_four_bytes(tmp_path):
    words = [" ".join(f"w{n}" for n in range(k, 70_000, 7)) for k in range(7)]
    (tmp_path / "x.txt").write_text("\n".join(words))
    options = {"tokenizer": "symbols", "vocab_size": 10**6, "valid_share": 0, "test_share": 0}
    dataset = prepared(tmp_path / "x.txt", tmp_path / "set", **options)
    assert dataset.dtype == np.uint32
    assert texts_of(dataset, "train") == words


def test_chunks_do_not_change_the_result(corpus, tmp_path, monkeypatch):
    whole = prepared(corpus, tmp_path / "one", shard_tokens=2500)
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    assert contents(prepared(corpus, tmp_path / "two", shard_tokens=2500).path) == contents(
        whole.path
    )
    sizes = np.diff(np.fromfile(whole.path / "train-00000.ends", dtype="<u8"), prepend=0)
    assert 2500 <= sizes.sum() < 2500 + sizes[-1]  # closed by the document that fills it
    assert [len(chunk) for chunk in chunked([("x" * 60,)] * 5)] == [2, 2, 1]


def test_own_sources_of_splits(corpus, tmp_path):
    (tmp_path / "valid.txt").write_text("v one\nv two\n")
    (tmp_path / "test.txt.xz").write_bytes(lzma.compress(b"t one\n"))
    dataset = prepared(
        corpus,
        tmp_path / "set",
        valid_source=str(tmp_path / "valid.txt"),
        test_source=str(tmp_path / "test.txt.xz"),
        judge_share=0.2,
    )
    assert texts_of(dataset, "valid") == ["v one", "v two"]
    assert texts_of(dataset, "test") == ["t one"]
    assert sorted(texts_of(dataset, "train") + texts_of(dataset, "judge")) == sorted(TEXTS)


def test_empty_documents_are_counted_and_keep_their_numbers(tmp_path):
    full = [f"caption {n}" for n in range(300)]
    holes = [text if n % 3 else " " for n, text in enumerate(full)]
    options = {"group_size": 5, "valid_share": 0.3}
    split_of = {}
    for name, lines in (("full", full), ("holes", holes)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
        dataset = prepared(tmp_path / f"{name}.txt", tmp_path / name, **options)
        split_of[name] = {t: split for split in dataset.splits for t in texts_of(dataset, split)}
    assert split_of["holes"] == {t: s for t, s in split_of["full"].items() if t in holes}
    assert json.loads((tmp_path / "holes" / "dataset.json").read_text())["empty"] == 100


def test_no_more_documents_than_wanted(corpus, tmp_path):
    dataset = prepared(corpus, tmp_path / "set", max_documents=100)
    assert sum(dataset.summary(split).documents for split in dataset.splits) == 100


def test_undecodable_bytes_are_kept_and_counted(tmp_path):
    lines = [b"caf\xe9 ol\xe9", b"plain", b"\xff\xfe"] * 20
    (tmp_path / "latin.txt").write_bytes(b"\n".join(lines))
    for kind in ("bytes", "sentencepiece"):
        console = Console(file=StringIO(), width=200)
        config = config_for(tmp_path / "latin.txt", tokenizer=kind, vocab_size=300, valid_share=0)
        prepare(replace(config, test_share=0.0), tmp_path / kind, console=console)
        dataset = TokenDataset(tmp_path / kind)
        found = [t.encode("utf-8", "surrogateescape") for t in texts_of(dataset, "train")]
        assert found == lines
        assert dataset.summary("train").undecodable == 80
        assert dataset.summary("train").unknown == 0
        assert "80 bytes not UTF-8" in console.file.getvalue()


def test_unknown_tokens_are_counted(tmp_path):
    (tmp_path / "x.txt").write_text("a a a b\na b c")
    console = Console(file=StringIO(), width=200)
    options = {"tokenizer": "symbols", "vocab_size": 4, "valid_share": 0, "test_share": 0}
    prepare(config_for(tmp_path / "x.txt", **options), tmp_path / "set", console=console)
    assert TokenDataset(tmp_path / "set").summary("train").unknown == 3
    assert "7 of them" not in console.file.getvalue()
    assert "3 of them unknown" in console.file.getvalue()


def test_counts_of_each_document():
    encoded = encode_documents(SymbolTokenizer(["a"]), ["a b b", " ", "", "a", "\udcff"])
    assert encoded.tokens.tolist() == [3, UNKNOWN, UNKNOWN, EOS, 3, EOS, UNKNOWN, EOS]
    # Tokens, bytes, unknown tokens, undecodable bytes.
    counts = [[4, 5, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0], [2, 1, 0, 0], [2, 1, 1, 1]]
    assert encoded.counts.tolist() == counts
    assert encoded.lengths.tolist() == [4, 0, 0, 2, 2]
    assert len(encode_documents(ByteTokenizer(), []).tokens) == 0


def test_the_tokenizer_learns_from_train_alone(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(f"w{n}" for n in range(200)))
    dataset = prepared(tmp_path / "x.txt", tmp_path / "set", tokenizer="words", valid_share=0.5)
    for split, share in (("train", 0), ("valid", 1), ("test", 1)):
        summary = dataset.summary(split)
        assert summary.unknown == share * summary.documents


@pytest.mark.parametrize("place", ["set", "set/tokenizer", "set/tokenizer/symbols.json"])
def test_a_tokenizer_taken_over(corpus, tmp_path, place):
    first = prepared(corpus, tmp_path / "set", tokenizer="symbols", vocab_size=50)
    (tmp_path / "other.txt").write_text("la la lu\nla\n" * 20)
    second = prepared(tmp_path / "other.txt", tmp_path / "second", tokenizer=str(tmp_path / place))
    assert second.tokenizer_hash == first.tokenizer_hash


# Splits


def test_shares():
    config = PrepareConfig(source="x", valid_share=0.1, test_share=0.2, judge_share=0.3)
    counts = np.bincount(splits_of(np.arange(100_000), config), minlength=4)
    # Four standard deviations of the largest.
    assert abs(counts / 100_000 - [0.4, 0.1, 0.2, 0.3]).max() < 4 * 0.5 / 100_000**0.5


def test_splits_depend_on_seed_and_group_alone():
    config = PrepareConfig(source="x", valid_share=0.3, group_size=5)
    numbers = np.arange(1000)
    found = splits_of(numbers, config)
    assert (found.reshape(200, 5) == found[::5, None]).all()
    assert np.array_equal(found[500:], splits_of(numbers[500:], config))
    assert np.array_equal(found[::5], splits_of(numbers[:200], replace(config, group_size=1)))
    assert not np.array_equal(found, splits_of(numbers, replace(config, seed=1)))
    assert not splits_of(numbers, replace(config, valid_share=0.0, test_share=0.0)).any()


# Mistakes leave nothing behind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "{place}/absent.txt"}, r"there is no source '.*absent.txt'"),
        ({"source": "{place}/empty.txt"}, r"empty.txt holds no text"),
        ({"source": "{place}/folder"}, r"folder holds no text"),
        ({"source": "{place}/cut.txt.xz"}, r"cut.txt.xz is damaged or cut short"),
        ({"source": "{place}/pairs.tsv", "column": "fr"}, r"no field 'fr'; .* en, de"),
        ({"source": "{place}/rows.jsonl"}, r"rows.jsonl, line 1: no field 'text'; .* body"),
        ({"valid_source": "{place}/empty.txt"}, r"empty.txt holds no text"),
        (
            {"test_source": "{place}/ragged.jsonl"},
            r"ragged.jsonl, line 2: no field 'text'; .* body",
        ),
        ({"tokenizer": "sentencepiece", "vocab_size": 200}, r"vocab_size is 200; .* need 28\d"),
        ({"tokenizer": "words", "vocab_size": 2}, r"vocab_size is 2, it must be above 3"),
        ({"tokenizer": "sentencepeice"}, r"there is no tokenizer sentencepeice; give sentencepi"),
        ({"tokenizer": "{place}/folder"}, r"folder holds no tokenizer"),
        ({"valid_share": 0.5, "test_share": 0.5}, r"sum to 1; .* lower them to a sum below 1"),
        ({"valid_share": -0.1}, r"valid_share is -0.1, it must be at least 0"),
        ({"judge_share": 1.0}, r"judge_share is 1.0, it must be below 1"),
        ({"group_size": 0}, r"group_size is 0, it must be at least 1"),
        ({"max_documents": 0}, r"max_documents is 0, it must be at least 1"),
        ({"workers": 0}, r"workers is 0, it must be at least 1"),
        ({"column": "1", "unit": "line"}, r"column '1' is for tables"),
    ],
)
def test_mistakes(corpus, tmp_path, changes, message):
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "folder").mkdir()
    content = "".join(f"{n * 7919}\n" for n in range(5000)).encode()
    (tmp_path / "cut.txt.xz").write_bytes(lzma.compress(content)[:600])
    (tmp_path / "pairs.tsv").write_text("en\tde\nhi\thallo\n")
    (tmp_path / "rows.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "ragged.jsonl").write_text('{"text": "x"}\n{"body": "x"}\n')
    before = contents(tmp_path)
    changes = {
        name: value.format(place=tmp_path) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        prepared(corpus, tmp_path / "set", **changes)
    assert contents(tmp_path) == before


def test_what_exists_is_left_alone(corpus, tmp_path):
    prepared(corpus, tmp_path / "set")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    before = contents(tmp_path)
    for name, message in (
        ("set", r"set already holds a finished data set; choose another --out"),
        ("notes", r"notes already exists and is not a data set"),
        ("corpus.txt", r"corpus.txt already exists and is not a data set"),
        ("corpus.txt/set", r"could not create .*set: Not a directory"),
    ):
        with pytest.raises(ValueError, match=message):
            prepared(corpus, tmp_path / name)
    assert contents(tmp_path) == before
    (tmp_path / "new").mkdir()
    prepared(corpus, tmp_path / "new")  # an empty folder will do


def test_nothing_left_to_train_on(tmp_path):
    (tmp_path / "x.txt").write_text("one\n")
    seed = next(
        seed
        for seed in range(100)
        if splits_of(np.zeros(1, np.int64), PrepareConfig(source="x", valid_share=0.9, seed=seed))[
            0
        ]
    )
    with pytest.raises(
        ValueError, match=r"nothing is left to train on: 0 documents are empty; add documents or"
    ):
        prepared(tmp_path / "x.txt", tmp_path / "set", valid_share=0.8, seed=seed)
    assert not (tmp_path / "set").exists()


def test_empty_splits_are_told(tmp_path):
    (tmp_path / "x.txt").write_text("one\n")
    console = Console(file=StringIO(), width=200)
    prepare(config_for(tmp_path / "x.txt"), tmp_path / "set", console=console)
    assert "the split valid is empty: raise valid_share (0.1)" in console.file.getvalue()


@pytest.mark.parametrize("share", [0, 0.5])
def test_what_can_be_done_with_a_prepared_set(tmp_path, capfd, share):
    (tmp_path / "x.txt").write_text("one\n" * 20)
    options = ("--tokenizer", "bytes", "--workers", 1, "--valid-share", share)
    folder = tmp_path / "set"
    assert (
        cdcd_main("data", "prepare", "--source", tmp_path / "x.txt", "--out", folder, *options) == 0
    )
    shown = capfd.readouterr().out
    assert (f"train on it with: cdcd train --data {folder} --out RUN" in shown) == (share > 0)
    assert ("the split valid is empty: delete" in shown) == (share == 0)


def test_a_worker_that_dies(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("cdcd.data.prepare.encoding._encode_chunk", end_process)
    with pytest.raises(ValueError, match=r"one of 2 processes died.*fewer workers"):
        prepared(corpus, tmp_path / "set", workers=2)


def test_every_setting_is_an_option_with_help():
    parser = Parser(prog="prepare")
    add_options(parser, PrepareConfig)
    options = parser.parse_args(["--source", "x", "--max-documents", "5"])
    assert (options.source, options.max_documents) == ("x", 5)
    assert set(field_docs(PrepareConfig)) == set(PrepareConfig.__dataclass_fields__)
