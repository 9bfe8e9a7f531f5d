"""Reading corpora as a stream of documents, never more than one document at a time in memory.

A source is a file, a folder (all of its files, sorted by name, hidden ones left out) or a named data
set of the Hugging Face hub, `hf:NAME[:CONFIG][:SPLIT]`. The suffix of a file says what it is:

    .jsonl        one JSON object a line; the column is a field of it
    .tsv, .csv    one row a line; the column by its name in the first line, or by its number
    .parquet      the column by its name
    anything else text, cut into documents by the unit

and each but .parquet may be compressed: .xz, .gz, .bz2, .zst. Bytes that are not UTF-8 stay in the
text as lone surrogates (PEP 383). Empty documents are passed on, so that the numbers of documents
are those of the source: users leave them out.
"""

import csv
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from cdcd.data.prepare.compression import OPENERS, damaged, is_damage, opened, optional

Unit = Literal["auto", "line", "blank-line", "file"]
TEXT_COLUMN = "text"
HUB = "https://huggingface.co"
PATIENCE = 5.0


class Documents:
    """The documents of a source; each iteration reads it anew."""

    def __init__(
        self,
        source: str,
        *,
        unit: Unit = "auto",
        column: str | None = None,
        header: bool | None = None,
        errors: str = "surrogateescape",
    ) -> None:
        self.source, self.unit, self.column = source, unit, column
        self.header, self.errors = header, errors
        self.files = [] if source.startswith("hf:") else _files(source)
        self.size = sum(file.stat().st_size for file in self.files) or None
        """Bytes of the files as they lie, where known."""
        self._done, self._open = 0, None  # bytes of files before, and the file being read
        if column is not None and unit != "auto":
            raise ValueError(
                f"column {column!r} is for tables, unit {unit!r} for text: leave one of them out"
            )

    @property
    def position(self) -> int:
        """How many of these bytes have been read."""
        return self._done + (self._open.tell() if self._open is not None else 0)

    def __iter__(self) -> Iterator[str]:
        if self.source.startswith("hf:"):
            yield from _hub_documents(self.source, self.column or TEXT_COLUMN)
        self._done = 0
        for file in self.files:
            with file.open("rb") as raw:
                self._open = raw
                try:
                    yield from self._file_documents(file, raw)
                finally:
                    if not raw.closed:  # it is where an abandoned iteration is cleared away late
                        self._done = self.position
                    self._open = None

    def _file_documents(self, file: Path, raw: BinaryIO) -> Iterator[str]:
        kind, compression = _kind(file)
        if kind == ".parquet":
            yield from _parquet_documents(file, raw, self.column or TEXT_COLUMN)
            return
        lines = _Lines(file, raw, compression, self.errors)
        if self.unit == "auto" and kind in TABLES:
            yield from TABLES[kind](lines, self.column or TEXT_COLUMN, self.header)
            return
        if self.column is not None:
            raise ValueError(
                f"{file} is plain text and has no column {self.column!r}; columns are for "
                f".jsonl, .tsv, .csv and .parquet"
            )
        default = "file" if Path(self.source).expanduser().is_dir() else "line"
        yield from UNITS[default if self.unit == "auto" else self.unit](lines)


def documents(
    source: str,
    *,
    unit: Unit = "auto",
    column: str | None = None,
    header: bool | None = None,
) -> Iterator[str]:
    """The documents of a source, as a stream."""
    return iter(Documents(source, unit=unit, column=column, header=header))


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


def _kind(file: Path) -> tuple[str, str]:
    """The suffixes that say what a file is, and how it is compressed."""
    *_, before, last = ("", "", *(suffix.lower() for suffix in file.suffixes))
    return (before, last) if last in OPENERS else (last, "")


def is_table(source: str) -> bool:
    """Whether a source has columns, by its name."""
    return source.startswith("hf:") or _kind(Path(source))[0] in (*TABLES, ".parquet")


class _Lines:
    """The lines of a file that may be compressed, decoded; errors name the file."""

    def __init__(self, file: Path, raw: BinaryIO, compression: str, errors: str) -> None:
        self.file, self.errors = file, errors
        self.compression = compression
        self.content = opened(raw, compression)
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        """The lines without their ends."""
        for line in self.with_ends():
            yield line.removesuffix("\n").removesuffix("\r")

    def with_ends(self) -> Iterator[str]:
        offset = 0
        try:
            for line in self.content:
                self.number += 1
                yield self._decode(line, offset)
                offset += len(line)
        except Exception as error:
            raise self._explained(error) from None

    def whole(self) -> str:
        """The whole file."""
        try:
            return self._decode(self.content.read(), 0)
        except Exception as error:
            raise self._explained(error) from None

    def _decode(self, content: bytes, offset: int) -> str:
        try:
            return content.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.file} is not UTF-8 text (byte {offset + error.start}: {error.reason}); "
                f"convert it first, for example with iconv -f latin1 -t utf-8"
            ) from None

    def _explained(self, error: Exception) -> Exception:
        return damaged(self.file, error) if self.compression and is_damage(error) else error

    def mistake(self, what: str) -> ValueError:
        return ValueError(f"{self.file}, line {self.number}: {what}")


# Text


def _by_line(lines: _Lines) -> Iterator[str]:
    yield from lines


