"""Reading a corpus as a stream of rows, each a tuple of texts: one of its document, or one a language.

A source is a file, a folder (all of its files, sorted by name, hidden ones left out) or a named data
set of the Hugging Face hub, `hf:NAME[:CONFIG][:SPLIT]`. The suffix of a file says how to read it:

    .jsonl        one JSON object a line; a column is a field of it
    .tsv, .csv    one row a line; a column by its name in the first line, or by its number
    .parquet      a column by its name
    anything else text, cut into documents by the unit

and each but .parquet may be compressed: .xz, .gz, .bz2, .zst. Bytes that are not UTF-8 stay in the
text as lone surrogates (PEP 383). Empty documents are passed on, so that the numbers of documents
are those of the source: users leave them out.
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
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

Row: TypeAlias = tuple[str, ...]
Unit = Literal["auto", "line", "blank-line", "file"]
TEXT_COLUMN = "text"
BUFFER = 1 << 20


class Source(Protocol):
    """Rows of texts; each iteration reads them anew."""

    source: str
    """The source as the user names it."""

    size: int | None
    """Bytes to read, where known."""

    def __iter__(self) -> Iterator[Row]: ...


class Documents:
    """The documents of a file, a folder or a data set of the hub: for each, the texts of its columns."""

    def __init__(
        self,
        source: str,
        *,
        columns: Sequence[str | None] = (None,),
        unit: Unit = "auto",
        header: bool | None = None,
        errors: str = "surrogateescape",
    ) -> None:
        self.source, self.unit, self.header, self.errors = source, unit, header, errors
        self.columns = [column or TEXT_COLUMN for column in columns]
        self._chosen = next(filter(None, columns), None)
        if self._chosen is not None and unit != "auto":
            raise ValueError(
                f"column {self._chosen!r} is for tables, unit {unit!r} for text: leave one of them out"
            )
        self.files = [] if source.startswith("hf:") else _files(source)
        self.size = sum(file.stat().st_size for file in self.files) or None

    def __iter__(self) -> Iterator[Row]:
        if self.source.startswith("hf:"):
            yield from _hub_rows(self.source, self.columns)
        for file in self.files:
            with file.open("rb") as raw:
                yield from self._file_rows(file, raw)

    def _file_rows(self, file: Path, raw: BinaryIO) -> Iterator[Row]:
        suffix, compression = _suffixes(file)
        if suffix == ".parquet":
            return _parquet_rows(file, raw, self.columns)
        lines = _Lines(file, raw, compression, self.errors)
        if self.unit == "auto" and suffix in TABLES:
            return TABLES[suffix](lines, self.columns, self.header)
        if self._chosen is not None:
            raise ValueError(
                f"{file} is plain text and has no column {self._chosen!r}; columns are for "
                f".jsonl, .tsv, .csv and .parquet"
            )
        default = "file" if Path(self.source).expanduser().is_dir() else "line"
        return ((text,) for text in UNITS[default if self.unit == "auto" else self.unit](lines))


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
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

    def mistake(self, problem: str) -> ValueError:
        """Returns an error that names the file and the line."""
        return ValueError(f"{self.file}, line {self.number}: {problem}")


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


# Tables of fields by name


def _json_rows(lines: _Lines, columns: Sequence[str], header: bool | None) -> Iterator[Row]:
    for line in lines.without_ends():
        if not line.strip("\ufeff \t"):
            continue
        try:
            row = json.loads(line.removeprefix("\ufeff"))
        except ValueError as error:
            raise lines.mistake(f"not JSON ({error})") from None
        fields = _fields(row, columns, f"{lines.file}, line {lines.number}")
        yield tuple(map(_without_lone_halves, fields))


_LONE_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _without_lone_halves(text: str) -> str:
    r"""Returns a text with escapes like "\ud83d" without their other half as bytes that are not UTF-8."""
    return _LONE_HALF.sub(
        lambda half: half[0].encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"),
        text,
    )


def _parquet_rows(file: Path, raw: BinaryIO, columns: Sequence[str]) -> Iterator[Row]:
    parquet = optional("pyarrow.parquet", str(file))
    try:
        table = parquet.ParquetFile(raw)
    except Exception as error:
        raise _damaged(file, error) from None
    names = table.schema_arrow.names
    outer = {column: column if column in names else column.split(".")[0] for column in columns}
    for column in columns:
        if outer[column] not in names:
            raise ValueError(f"{file} has no column {column!r}; it has {', '.join(names)}")
    batches = table.iter_batches(columns=sorted(set(outer.values())), batch_size=1024)
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, start=1):
        yield _fields(row, columns, f"{file}, row {number}")


def _fields(row: Any, columns: Sequence[str], where: str) -> Row:
    return tuple(_field(row, column, where) for column in columns)


def _field(row: Any, column: str, where: str) -> str:
    """Returns the text at `column`, or at `outer.inner` of nested fields; nothing where it is null."""
    value = row
    for name in [column] if isinstance(row, dict) and column in row else column.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(map(str, value)) if isinstance(value, dict) else "none"
            raise ValueError(f"{where}: no field {column!r}; the fields are: {names}")
        value = value[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"{where}: the field {column!r} is not text but of type {kind}")
    return value


# Tables of cells by position


def _tsv_rows(lines: _Lines, columns: Sequence[str], header: bool | None) -> Iterator[Row]:
    rows = (line.split("\t") if line else [] for line in lines.without_ends())
    return _cells(rows, lines, columns, header)


def _csv_rows(lines: _Lines, columns: Sequence[str], header: bool | None) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    try:
        yield from _cells(csv.reader(lines, strict=True), lines, columns, header)
    except csv.Error as error:
        raise lines.mistake(f"not CSV ({error})") from None


def _cells(
    rows: Iterator[list[str]], lines: _Lines, columns: Sequence[str], header: bool | None
) -> Iterator[Row]:
    """Yields columns of a table: by names, which need a header line, or by numbers from 1."""
    names: list[str] = []
    if header or not all(column.isdecimal() for column in columns):
        names = [name.removeprefix("\ufeff") for name in next(rows, [])]
    indices = [_column_index(column, names, lines.file) for column in columns]
    for row in rows:
        for column, index in zip(columns, indices, strict=True):
            if row and index >= len(row):
                raise lines.mistake(f"column {column} is missing, there are {len(row)}")
        yield tuple(row[index] if row else "" for index in indices)


def _column_index(column: str, names: Sequence[str], file: Path) -> int:
    if column in names:
        return names.index(column)
    if column.isdecimal() and int(column) > 0:
        return int(column) - 1
    listed = ", ".join(name if len(name) <= 30 else name[:29] + "…" for name in names)
    raise ValueError(
        f"{file} has no column {column!r}; its first line has {len(names)}: {listed}. Give one of "
        f"these, or a number from 1 where the first line is not a header"
    )


TABLES: dict[str, Callable[[_Lines, Sequence[str], bool | None], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
}


# The hub


def _hub_rows(source: str, columns: Sequence[str]) -> Iterator[Row]:
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
    for number, row in enumerate(rows, start=1):
        yield _fields(row, columns, f"{source}, row {number}")
