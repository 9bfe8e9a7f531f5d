"""Pairs: prepared in lockstep, filtered and counted; the same bytes, whatever happens."""

import gzip
import json
import sys
import types
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from pair_corpus import ENGLISH, GERMAN, config_for, prepared, texts_of, write_corpus
from paths import REAL
from rich.console import Console
from tiny import cdcd_main, contents, silent

from cdcd.data.dataset_files import SPLITS
from cdcd.data.pairs import PreparedPairs, holds_pairs
from cdcd.data.prepare import PrepareConfig, encoding, prepare
from cdcd.data.prepare.preparation import splits_of
from cdcd.data.prepare.writing import SplitWriter
from cdcd.data.sequences import TokenDataset

needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="the corpora are not beside the repository"
)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def table(corpus, name, rows):
    (corpus / name).write_text("".join(f"{row}\n" for row in rows))
    return {"source": str(corpus / name), "target_source": None}


# The result


def test_every_pair_once_in_order(corpus):
    pairs = prepared(corpus, judge_share=0.1)
    assert pairs.splits == SPLITS
    split_of = np.array(SPLITS)[splits_of(np.arange(400), config_for(corpus, judge_share=0.1))]
    both = list(zip(ENGLISH, GERMAN, strict=True))
    for split in SPLITS:
        wanted = [pair for pair, its in zip(both, split_of, strict=True) if its == split]
        assert texts_of(pairs, split) == wanted
        assert pairs.counts(split) == {"kept": len(wanted), "empty": 0}
    pairs.verify()


def test_the_files(corpus):
    pairs = prepared(corpus)
    names = {str(path.relative_to(pairs.path)) for path in pairs.path.rglob("*") if path.is_file()}
    shards = {f"{split}-00000.{kind}" for split in SPLITS[:3] for kind in ("tokens", "ends")}
    inner = {"dataset.json", "tokenizer/bytes.json"}
    assert names == inner | {f"{side}/{n}" for side in ("source", "target") for n in shards | inner}
    assert holds_pairs(pairs.path)
    assert not holds_pairs(pairs.path / "source")
    assert TokenDataset(pairs.path / "target").summary("train").documents == pairs.num_pairs(
        "train"
    )


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("x.tsv", ["en\tde", *map("\t".join, zip(ENGLISH, GERMAN, strict=True))], ("en", "de")),
        ("x.tsv", [*map("\t".join, zip(ENGLISH, GERMAN, strict=True))], ("1", "2")),
        ("x.csv", ["de,en", *(f'"{g}",{e}' for e, g in zip(ENGLISH, GERMAN, strict=True))],
         ("en", "de")),
        ("x.jsonl", [json.dumps({"translation": {"en": e, "de": g}})
                     for e, g in zip(ENGLISH, GERMAN, strict=True)],
         ("translation.en", "translation.de")),
    ],
)  # fmt: skip
def test_tables_give_the_same_as_lines(corpus, name, rows, columns):
    lines = prepared(corpus)
    column, target_column = columns
    other = prepared(
        corpus, "other", **table(corpus, name, rows), column=column, target_column=target_column
    )
    for side in ("source", "target"):
        one, two = contents(lines.path / side), contents(other.path / side)
        assert {n for n in one if one[n] != two[n]} == {"dataset.json"}


def test_held_out_text_beside_a_table(corpus):
    (corpus / "t.en").write_text("one\ntwo\n")
    (corpus / "t.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    rows = map("\t".join, zip(ENGLISH, GERMAN, strict=True))
    changes = table(corpus, "x.tsv", rows) | {"column": "1", "target_column": "2"}
    table(corpus, "v.tsv", ["three\tdrei"])
    pairs = prepared(
        corpus,
        **changes,
        test_source=str(corpus / "t.en"),
        test_target_source=str(corpus / "t.de.gz"),
        valid_source=str(corpus / "v.tsv"),
    )
    assert texts_of(pairs, "test") == [("one", "eins"), ("two", "zwei")]
    assert texts_of(pairs, "valid") == [("three", "drei")]
    assert pairs.num_pairs("train") == 400


@pytest.fixture
def hub(monkeypatch):
    rows = [
        {"translation": {"de": g, "en": e}} for e, g in zip(ENGLISH[:50], GERMAN[:50], strict=True)
    ]
    package = types.SimpleNamespace(load_dataset=lambda *_, **__: iter(rows))
    monkeypatch.setitem(sys.modules, "datasets", package)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: None)


HUB = {"source": "hf:wmt14:de-en", "target_source": None, "column": "translation.en"}


def test_the_hub(corpus, hub):
    pairs = prepared(corpus, **HUB, target_column="translation.de", valid_share=0.0, test_share=0.0)
    assert texts_of(pairs, "train") == list(zip(ENGLISH[:50], GERMAN[:50], strict=True))


