"""Reading a corpus as a stream of rows, each a tuple of texts: one of its document, or a pair's two.

A source is a file, a folder (all of its files, sorted by name, hidden ones left out) or a named data
set of the Hugging Face hub, `hf:NAME[:CONFIG][:SPLIT]`. The suffix of a file says how to read it:

    .jsonl        one JSON object a line; a column is a field of it
    .tsv, .csv    one row a line; a column by its name in the first line, or by its number
    .parquet      a column by its name
    anything else text, cut into documents by the unit

and each but .parquet may be compressed: .xz, .gz, .bz2, .zst. Bytes that are not UTF-8 stay in the
text as lone surrogates (PEP 383). Empty documents are passed on, so that the numbers of documents
are those of the source: users leave them out. Two sources may be parallel, row by row.
"""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from cdcd.files import expanded

Row: TypeAlias = tuple[str, ...]
Fields: TypeAlias = tuple[str, Any]
"""A row of a table by the names of its columns, behind the words that say where it is."""
Unit = Literal["auto", "line", "blank-line", "file"]
TEXT_COLUMN = "text"
BUFFER = 1 << 20


class Documents:
    """The documents of a file, a folder or a data set of the hub: for each, the texts of its columns."""

    def __init__(
        self,
        source: str,
        *,
        columns: Sequence[str | None] = (None,),
        unit: Unit = "auto",
        errors: str = "surrogateescape",
    ) -> None:
        self.source, self.unit, self.errors = source, unit, errors
        self.columns = [column or TEXT_COLUMN for column in columns]
        self._chosen = next(filter(None, columns), None)
        if self._chosen is not None and unit != "auto":
            raise ValueError(
                f"column {self._chosen!r} is for tables, unit {unit!r} for text: leave one of them out"
            )
        self.files = [] if source.startswith("hf:") else _files(source)
        self.size = sum(file.stat().st_size for file in self.files) or None
        """Bytes to read, where known."""

    def __iter__(self) -> Iterator[Row]:
        if self.source.startswith("hf:"):
            yield from self._texts(_hub_rows(self.source))
        for file in self.files:
            with file.open("rb") as raw:
                yield from self._file_rows(file, raw)

    def _file_rows(self, file: Path, raw: BinaryIO) -> Iterator[Row]:
        suffix, compression = _suffixes(file)
        if suffix == ".parquet":
            return self._texts(_parquet_rows(file, raw, self.columns))
        lines = _Lines(file, raw, compression, self.errors)
        if self.unit == "auto" and suffix in TABLES:
            return self._texts(TABLES[suffix](lines, self.columns))
        if self._chosen is not None:
            raise ValueError(
                f"{file} is plain text and has no column {self._chosen!r}; columns are for "
                f".jsonl, .tsv, .csv and .parquet"
            )
        default = "file" if expanded(self.source).is_dir() else "line"
        return ((text,) for text in UNITS[default if self.unit == "auto" else self.unit](lines))

    def _texts(self, rows: Iterable[Fields]) -> Iterator[Row]:
        for where, fields in rows:
            yield tuple(_text(fields, column, where) for column in self.columns)


class ParallelDocuments:
    """Two sources, document by document; unequal numbers of documents are an error."""

    def __init__(self, sources: Documents, targets: Documents) -> None:
        self.sources, self.targets = sources, targets
        self.source = f"{sources.source}, {targets.source}"
        self.size = sources.size + targets.size if sources.size and targets.size else None

    def __iter__(self) -> Iterator[Row]:
        for number, (source, target) in enumerate(zip_longest(self.sources, self.targets)):
            if source is None or target is None:
                sides = (self.sources, self.targets)
                short, long = sides if source is None else reversed(sides)
                raise ValueError(
                    f"{short.source} has {number:,} lines, {long.source} has more: line n of one must "
                    f"be the translation of line n of the other"
                )
            yield source + target


Source: TypeAlias = Documents | ParallelDocuments


def _files(source: str) -> list[Path]:
    path = expanded(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"there is no source {source!r}: give a file, a folder or hf:NAME")
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    ]


def _suffixes(file: Path) -> tuple[str, str]:
    """Returns the suffix that says how to read a file, and that of its compression."""
    *_, before, last = ("", "", *(suffix.lower() for suffix in file.suffixes))
    return (before, last) if last in DECOMPRESSORS else (last, "")


def is_table(source: str) -> bool:
    """Returns whether a source has columns, by its name."""
    return source.startswith("hf:") or _suffixes(Path(source))[0] in (*TABLES, ".parquet")


# Compressed files


def optional(package: str, user: str) -> Any:
    """Imports a package that is not always installed and that `user` needs."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(f"{user} needs the package {package}: pip install 'cdcd[data]'") from None


def _open_zstandard(raw: BinaryIO) -> Any:
    return optional("pyarrow", getattr(raw, "name", "")).CompressedInputStream(raw, "zstd")


DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".xz": lzma.open,
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": _open_zstandard,
}
DAMAGES = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""Errors that decompressors raise."""


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is damaged or cut short ({error}); fetch it again")


