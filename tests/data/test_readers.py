"""Readers: every kind of source as a stream of documents, and what is wrong with bad ones."""

import bz2
import gzip
import io
import json
import lzma
import sys
import types

import pytest

from cdcd.data.corpus import read_documents
from cdcd.data.prepare.reading import Documents

TEXT = "= A =\nfirst café\n\n\n= B =\nsecond\n"


def compress_zst(content):
    return pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True)


COMPRESSORS = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": compress_zst,
}


def write(path, content, suffix=""):
    path = path.with_name(path.name + suffix)
    path.write_bytes(
        COMPRESSORS[suffix](content if isinstance(content, bytes) else content.encode())
    )
    return path


def read(path, column=None, **options):
    return [text for (text,) in Documents(str(path), columns=[column], **options)]


# Text


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_units(tmp_path, suffix):
    file = write(tmp_path / "text.txt", TEXT, suffix)
    assert read(file) == ["= A =", "first café", "", "", "= B =", "second"]
    assert read(file, unit="line") == read(file)
    assert read(file, unit="blank-line") == ["= A =\nfirst café", "= B =\nsecond"]
    assert read(file, unit="file") == [TEXT]


def test_the_ends_of_lines(tmp_path):
    file = write(tmp_path / "text.txt", "a\r\nb\u2028c\r\n \r\nd\x0ce")
    assert read(file) == ["a", "b\u2028c", " ", "d\x0ce"]
    assert read(file, unit="blank-line") == ["a\nb\u2028c", "d\x0ce"]


def test_a_folder(tmp_path):
    for name in ("b.txt", "a/z.txt", ".hidden.txt", "a/.git/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, f"{name}\n")
    write(tmp_path / "c.txt", "c\nd\n", ".xz")
    (tmp_path / "t.jsonl").write_text('{"text": "row"}\n')
    assert read(tmp_path) == ["a/z.txt\n", "b.txt\n", "c\nd\n", "row"]
    assert read(tmp_path / "a", unit="line") == ["a/z.txt"]


def test_bytes_that_are_not_utf8_are_kept(tmp_path):
    content = b"caf\xe9\nol\xff\xc3"
    file = write(tmp_path / "latin.txt", content)
    for unit in ("line", "blank-line", "file"):
        text = "\n".join(read(file, unit=unit))
        assert text.encode("utf-8", "surrogateescape") == content
    with pytest.raises(ValueError, match=r"latin.txt, line 1: not UTF-8 text \("):
        read(file, errors="strict")
    later = write(tmp_path / "later.txt", b"fine\nfine\nca\xe9 \n")
    with pytest.raises(ValueError, match=r"later.txt, line 3: not UTF-8 text .*iconv"):
        read_documents(str(later))


def test_in_memory_corpora_are_read_the_same_way(tmp_path):
    assert read_documents(str(write(tmp_path / "x.txt", TEXT, ".xz"))) == [
        "= A =", "first café", "= B =", "second",
    ]  # fmt: skip
    (tmp_path / "x.jsonl").write_text('{"text": "row"}\n{"text": " "}\n')
    assert read_documents(str(tmp_path / "x.jsonl")) == ["row"]


def test_a_source_is_read_again_from_its_start(tmp_path):
    file = write(tmp_path / "x.txt", "one\ntwo\n", ".gz")
    source = Documents(str(file))
    assert source.size == file.stat().st_size
    next(iter(source))
    assert list(source) == list(source) == [("one",), ("two",)]


def test_reading_does_not_hold_the_file(tmp_path):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:2] = b"a\n"
            return 2

    from cdcd.data.prepare.reading import UNITS, _Lines

    lines = _Lines(tmp_path, io.BufferedReader(Endless()), "", "strict")
    assert next(UNITS["line"](lines)) == "a"


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("unit", ["line", "file"])
def test_files_cut_short_or_damaged(tmp_path, suffix, unit):
    content = "".join(f"{number * 7919}\n" for number in range(20_000)).encode()
    whole = COMPRESSORS[suffix](content)
    file = tmp_path / f"cut.txt{suffix}"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"cut.txt{suffix} is damaged or cut short \(.+\); fetch"):
        read(file, unit=unit)
    file.write_bytes(b"no such thing" + whole)
    with pytest.raises(ValueError, match=rf"cut.txt{suffix} is damaged or cut short"):
        read(file, unit=unit)


def test_several_frames_of_zst(tmp_path):
    file = tmp_path / "two.txt.zst"
    file.write_bytes(
        compress_zst(b"one\n") + compress_zst(b"two\n" * 300_000) + compress_zst(b"three")
    )
    assert read(file) == ["one", *["two"] * 300_000, "three"]
    file.write_bytes(b"")
    assert read(file) == []


def test_no_such_source(tmp_path):
    with pytest.raises(
        ValueError, match=r"there is no source '.*absent': give a file, a folder or hf:"
    ):
        Documents(str(tmp_path / "absent"))


# Tables


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_jsonl(tmp_path, suffix):
    rows = [{"text": "a\nb", "de": "x"}, {"text": "", "de": "y"}, {"text": None, "de": "z"}]
    content = "\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\n"
    file = write(tmp_path / "rows.jsonl", content, suffix)
    assert read(file) == ["a\nb", "", ""]
    assert read(file, column="de") == ["x", "y", "z"]