def test_an_unknown_language_of_the_hub(corpus, hub):
    with pytest.raises(ValueError, match=r"row 1: no field 'translation.fr'; .* are: de, en"):
        prepared(corpus, **HUB, target_column="translation.fr")


def test_the_hub_without_its_package(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"hf:wmt14:de-en needs the package datasets: pip install"):
        prepared(corpus, **HUB, target_column="translation.de")


def test_one_vocabulary_learnt_from_both_sides(corpus):
    pairs = prepared(corpus, tokenizer="sentencepiece", vocab_size=320)
    pieces = {pairs.tokenizer.piece(token) for token in range(pairs.tokenizer.vocab_size)}
    assert {"h", "H", "l", "s"} <= {piece.strip("▁")[:1] for piece in pieces}
    assert pairs.source.tokenizer_hash == pairs.target.tokenizer_hash == pairs.tokenizer_hash
    assert texts_of(pairs, "test")[0] in list(zip(ENGLISH, GERMAN, strict=True))
    assert (
        prepared(corpus, "again", tokenizer=str(pairs.path)).tokenizer_hash == pairs.tokenizer_hash
    )


def test_words_are_learnt_from_train_pairs_alone(corpus):
    pairs = prepared(corpus, tokenizer="words")
    for side in (pairs.source, pairs.target):
        assert side.summary("train").unknown == 0
        assert side.summary("valid").unknown > 0


# Pairs with an empty side


def test_what_is_left_out_is_counted(corpus):
    (corpus / "a.en").write_text("\n".join(["abc", "", "abcdef", "ab", " ", "abcde"]))
    (corpus / "a.de").write_text("\n".join(["xyz", "x", "x", "\t", "", "xyzzy"]))
    console = Console(file=StringIO(), width=200)
    changes = {"target_source": str(corpus / "a.de"), "valid_share": 0.0, "test_share": 0.0}
    pairs = prepared(corpus, console=console, **changes)
    assert texts_of(pairs, "train") == [("abc", "xyz"), ("abcdef", "x"), ("abcde", "xyzzy")]
    assert pairs.counts("train") == {"kept": 3, "empty": 3}
    assert "train: 3 kept, 3 empty;" in console.file.getvalue()


def test_what_is_held_out_is_counted_by_itself(corpus):
    (corpus / "t.en").write_text("a very long sentence\n\nshort\n")
    (corpus / "t.de").write_text("kurz\nleer\nein sehr langer Satz\n")
    held_out = {"test_source": str(corpus / "t.en"), "test_target_source": str(corpus / "t.de")}
    pairs = prepared(corpus, **held_out)
    assert texts_of(pairs, "test") == [
        ("a very long sentence", "kurz"), ("short", "ein sehr langer Satz"),
    ]  # fmt: skip
    assert pairs.counts("test") == {"kept": 2, "empty": 1}
    assert pairs.counts("train")["empty"] == 0


# The same bytes, whatever happens


def test_workers_and_chunks_do_not_change_the_result(corpus, monkeypatch):
    whole = prepared(corpus, shard_tokens=3000)
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 500)
    other = prepared(corpus, "other", shard_tokens=3000, workers=2)
    assert contents(other.path) == contents(whole.path)


