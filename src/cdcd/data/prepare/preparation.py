"""Preparing a corpus once: documents to splits, to tokens, to shards that are memory-mapped.

    source --reading--> rows --tokenizer, in several processes--> tokens --writing--> shards

The split of a document is a hash of its number (and of the seed), so it depends on nothing else.
Only documents of `train` are learnt from, by the tokenizer too. A row of a pair has two sides, each of
which is written to a data set of its own.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64
from rich.console import Console
from rich.status import Status

from cdcd._version import __version__
from cdcd.data.dataset_files import DESCRIPTION, FORMAT, PROGRESS, SIDES, SPLITS, SplitContent
from cdcd.data.order import keys_for, mix
from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.encoding import Encoded, available_cores, chunked, encode_in_order
from cdcd.data.prepare.reading import Documents, ParallelDocuments, Source, is_table
from cdcd.data.prepare.writing import Progress, SplitWriter
from cdcd.data.tokenizer_learning import LEARNERS, learn_tokenizer
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, token_dtype, tokenizer_hash
from cdcd.files import expanded, file_hash, without_empty_folders, write_json
from cdcd.lock import Lock, refuse_locked
from cdcd.memory import available_memory, refuse_beyond

SAVE_EVERY = 32_000_000
"""Bytes of text between two times that the progress is saved."""

Sources: TypeAlias = dict[str | None, Source]
"""The sources to read, by the split of their documents; None: the number of a document decides."""


def prepare(config: PrepareConfig, out: Path, *, console: Console | None = None) -> None:
    """Prepares a data set in `out`, or goes on with one that was interrupted."""
    console = console or Console()
    refuse_existing(out)
    sources = _sources(config)
    with without_empty_folders(out.parent):
        is_begun = (out / PROGRESS).exists()
        lock = Lock(out) if is_begun else _begin(config, out, sources, console)
    try:
        refuse_existing(out)  # Another process may have finished it before it was locked.
        _Preparation(config, out, sources, console).run()
    finally:
        lock.release()


def refuse_existing(out: Path) -> None:
    """Raises an error where a data set would be overwritten, or a folder that is none."""
    refuse_locked(out)
    if (out / DESCRIPTION).exists():
        raise ValueError(f"{out} already holds a finished data set; choose another --out")
    if out.exists() and not (out / PROGRESS).exists() and (out.is_file() or any(out.iterdir())):
        raise ValueError(f"{out} already exists and is not a data set; choose another --out")


def splits_of(
    numbers: Int64[np.ndarray, " documents"], config: PrepareConfig
) -> Int64[np.ndarray, " documents"]:
    """Returns the split of each document, as an index into `SPLITS`, by its number in the source."""
    groups = (numbers // config.group_size).astype(np.uint64)
    uniform = mix(groups ^ keys_for(config.seed, "splits", count=1)) / 2.0**64
    beyond = np.searchsorted(np.cumsum(config.shares), uniform, side="right")
    return np.where(beyond < len(config.shares), beyond + 1, 0)


# Sources


def _sources(config: PrepareConfig) -> Sources:
    sources: Sources = {None: _source(config, config.source, config.target_source)}
    if config.valid_source:
        sources["valid"] = _source(config, config.valid_source, config.valid_target_source)
    if config.test_source:
        sources["test"] = _source(config, config.test_source, config.test_target_source)
    return sources


def _source(config: PrepareConfig, source: str, target: str | None) -> Source:
    if target is not None:
        return ParallelDocuments(
            _documents(config, source, config.column),
            _documents(config, target, config.target_column or config.column),
        )
    return _documents(config, source, config.column, *[config.target_column] * config.is_pairs)


def _documents(config: PrepareConfig, source: str, *columns: str | None) -> Documents:
    is_held_out = source not in (config.source, config.target_source)
    if config.is_pairs and is_held_out and not is_table(source):
        columns = (None,)  # text that is held out may stand beside a table to train on
    return Documents(source, columns=columns, unit=config.unit)


# Beginning


def _begin(config: PrepareConfig, out: Path, sources: Sources, console: Console) -> Lock:
    """Makes the folder with its tokenizer, locked; a mistake leaves nothing behind."""
    for split, source in sources.items():
        _check(source, whole=split is not None)
    tokenizer = _make_tokenizer(config, sources[None], console)
    building = out.with_name(f".{out.name}.building-{os.getpid()}")
    sides = _side_folders(config, building)
    try:
        for folder in {building, *sides}:
            (folder / "tokenizer").mkdir(parents=True)
            tokenizer.save(folder / "tokenizer")
        lock = Lock(building)
        nothing = [{name: SplitContent() for name in SPLITS} for _ in sides]
        Progress(_begun(config, sources), nothing).save(building)
        building.rename(out)
        lock.folder = out
        return lock
    except OSError as error:
        refuse_existing(out)  # Another process may have been faster.
        raise ValueError(f"could not create {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check(source: Source, *, whole: bool) -> None:
    """Refuses a source without text; a held-out one, which is small, also for a bad row anywhere."""
    rows = iter(source)
    if not any(all(text and not text.isspace() for text in row) for row in rows):
        raise ValueError(f"{source.source} holds no text")
    if whole or isinstance(source, ParallelDocuments):
        for _ in rows:  # to the end, where unequal numbers of documents are noticed
            pass


def _side_folders(config: PrepareConfig, out: Path) -> list[Path]:
    """Returns the folder of each side's data set; single texts are in the folder itself."""
    return [out / side for side in SIDES] if config.is_pairs else [out]