def test_nested_fields(tmp_path):
    row = {"translation": {"en": "hi", "de": "hallo"}, "a.b": "dotted"}
    file = write(tmp_path / "rows.jsonl", json.dumps(row))
    assert read(file, column="translation.de") == ["hallo"]
    assert read(file, column="a.b") == ["dotted"]


def test_half_characters_of_json_become_bytes(tmp_path):
    file = write(tmp_path / "rows.jsonl", b'{"text": "a\\ud83d \\ud83e\\udd8a caf\xe9"}')
    [text] = read(file)
    assert text.encode("utf-8", "surrogateescape") == b"a\xed\xa0\xbd \xf0\x9f\xa6\x8a caf\xe9"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "b", "id": 1}', "rows.jsonl, line 2: no field 'text'; the fields are: body, id"),
        ('{"text": 5}', "line 2: the field 'text' is not text but of type int"),
        ('{"text": ', r"line 2: not JSON \("),
        ("[" * 100_000, r"line 2: not JSON \(.*recursion"),
        ('["text"]', "line 2: no field 'text'; the fields are: none"),
    ],
)
def test_bad_jsonl(tmp_path, line, message):
    file = write(tmp_path / "rows.jsonl", '{"text": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read(file)


def test_tsv(tmp_path):
    file = write(tmp_path / "pairs.tsv", 'en\tde\n"Hi.\tHallo!\nBye.\tTschüss', ".xz")
    assert read(file, column="en") == ['"Hi.', "Bye."]
    assert read(file, column="2") == ["de", "Hallo!", "Tschüss"]
    assert read(file, unit="line")[1] == '"Hi.\tHallo!'


def test_csv(tmp_path):
    file = write(tmp_path / "rows.csv", '\ufeffid,text\r\n1,"a, ""b""\r\nc"\r\n2,\r\n')
    assert read(file) == ['a, "b"\r\nc', ""]
    assert read(file, column="1") == ["\ufeffid", "1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.tsv", "en\tde\nx\ty\n", {"column": "fr"},
         "a.tsv, line 2: no field 'fr'; the fields are: 1, 2, en, de"),
        ("a.tsv", "en\tde\nx\ty\n", {}, "a.tsv, line 2: no field 'text'; the fields are: 1, 2, en"),
        ("a.tsv", "x\ty\nz\n", {"column": "2"}, "a.tsv, line 2: no field '2'; the fields are: 1$"),
        ("a.tsv", "x\ty\n", {"column": "0"}, "line 1: no field '0'; the fields are: 1, 2"),
        ("a.csv", 'text\n"a', {}, r"a.csv, line 2: not CSV \("),
        ("a.txt", "a", {"column": "text"}, "a.txt is plain text and has no column 'text'"),
        ("a.tsv", "a", {"column": "1", "unit": "line"}, "column '1' is for tables, unit 'line' for text"),
    ],
)  # fmt: skip
def test_bad_tables(tmp_path, name, content, options, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / name, content), **options)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {
        "text": [f"row {n}" for n in range(3000)],
        "pair": [{"en": f"en {n}"} for n in range(3000)],
    }
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table(rows), file)
    assert read(file) == rows["text"]
    assert read(file, column="pair.en")[-1] == "en 2999"
    with pytest.raises(ValueError, match=r"rows.parquet has no column 'de'; it has text, pair"):
        read(file, column="de")
    with pytest.raises(
        ValueError, match=r"rows.parquet, row 1: no field 'pair.de'; the fields are: en"
    ):
        read(file, column="pair.de")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"rows.parquet is damaged or cut short"):
        read(file)


# Packages that are not there, and the hub


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("pyarrow", "x.txt.zst"),
        ("pyarrow.parquet", "x.parquet"),
        ("datasets", "hf:allenai/c4:en"),
    ],
)
def test_missing_packages(tmp_path, monkeypatch, package, source):
    monkeypatch.setitem(sys.modules, package, None)
    if not source.startswith("hf:"):
        source = str(write(tmp_path / source, b"x"))
    with pytest.raises(
        ValueError, match=rf"needs the package {package}.*pip install 'cdcd\[data\]'"
    ):
        read(source)


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers, and a package that notes what it is asked for."""
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return iter([{"text": "one", "translation": {"en": "eins"}}, {"text": "two"}])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize(
    ("source", "arguments", "split"),
    [
        ("hf:allenai/c4:en", ("allenai/c4", "en"), "train"),
        ("hf:wmt14:de-en:validation", ("wmt14", "de-en"), "validation"),
        ("hf:imdb", ("imdb", None), "train"),
        ("hf:imdb::test", ("imdb", None), "test"),
    ],
)
def test_the_hub(hub, source, arguments, split):
    assert read(source) == ["one", "two"]
    assert hub == [(arguments, {"split": split, "streaming": True})]


def test_bad_sources_of_the_hub(hub, monkeypatch):
    message = "hf:wmt14:de-en, row 2: no field 'translation.en'; the fields are: text"
    with pytest.raises(ValueError, match=message):
        read("hf:wmt14:de-en", column="translation.en")
    for source in ("hf:", "hf:a:b:c:d"):
        with pytest.raises(ValueError, match=r"is not of the form hf:NAME"):
            read(source)

    def refuse(*_, **__):
        raise FileNotFoundError("no data set of that name\nand more")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", refuse)
    with pytest.raises(
        ValueError, match=r"could not open hf:nobody/nothing: no data set of that name$"
    ):
        read("hf:nobody/nothing")
