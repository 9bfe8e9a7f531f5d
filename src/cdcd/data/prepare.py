"""Preparing a corpus once: documents to splits, to tokens, to shards that are memory-mapped.

    source --readers--> documents --tokenizer, in several processes--> tokens --writing--> shards

The split of a document is a hash of its number (and of the seed), so it depends on nothing else.
Only documents of `train` are learnt from, by the tokenizer too.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

import cdcd
from cdcd.data.encoding import Encoded, available_cores, chunks, encode_in_order
from cdcd.data.format import DESCRIPTION, FORMAT, PROGRESS, SplitSummary
from cdcd.data.order import keys_for, mix
from cdcd.data.readers import Documents, Unit
from cdcd.data.tokenizer import (
    LEARNERS,
    Tokenizer,
    learn_tokenizer,
    load_tokenizer,
    token_dtype,
    tokenizer_hash,
)
from cdcd.data.writing import SplitWriter
from cdcd.files import read_json, write_json

SPLITS = ("train", "valid", "test", "judge")
NOTE_EVERY = 32_000_000
SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """A corpus, and how it becomes tokens."""

    source: str
    """A file, a folder or hf:NAME[:CONFIG][:SPLIT]; text, .jsonl, .tsv, .csv or .parquet, also compressed."""
    unit: Unit = "auto"
    """What a document is in a text file: `line`, `blank-line` (text between blank lines) or `file`; `auto`:
    rows of tables, files of a folder, lines of a file."""
    column: str | None = None
    """The column of a table that holds the text: a name (`text` if not given), `outer.inner`, or a number from 1."""
    header: bool | None = None
    """Whether the first line of a .tsv or .csv names the columns; if not given: where the column is a name."""
    tokenizer: str = "sentencepiece"
    """`sentencepiece`, `words`, `symbols` or `bytes`; or one to take over: a run, a data set, a .model file."""
    vocab_size: int = 32_000
    """Largest size of a vocabulary that is learnt."""
    tokenizer_bytes: int = 50_000_000
    """Bytes of text, taken evenly from the corpus, that SentencePiece learns from."""
    valid_share: float = 0.01
    """Share of the documents in the split `valid`."""
    test_share: float = 0.01
    """Share of the documents in the split `test`."""
    judge_share: float = 0.0
    """Share of the documents in the split `judge`, for a model that judges samples and must not share text."""
    valid_source: str | None = None
    """Its documents are the split `valid`, instead of a share."""
    test_source: str | None = None
    """Its documents are the split `test`, instead of a share."""
    group_size: int = 1
    """So many documents in a row always fall into the same split, such as captions of one picture."""
    max_documents: int | None = None
    """Stop after so many documents of the source."""
    shard_tokens: int = 1 << 28
    """A shard is closed by the document that brings it to so many tokens."""
    workers: int | None = None
    """Processes that tokenise; if not given: one a core. The result does not depend on it."""
    seed: int = 0
    """Seed of the splits and of the sample that SentencePiece learns from."""

    def __post_init__(self) -> None:
        for name in ("valid_share", "test_share", "judge_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, it must be at least 0 and below 1"
                )
        if sum(self.shares) >= 1:
            raise ValueError(
                f"the shares of valid, test and judge sum to {sum(self.shares):g}; they must leave "
                f"documents to train on: lower them to a sum below 1"
            )
        for name in ("group_size", "shard_tokens", "tokenizer_bytes", "max_documents", "workers"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")

    @property
    def shares(self) -> tuple[float, float, float]:
        """The shares of valid, test and judge that are taken from the source."""
        return (
            0.0 if self.valid_source else self.valid_share,
            0.0 if self.test_source else self.test_share,
            self.judge_share,
        )

    @property
    def defining(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        return {name: value for name, value in asdict(self).items() if name != "workers"}


@dataclass(frozen=True)
class PreparedSummary:
    """What has been prepared."""

    path: Path
    vocab_size: int
    num_empty: int
    """Documents without text, which were left out."""
    splits: dict[str, SplitSummary]


def prepare(config: PrepareConfig, out: Path, *, console: Console | None = None) -> PreparedSummary:
    """Prepare a data set in `out`, or go on with one that was interrupted."""
    console = console or Console()
    refuse_existing(out)
    passes = [_Pass(None, _documents(config, config.source))]
    for split, source in (("valid", config.valid_source), ("test", config.test_source)):
        if source is not None:
            passes.append(_Pass(split, _documents(config, source)))
    if not (out / PROGRESS).exists():
        _begin(config, out, passes, console)
    return _Preparation(config, out, passes, console).run()


def refuse_existing(out: Path) -> None:
    """A data set is never overwritten; what is no data set is left alone."""
    if (out / DESCRIPTION).exists():
        raise ValueError(f"{out} already holds a finished data set; choose another --out")
    if out.exists() and not (out / PROGRESS).exists() and (out.is_file() or any(out.iterdir())):
        raise ValueError(f"{out} already exists and is not a data set; choose another --out")


@dataclass(frozen=True)
class _Pass:
    """One source to read; its documents belong to a split, or to any by their number."""

    split: str | None
    documents: Documents

    def check(self) -> None:
        if not any(text and not text.isspace() for text in self.documents):
            raise ValueError(f"{self.documents.source} holds no text")


def _documents(config: PrepareConfig, source: str) -> Documents:
    return Documents(source, unit=config.unit, column=config.column, header=config.header)


def splits_of(
    numbers: Int64[np.ndarray, " documents"], config: PrepareConfig
) -> Int64[np.ndarray, " documents"]:
    """The split of each document, as a place in `SPLITS`, by its number in the source."""
    groups = (numbers // config.group_size).astype(np.uint64)
    uniform = mix(groups ^ keys_for(config.seed, "splits", count=1)) / 2.0**64
    beyond = np.searchsorted(np.cumsum(config.shares), uniform, side="right")
    return np.where(beyond < len(config.shares), beyond + 1, 0)


# Beginning


def _begin(config: PrepareConfig, out: Path, passes: list[_Pass], console: Console) -> None:
    """Make the folder with its tokenizer; nothing is left behind by a mistake."""
    for each in passes:
        each.check()
    tokenizer = make_tokenizer(config, passes[0].documents, console)
    building = out.with_name(f".{out.name}.building-{os.getpid()}")
    try:
        (building / "tokenizer").mkdir(parents=True)
        tokenizer.save(building / "tokenizer")
        progress = {"config": config.defining, "sizes": [each.documents.size for each in passes]}
        write_json(building / PROGRESS, progress | {"state": None})
        building.rename(out)
    except OSError as error:
        raise ValueError(f"could not create {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def make_tokenizer(config: PrepareConfig, documents: Documents, console: Console) -> Tokenizer:
    """The tokenizer of a data set: taken over, or learnt from what is trained on."""
    if config.tokenizer not in LEARNERS:
        path = Path(config.tokenizer).expanduser()
        if not path.exists():
            raise ValueError(
                f"there is no tokenizer {config.tokenizer!r}: give {', '.join(LEARNERS)} or the path of "
                f"a run, a data set or a .model file"
            )
        return load_tokenizer(path)
    options = {}
    if config.tokenizer == "sentencepiece":
        options = {"num_bytes": config.tokenizer_bytes, "seed": config.seed}
    if config.tokenizer != "bytes":
        console.print(f"learning a vocabulary ({config.tokenizer}) from {config.source}")
    train = _train_documents(config, documents)
    return learn_tokenizer(config.tokenizer, train, config.vocab_size, **options)


def _train_documents(config: PrepareConfig, documents: Documents) -> Iterator[str]:
    """What is trained on; of a data set of the hub, which may be endless, only the beginning."""
    left = 20 * config.tokenizer_bytes if documents.size is None else float("inf")
    first = 0
    for texts in chunks(islice(documents, config.max_documents)):
        splits = splits_of(np.arange(first, first + len(texts)), config)
        yield from (text for text, split in zip(texts, splits, strict=True) if split == 0)
        first += len(texts)
        left -= sum(map(len, texts))
        if left <= 0:
            return


# Going on


class _Preparation:
    """The state of preparing: how far each source has been read, and what has been written."""

    def __init__(
        self, config: PrepareConfig, out: Path, passes: list[_Pass], console: Console
    ) -> None:
        self.config, self.out, self.passes, self.console = config, out, passes, console
        self.progress = read_json(out / PROGRESS)
        self._check_progress()
        self.tokenizer = load_tokenizer(out / "tokenizer")
        state = self.progress["state"] or {}
        self.place: int = state.get("pass", 0)
        self.read: int = state.get("documents", 0)
        self.num_empty: int = state.get("empty", 0)
        self.writers = {
            name: SplitWriter(
                out,
                name,
                dtype=token_dtype(self.tokenizer.vocab_size),
                shard_tokens=config.shard_tokens,
                state=state.get("splits", {}).get(name),
            )
            for name in SPLITS
        }
        self.noted = self.num_bytes

    def _check_progress(self) -> None:
        begun = self.progress["config"]
        for name, value in self.config.defining.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"{self.out} was begun with {name} {begun.get(name)!r}, not {value!r}; go on with "
                    f"the same settings, or choose another --out"
                )
        if self.progress["sizes"] != [each.documents.size for each in self.passes]:
            raise ValueError(
                f"the source {self.config.source} has changed since {self.out} was begun; choose "
                f"another --out"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of text written so far."""
        return sum(writer.summary.bytes for writer in self.writers.values())

    def run(self) -> PreparedSummary:
        try:
            with _Meter(self.console, self.num_bytes) as meter:
                while self.place < len(self.passes):
                    self._run_pass(self.passes[self.place], meter)
                    self.place, self.read = self.place + 1, 0
                    self._note()
            return self._finish()
        except KeyboardInterrupt:
            self.console.print(f"stopped; the same command goes on with {self.out}")
            raise
        finally:
            for writer in self.writers.values():
                writer.abandon()

    def _run_pass(self, current: _Pass, meter: "_Meter") -> None:
        limit = self.config.max_documents if current.split is None else None
        texts = chunks(islice(current.documents, self.read, limit))
        workers = self.config.workers or available_cores()
        for encoded in encode_in_order(texts, self.out / "tokenizer", workers):
            self._write(encoded, current.split)
            meter.update(self.num_bytes, current.documents)
            if self.num_bytes - self.noted >= NOTE_EVERY:
                self._note()

    def _write(self, encoded: Encoded, split: str | None) -> None:
        numbers = np.arange(self.read, self.read + len(encoded.lengths))
        splits = splits_of(numbers, self.config)
        if split is not None:
            splits[:] = SPLITS.index(split)
        for place, name in enumerate(SPLITS):
            self.writers[name].append(encoded, (splits == place) & (encoded.lengths > 0))
        self.read += len(numbers)
        self.num_empty += int((encoded.lengths == 0).sum())

    def _note(self) -> None:
        """Note how far it is, so that a killed process goes on from here."""
        for writer in self.writers.values():
            writer.flush()
        state = {
            "pass": self.place,
            "documents": self.read,
            "empty": self.num_empty,
            "splits": {name: writer.state for name, writer in self.writers.items()},
        }
        write_json(self.out / PROGRESS, self.progress | {"state": state})
        self.noted = self.num_bytes

    def _finish(self) -> PreparedSummary:
        splits = {name: w.finish() for name, w in self.writers.items() if w.summary.documents}
        if "train" not in splits:
            raise ValueError(
                f"all {self.num_bytes:,} bytes of text fell into {', '.join(splits)}: nothing is left to "
                f"train on; add documents or lower the shares"
            )
        tokenizer = self.tokenizer
        write_json(
            self.out / DESCRIPTION,
            {
                "format": FORMAT,
                "cdcd_version": cdcd.__version__,
                "dtype": token_dtype(tokenizer.vocab_size).name,
                "tokenizer": {
                    "kind": tokenizer.kind,
                    "hash": tokenizer_hash(tokenizer),
                    "vocab_size": tokenizer.vocab_size,
                },
                "config": self.config.defining,
                "empty": self.num_empty,
                "splits": splits,
            },
        )
        (self.out / PROGRESS).unlink()
        summaries = {name: self.writers[name].summary for name in splits}
        summary = PreparedSummary(self.out, tokenizer.vocab_size, self.num_empty, summaries)
        self._tell(summary)
        return summary

    def _tell(self, summary: PreparedSummary) -> None:
        for name, split in summary.splits.items():
            self.console.print(
                f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, "
                f"{split.bytes / 1e6:,.1f} MB{_oddities(split)}",
                highlight=False,
            )
        if summary.num_empty:
            self.console.print(f"{summary.num_empty:,} empty documents were left out")
        for name, share in zip(SPLITS[1:], self.config.shares, strict=True):
            if share and name not in summary.splits:
                self.console.print(f"the split {name} is empty: raise {name}_share ({share})")


def _oddities(split: SplitSummary) -> str:
    unknown = f", {split.unknown:,} of them unknown" if split.unknown else ""
    kept = f", {split.undecodable:,} bytes not UTF-8" if split.undecodable else ""
    return unknown + kept


class _Meter:
    """The live line: share done, MB of text a second, time left. Plain lines without a terminal."""

    def __init__(self, console: Console, num_bytes: int) -> None:
        self.console, self.first = console, num_bytes
        self.started = self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("preparing", total=None, shown="")

    def __enter__(self) -> "_Meter":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, num_bytes: int, documents: Documents) -> None:
        now = time.monotonic()
        speed = (num_bytes - self.first) / 1e6 / max(now - self.started, 1e-9)
        shown = f"{num_bytes / 1e6:,.0f} MB of text, {speed:.1f} MB/s"
        self.bar.update(self.task, total=documents.size, completed=documents.position, shown=shown)
        if not self.console.is_terminal and now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = now
            share = f"{documents.position / documents.size:.0%}  " if documents.size else ""
            self.console.print(f"{share}{shown}", highlight=False)