def _make_tokenizer(config: PrepareConfig, source: Source, console: Console) -> Tokenizer:
    """Takes a tokenizer over, or learns one from what is trained on, both sides of it."""
    if config.tokenizer not in LEARNERS:
        return load_tokenizer(expanded(config.tokenizer))
    options = {}
    if config.tokenizer == "sentencepiece":
        options = {"num_bytes": config.tokenizer_bytes, "seed": config.seed}
        num_bytes = min(config.tokenizer_bytes, source.size or config.tokenizer_bytes)
        # This process, the one that learns and SentencePiece itself hold the text.
        subject = f"learning from {num_bytes:,} bytes of text"
        refuse_beyond(available_memory(), 3 * num_bytes, subject, "lower tokenizer_bytes")
    if config.tokenizer != "bytes":
        console.print(f"learning a vocabulary ({config.tokenizer}) from {config.source}")
    train = _train_texts(config, source)
    return learn_tokenizer(config.tokenizer, train, config.vocab_size, **options)


def _train_texts(config: PrepareConfig, source: Source) -> Iterator[str]:
    """Yields the texts to train on; of a data set of the hub, which may be endless, only the beginning."""
    left = 20 * config.tokenizer_bytes if source.size is None else float("inf")
    first = 0
    for rows in chunked(islice(source, config.max_documents)):
        splits = splits_of(np.arange(first, first + len(rows)), config)
        for row, split in zip(rows, splits, strict=True):
            yield from row if split == 0 else ()
        first += len(rows)
        left -= sum(len(text) for row in rows for text in row)
        if left <= 0:
            return


def _begun(config: PrepareConfig, sources: Sources) -> dict[str, Any]:
    """Returns what the result depends on: the settings, and the bytes of each source."""
    return {**config.defining, "source_bytes": [source.size for source in sources.values()]}


# Going on