def _by_blank_line(lines: _Lines) -> Iterator[str]:
    held: list[str] = []
    for line in chain(lines, [""]):
        if line and not line.isspace():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def _by_file(lines: _Lines) -> Iterator[str]:
    yield lines.whole()


UNITS: dict[str, Callable[[_Lines], Iterator[str]]] = {
    "line": _by_line,
    "blank-line": _by_blank_line,
    "file": _by_file,
}


# Tables


def _json_documents(lines: _Lines, column: str, header: bool | None) -> Iterator[str]:
    for line in lines:
        if not line.strip("\ufeff \t"):
            continue
        try:
            row = json.loads(line.removeprefix("\ufeff"))
        except ValueError as error:
            raise lines.mistake(f"not JSON ({error})") from None
        yield _without_lone_halves(_field(row, column, lines.mistake))


def _tsv_rows(lines: _Lines) -> Iterator[list[str]]:
    return (line.split("\t") if line else [] for line in lines)


def _csv_rows(lines: _Lines) -> Iterator[list[str]]:
    csv.field_size_limit(1 << 30)
    try:
        yield from csv.reader(lines.with_ends(), strict=True)
    except csv.Error as error:
        raise lines.mistake(f"not CSV ({error})") from None


def _table(rows: Callable[[_Lines], Iterator[list[str]]]) -> Callable[..., Iterator[str]]:
    def read(lines: _Lines, column: str, header: bool | None) -> Iterator[str]:
        return _column_documents(rows(lines), lines, column, header)

    return read


def _column_documents(
    rows: Iterator[list[str]], lines: _Lines, column: str, header: bool | None
) -> Iterator[str]:
    """One column of a table: by its name, which needs a header line, or by its number from 1."""
    is_number = column.isdecimal() and header is not True
    names = [] if is_number else _header(rows)
    place = _place(lines, column, names, header)
    for row in rows:
        if row and place >= len(row):
            raise lines.mistake(f"column {column} is missing, there are {len(row)}")
        yield row[place] if row else ""


def _header(rows: Iterator[list[str]]) -> list[str]:
    return [name.removeprefix("\ufeff") for name in next(rows, [])]


def _place(lines: _Lines, column: str, names: list[str], header: bool | None) -> int:
    if column in names:
        return names.index(column)
    if column.isdecimal() and int(column) > 0:
        return int(column) - 1
    shown = ", ".join(name if len(name) <= 30 else name[:29] + "…" for name in names)
    raise ValueError(
        f"{lines.file} has no column {column!r}; its first line has {len(names)}: {shown}. Give one of "
        f"these, or a number from 1 where the first line is not a header"
    )


TABLES: dict[str, Callable[[_Lines, str, bool | None], Iterator[str]]] = {
    ".jsonl": _json_documents,
    ".ndjson": _json_documents,
    ".tsv": _table(_tsv_rows),
    ".csv": _table(_csv_rows),
}


def _field(row: Any, column: str, mistake: Callable[[str], ValueError]) -> str:
    """The text at `column`, or at `outer.inner` of nested fields; nothing where it is null."""
    value = row
    for name in [column] if isinstance(row, dict) and column in row else column.split("."):
        if not isinstance(value, dict) or name not in value:
            there = ", ".join(map(str, value)) if isinstance(value, dict) else "none"
            raise mistake(f"no field {column!r}; the fields are: {there}")
        value = value[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise mistake(f"the field {column!r} is not text but of type {type(value).__name__}")
    return value


_LONE_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _without_lone_halves(text: str) -> str:
    r"""Escapes like "\ud83d" without their other half, as bytes that are not UTF-8."""
    return _LONE_HALF.sub(
        lambda half: half[0].encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"),
        text,
    )


def _parquet_documents(file: Path, raw: BinaryIO, column: str) -> Iterator[str]:
    parquet = optional("pyarrow.parquet", str(file))
    try:
        table = parquet.ParquetFile(raw)
    except Exception as error:
        raise damaged(file, error) from None
    names = table.schema_arrow.names
    top = column if column in names else column.split(".")[0]
    if top not in names:
        raise ValueError(f"{file} has no column {column!r}; it has {', '.join(names)}")
    batches = table.iter_batches(columns=[top], batch_size=1024)
    for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
        yield _field(row, column, partial(_in_row, str(file), number))


# The hub


def _hub_documents(source: str, column: str) -> Iterator[str]:
    """A data set of the hub, streamed."""
    name, config, split, *rest = (*source.removeprefix("hf:").split(":"), None, None)
    if not name or any(rest):
        raise ValueError(f"{source!r} is not of the form hf:NAME[:CONFIG][:SPLIT]")
    datasets = optional("datasets", source)
    _check_reachable(source)
    try:
        rows: Iterable[Any] = datasets.load_dataset(
            name, config or None, split=split or "train", streaming=True
        )
    except Exception as error:
        raise ValueError(f"could not open {source}: {_first_line(error)}") from None
    for number, row in enumerate(rows, start=1):
        yield _field(row, column, partial(_in_row, source, number))


def _in_row(source: str, number: int, what: str) -> ValueError:
    return ValueError(f"{source}, row {number}: {what}")


def _check_reachable(source: str) -> None:
    """Without network the hub's packages try for long: find out in a few seconds."""
    hub = os.environ.get("HF_ENDPOINT", HUB)
    try:
        urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=PATIENCE)
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{source} cannot be read: {hub} does not answer ({_first_line(error)}); check the network, "
            f"or use files"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