class _Lines:
    """The decoded lines of a file that may be compressed, with their ends; errors name the file."""

    def __init__(self, file: Path, raw: BinaryIO, compression: str, errors: str) -> None:
        self.file, self.compression, self.errors = file, compression, errors
        self.number = 0
        self.content = raw
        if compression:
            self.content = io.BufferedReader(DECOMPRESSORS[compression](raw), BUFFER)

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.content:
                self.number += 1
                yield self._decoded(line)
        except DAMAGES as error:
            if not self.compression:
                raise
            raise _damaged(self.file, error) from None

    def without_ends(self) -> Iterator[str]:
        """Yields the lines without their ends."""
        return (line.removesuffix("\n").removesuffix("\r") for line in self)

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            raise self.mistake(
                f"not UTF-8 text ({error.reason}); convert the file first, for example with "
                f"iconv -f latin1 -t utf-8"
            ) from None

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.number}"

    def mistake(self, problem: str) -> ValueError:
        """Returns an error that names the file and the line."""
        return ValueError(f"{self.where}: {problem}")


# Text


def _split_at_blank_lines(lines: _Lines) -> Iterator[str]:
    document: list[str] = []
    for line in chain(lines.without_ends(), [""]):
        if line and not line.isspace():
            document.append(line)
        elif document:
            yield "\n".join(document)
            document = []


UNITS: dict[str, Callable[[_Lines], Iterator[str]]] = {
    "line": _Lines.without_ends,
    "blank-line": _split_at_blank_lines,
    "file": lambda lines: iter(["".join(lines)]),
}


# Tables


def _json_rows(lines: _Lines, columns: Sequence[str]) -> Iterator[Fields]:
    for line in lines.without_ends():
        if not line.strip("\ufeff \t"):
            continue
        try:
            yield lines.where, json.loads(line.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise lines.mistake(f"not JSON ({error})") from None


def _tsv_rows(lines: _Lines, columns: Sequence[str]) -> Iterator[Fields]:
    rows = (line.split("\t") if line else [] for line in lines.without_ends())
    return _cells(rows, lines, columns)


def _csv_rows(lines: _Lines, columns: Sequence[str]) -> Iterator[Fields]:
    csv.field_size_limit(1 << 30)
    try:
        yield from _cells(csv.reader(lines, strict=True), lines, columns)
    except csv.Error as error:
        raise lines.mistake(f"not CSV ({error})") from None


def _cells(rows: Iterator[list[str]], lines: _Lines, columns: Sequence[str]) -> Iterator[Fields]:
    """Yields the cells by their number from 1, and by names where a column is one: in the first line."""
    is_named = not all(column.isdecimal() for column in columns)
    names = [name.removeprefix("\ufeff") for name in next(rows, [])] if is_named else []
    for row in rows:
        cells = {str(number): cell for number, cell in enumerate(row, start=1)}
        cells |= zip(names, row, strict=False)
        yield lines.where, cells if row else dict.fromkeys(columns, "")


TABLES: dict[str, Callable[[_Lines, Sequence[str]], Iterator[Fields]]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
}


def _parquet_rows(file: Path, raw: BinaryIO, columns: Sequence[str]) -> Iterator[Fields]:
    parquet = optional("pyarrow.parquet", str(file))
    try:
        table = parquet.ParquetFile(raw)
    except Exception as error:
        raise _damaged(file, error) from None
    names = table.schema_arrow.names
    outer = {column if column in names else column.split(".")[0] for column in columns}
    if missing := sorted(outer.difference(names)):
        raise ValueError(f"{file} has no column {missing[0]!r}; it has {', '.join(names)}")
    batches = table.iter_batches(columns=sorted(outer), batch_size=1024)
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _text(row: Any, column: str, where: str) -> str:
    """Returns the text at `column`, or at `outer.inner` of nested fields; nothing where it is null."""
    value = row
    for name in [column] if isinstance(row, dict) and column in row else column.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(f"{key:.30}" for key in value) if isinstance(value, dict) else "none"
            raise ValueError(f"{where}: no field {column!r}; the fields are: {names}")
        value = value[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"{where}: the field {column!r} is not text but of type {kind}")
    return value if value.isascii() else _LONE_HALF.sub(_as_bytes, value)


_LONE_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Escapes of JSON like "\\ud83d" without their other half; they become bytes that are not UTF-8."""


def _as_bytes(half: re.Match[str]) -> str:
    return half[0].encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


# The hub


def _hub_rows(source: str) -> Iterator[Fields]:
    """Yields the rows of a data set of the hub, streamed."""
    name, config, split, *rest = (*source.removeprefix("hf:").split(":"), None, None)
    if not name or any(rest):
        raise ValueError(f"{source!r} is not of the form hf:NAME[:CONFIG][:SPLIT]")
    datasets = optional("datasets", source)
    try:
        rows: Iterable[Any] = datasets.load_dataset(
            name, config or None, split=split or "train", streaming=True
        )
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"could not open {source}: {reason}") from None
    return ((f"{source}, row {number}", row) for number, row in enumerate(rows, start=1))