class _Preparation:
    """Reads the sources and writes the splits, from the saved progress on."""

    def __init__(
        self, config: PrepareConfig, out: Path, sources: Sources, console: Console
    ) -> None:
        self.config, self.out, self.sources, self.console = config, out, sources, console
        self.folders = _side_folders(config, out)
        self.progress = Progress.load(out, _begun(config, sources), len(self.folders))
        self.tokenizer = load_tokenizer(out / "tokenizer")
        self.dtype = token_dtype(self.tokenizer.vocab_size)
        self.writers = [
            [
                SplitWriter(
                    folder, name, content, dtype=self.dtype, shard_tokens=config.shard_tokens
                )
                for name, content in side.items()
            ]
            for folder, side in zip(self.folders, self.progress.sides, strict=True)
        ]
        self._saved_bytes = self.progress.num_bytes

    def run(self) -> None:
        """Writes what is left, and describes the data set, which makes it whole."""
        try:
            with self.console.status("preparing") as status:
                for split in list(self.sources)[self.progress.source :]:
                    self._read(split, status)
                    self.progress.source, self.progress.documents = self.progress.source + 1, 0
                    self._save()
            self._finish()
        except KeyboardInterrupt:
            self.console.print(f"stopped; the same command goes on with {self.out}")
            raise

    def _read(self, split: str | None, status: Status) -> None:
        source = self.sources[split]
        limit = self.config.max_documents if split is None else None
        chunks = chunked(islice(source, self.progress.documents, limit))
        workers = self.config.workers or available_cores()
        for sides in encode_in_order(chunks, self.out / "tokenizer", workers):
            self._write(sides, split)
            status.update(f"preparing: {self.progress.num_bytes / 1e6:,.0f} MB of text")
            if self.progress.num_bytes - self._saved_bytes >= SAVE_EVERY:
                self._save()

    def _write(self, sides: list[Encoded], split: str | None) -> None:
        """Writes each document to its split; one with an empty side is left out and counted."""
        first, count = self.progress.documents, len(sides[0].lengths)
        splits = splits_of(np.arange(first, first + count), self.config)
        if split is not None:
            splits[:] = SPLITS.index(split)
        is_empty = np.any([side.lengths == 0 for side in sides], axis=0)
        for index, name in enumerate(SPLITS):
            for writers, side in zip(self.writers, sides, strict=True):
                writers[index].append(side, (splits == index) & ~is_empty)
            self.progress.empty[name] += int(((splits == index) & is_empty).sum())
        self.progress.documents += count

    def _save(self) -> None:
        """Saves the progress, so that a killed process goes on from here."""
        for writer in (writer for side in self.writers for writer in side):
            writer.sync()
        self.progress.save(self.out)
        self._saved_bytes = self.progress.num_bytes

    def _finish(self) -> None:
        progress, config = self.progress, self.config
        kept = {name: content.documents for name, content in progress.sides[0].items()}
        if not kept["train"]:
            shutil.rmtree(self.out)  # Other settings could not go on with it.
            raise ValueError(
                f"nothing is left to train on: {progress.empty['train']:,} documents are empty; add "
                f"documents or lower the shares"
            )
        for folder, side, writers in zip(self.folders, progress.sides, self.writers, strict=True):
            for writer in writers:
                writer.close_shard()
            splits = {name: asdict(content) for name, content in side.items() if kept[name]}
            num_empty = sum(progress.empty.values())
            self._describe(folder, dtype=self.dtype.name, empty=num_empty, splits=splits)
        if config.is_pairs:
            hashes = {side: file_hash(self.out / side / DESCRIPTION) for side in SIDES}
            pairs = {name: {"kept": kept[name], "empty": progress.empty[name]} for name in SPLITS}
            self._describe(self.out, sides=hashes, pairs=pairs)
        (self.out / PROGRESS).unlink()
        self._report()

    def _describe(self, folder: Path, **contents: Any) -> None:
        """Writes the description of a data set, which makes it whole."""
        tokenizer = {
            "kind": self.tokenizer.kind,
            "hash": tokenizer_hash(self.tokenizer),
            "vocab_size": self.tokenizer.vocab_size,
        }
        about = {"format": FORMAT, "cdcd_version": __version__, "tokenizer": tokenizer}
        write_json(folder / DESCRIPTION, about | {"config": self.config.defining} | contents)

    def _report(self) -> None:
        """Prints what was prepared, and what was left out."""
        for name, share in zip(SPLITS, (0.0, *self.config.shares), strict=True):
            sides = [side[name] for side in self.progress.sides]
            num_empty, kept = self.progress.empty[name], sides[0].documents
            tokens = " + ".join(f"{side.tokens:,}" for side in sides)
            size = " + ".join(f"{side.bytes / 1e6:,.1f}" for side in sides)
            if kept or num_empty:
                line = f"{name}: {kept:,} kept, {num_empty:,} empty; {tokens} tokens, {size} MB"
                self.console.print(line, highlight=False)
            unknown, undecodable = sum(s.unknown for s in sides), sum(s.undecodable for s in sides)
            if unknown or undecodable:
                self.console.print(
                    f"  {unknown:,} of them unknown, {undecodable:,} bytes not UTF-8"
                )
            if share and not kept:
                self.console.print(f"the split {name} is empty: raise {name}_share ({share})")