def test_going_on_after_an_interruption(corpus, monkeypatch):
    whole = prepared(corpus, shard_tokens=2000)
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 400)
    monkeypatch.setattr("cdcd.data.prepare.preparation.SAVE_EVERY", 1500)
    append, calls = SplitWriter.append, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 122:  # between the two sides of a chunk
            raise KeyboardInterrupt
        append(self, *arguments)

    with monkeypatch.context() as context:
        context.setattr("cdcd.data.prepare.writing.SplitWriter.append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared(corpus, "other", shard_tokens=2000)
    assert json.loads((corpus / "other" / ".progress.json").read_text())["documents"] > 0
    with pytest.raises(ValueError, match=r"other is not finished; go on with the command"):
        PreparedPairs(corpus / "other")
    other = prepared(corpus, "other", shard_tokens=2000)
    assert contents(other.path) == contents(whole.path)


# Mistakes leave nothing behind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_source": "{place}/short.de"},
         r"short.de has 2 lines, .*a.en has more: line n of one must be the translation"),
        ({"source": "{place}/short.de"}, r"short.de has 2 lines, .*a.de.xz has more"),
        ({"target_source": "{place}/absent"}, r"there is no source '.*absent'"),
        ({"target_source": "{place}/empty.de"}, r"a.en, .*empty.de holds no text"),
        ({"source": "{place}/x.tsv", "target_source": None, "column": "en", "target_column": "fr"},
         r"x.tsv, line 2: no field 'fr'; the fields are: 1, 2, en, de"),
        ({"source": "{place}/x.tsv", "target_source": None, "column": "1", "target_column": "3"},
         r"x.tsv, line 1: no field '3'; the fields are: 1, 2"),
        ({"target_source": None, "column": "en", "target_column": "de"},
         r"a.en is plain text and has no column 'en'"),
        ({"source": "{place}/x.tsv", "target_source": None, "target_column": "de"},
         r"column is None and target_column 'de': name two columns"),
        ({"source": "{place}/x.tsv", "target_source": None, "column": "de", "target_column": "de"},
         r"column is 'de' and target_column 'de': name two columns"),
        ({"target_source": None, "test_source": "x", "test_target_source": "y"},
         r"test_target_source is for pairs: say where"),
        ({"valid_source": "{place}/a.en"}, r"valid_source needs valid_target_source, or target_col"),
        ({"test_target_source": "{place}/a.en"}, r"test_target_source needs test_source"),
    ],
)  # fmt: skip
def test_mistakes(corpus, changes, message):
    (corpus / "short.de").write_text("eins\nzwei\n")
    (corpus / "empty.de").write_text("\n" * 400)
    (corpus / "x.tsv").write_text("en\tde\nhi\thallo\n")
    before = contents(corpus)
    changes = {
        name: value.format(place=corpus) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        prepared(corpus, **changes)
    assert contents(corpus) == before


def test_a_data_set_of_pairs_is_not_one_of_texts(corpus):
    pairs = prepared(corpus)
    with pytest.raises(
        ValueError, match=r"set holds pairs, .* of its sides: .*set/source, .*target"
    ):
        TokenDataset(pairs.path)
    with pytest.raises(
        ValueError, match=r"source holds single texts, no pairs; prepare pairs with"
    ):
        PreparedPairs(pairs.path / "source")
    with pytest.raises(
        ValueError, match=r"absent does not exist; prepare one with: .* \[--target-source"
    ):
        PreparedPairs(corpus / "absent")


def test_damage_is_noticed(corpus):
    pairs, other = prepared(corpus), prepared(corpus, "other", seed=1)
    file = pairs.path / "target" / "train-00000.tokens"
    whole = file.read_bytes()
    file.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=r"target/train-00000.tokens has .* damaged or cut short"):
        PreparedPairs(pairs.path)
    file.write_bytes(whole[:-4] + b"ab" + whole[-2:])
    with pytest.raises(ValueError, match=r"train-00000.tokens is damaged: its SHA-256"):
        PreparedPairs(pairs.path).verify()
    for inner in (pairs.path / "target").glob("*.*"):
        inner.write_bytes((other.path / "target" / inner.name).read_bytes())
    with pytest.raises(ValueError, match=r"set/target is not the side that was prepared with"):
        PreparedPairs(pairs.path)


# The command


def test_the_command(corpus, capsys):
    out = corpus / "set"
    options = ["--tokenizer", "bytes", "--workers", 1]
    files = ["--source", corpus / "a.en", "--target-source", corpus / "a.de.xz"]
    assert cdcd_main("data", "prepare", *files, *options, "--out", out) == 0
    assert "train: 39" in capsys.readouterr().out
    assert cdcd_main("data", "verify", out) == 0
    assert "set is whole: train, valid" in capsys.readouterr().out


def test_single_texts_stay_single(corpus):
    config = replace(config_for(corpus), target_source=None)
    assert not config.is_pairs
    prepare(config, corpus / "texts", console=silent())
    texts = TokenDataset(corpus / "texts")
    assert sum(len(texts.documents(split)) for split in ("train", "valid", "test")) == 400


# Real corpora


@needs_real
@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"source": "multi30k/train.en.txt.xz", "target_source": "multi30k/train.de.txt.xz"},
         ("Two young, White males are outside near many bushes.",
          "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.")),
        ({"source": "tatoeba_en-de/train.tsv.xz", "column": "1", "target_column": "2"}, None),
        ({"source": "europarl_en-de/train.tsv.xz", "column": "1", "target_column": "2"}, None),
    ],
)  # fmt: skip
def test_real_corpora(tmp_path, changes, first):
    paths = {n: str(REAL / v) if n.endswith("source") else v for n, v in changes.items()}
    config = PrepareConfig(
        **paths, tokenizer="bytes", workers=1, max_documents=2000, valid_share=0.0, test_share=0.0
    )
    prepare(config, tmp_path / "set", console=silent())
    pairs = PreparedPairs(tmp_path / "set")
    assert pairs.counts("train")["kept"] == pairs.num_pairs("train") == 2000
    assert first is None or pairs.texts("train", 0) == first
