"""Preparing a corpus once: documents to splits, to tokens, to shards that are memory-mapped.

    source --readers--> documents --tokenizer, in several processes--> tokens --writing--> shards

The split of a document is a hash of its number (and of the seed), so it depends on nothing else.
Only documents of `train` are learnt from, by the tokenizer too. Pairs go the same way in lockstep: a
document has two sides then, each of which is written to a data set of its own.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from rich.console import Console

from cdcd.data.format import DESCRIPTION, PROGRESS, SIDES, SPLITS
from cdcd.data.learning import LEARNERS, learn_tokenizer
from cdcd.data.order import keys_for, mix
from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.encoding import (
    Encoded,
    available_cores,
    chunks,
    encode_in_order,
    one_side_behind_the_other,
)
from cdcd.data.prepare.filtering import FATES, count_fates, fates_in_words
from cdcd.data.prepare.progress import Meter, PreparedSummary, tell
from cdcd.data.prepare.reading import Documents, is_table
from cdcd.data.prepare.reading_pairs import (
    BUILT_IN_COUNT,
    BuiltInPairs,
    Pairs,
    ParallelDocuments,
    is_built_in,
)
from cdcd.data.prepare.writing import DatasetWriter, description
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, numerals_tokenizer
from cdcd.files import file_hash, read_json, write_json

NOTE_EVERY = 32_000_000


def prepare(config: PrepareConfig, out: Path, *, console: Console | None = None) -> PreparedSummary:
    """Prepare a data set in `out`, or go on with one that was interrupted."""
    console = console or Console()
    refuse_existing(out)
    passes = [_Pass(None, _reader(config, config.source, config.target_source))]
    for split, source, target in (
        ("valid", config.valid_source, config.valid_target_source),
        ("test", config.test_source, config.test_target_source),
    ):
        if source is not None:
            passes.append(_Pass(split, _reader(config, source, target)))
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
    documents: Documents | Pairs

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The sides of each document: one, or source and target."""
        return ((each,) if isinstance(each, str) else each for each in self.documents)

    def check(self) -> None:
        if not any(all(text and not text.isspace() for text in row) for row in self.rows()):
            raise ValueError(f"{self.documents.source} holds no text")
        if not isinstance(self.documents, Documents):
            self.documents.check()


def _reader(config: PrepareConfig, source: str, target: str | None) -> Documents | Pairs:
    if is_built_in(source):
        return _built_in(config)
    if not config.is_pairs:
        return _documents(config, source, config.column)
    return ParallelDocuments(
        _documents(config, source, config.column),
        _documents(config, target or source, config.target_column or config.column),
    )


def _built_in(config: PrepareConfig) -> BuiltInPairs:
    """Pairs of which no meaning is both trained on and in `valid` or `test`."""

    def is_held_out(number: int) -> bool:
        split = SPLITS[splits_of(np.array([number]), config)[0]]
        return split in ("valid", "test")

    count = config.max_documents or BUILT_IN_COUNT
    return BuiltInPairs(config.source, count=count, seed=config.seed, is_held_out=is_held_out)


def _documents(config: PrepareConfig, source: str, column: str | None) -> Documents:
    """Columns are for tables; pairs held out may come as text beside a table to train on."""
    held_out = config.is_pairs and source not in (config.source, config.target_source)
    if held_out and not is_table(source):
        column = None
    return Documents(source, unit=config.unit, column=column, header=config.header)


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
    tokenizer = make_tokenizer(config, passes[0], console)
    building = out.with_name(f".{out.name}.building-{os.getpid()}")
    try:
        for folder in {building, *_side_folders(config, building)}:
            (folder / "tokenizer").mkdir(parents=True)
            tokenizer.save(folder / "tokenizer")
        progress = {"config": config.defining, "sizes": [each.documents.size for each in passes]}
        write_json(building / PROGRESS, progress | {"state": None})
        building.rename(out)
    except OSError as error:
        raise ValueError(f"could not create {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _side_folders(config: PrepareConfig, out: Path) -> list[Path]:
    """Where the data sets of the sides are; single texts are in the folder itself."""
    return [out / side for side in SIDES] if config.is_pairs else [out]


def make_tokenizer(config: PrepareConfig, source: _Pass, console: Console) -> Tokenizer:
    """The tokenizer of a data set: taken over, or learnt from what is trained on, both sides of it."""
    if config.tokenizer not in LEARNERS:
        path = Path(config.tokenizer).expanduser()
        if not path.exists():
            raise ValueError(
                f"there is no tokenizer {config.tokenizer!r}: give {', '.join(LEARNERS)} or the path of "
                f"a run, a data set or a .model file"
            )
        return load_tokenizer(path)
    if config.tokenizer == "words" and is_built_in(config.source):
        return numerals_tokenizer()
    options = {}
    if config.tokenizer == "sentencepiece":
        options = {"num_bytes": config.tokenizer_bytes, "seed": config.seed}
    if config.tokenizer != "bytes":
        console.print(f"learning a vocabulary ({config.tokenizer}) from {config.source}")
    train = _train_texts(config, source)
    return learn_tokenizer(config.tokenizer, train, config.vocab_size, **options)


def _train_texts(config: PrepareConfig, source: _Pass) -> Iterator[str]:
    """What is trained on; of a data set of the hub, which may be endless, only the beginning."""
    left = 20 * config.tokenizer_bytes if source.documents.size is None else float("inf")
    first = 0
    for rows in chunks(islice(source.rows(), config.max_documents), _num_characters):
        splits = splits_of(np.arange(first, first + len(rows)), config)
        for row, split in zip(rows, splits, strict=True):
            yield from row if split == 0 else ()
        first += len(rows)
        left -= sum(map(_num_characters, rows))
        if left <= 0:
            return


def _num_characters(row: tuple[str, ...]) -> int:
    return sum(map(len, row))


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
        self.fates = {
            name: {fate: state.get("fates", {}).get(name, {}).get(fate, 0) for fate in FATES}
            for name in SPLITS
        }
        folders = _side_folders(config, out)
        written = state.get("sides", [None] * len(folders))
        self.sides = [
            DatasetWriter(folder, self.tokenizer, shard_tokens=config.shard_tokens, state=each)
            for folder, each in zip(folders, written, strict=True)
        ]
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
        return sum(side.num_bytes for side in self.sides)

    def run(self) -> PreparedSummary:
        try:
            with Meter(self.console, self.num_bytes) as meter:
                while self.place < len(self.passes):
                    self._run_pass(self.passes[self.place], meter)
                    self.place, self.read = self.place + 1, 0
                    self._note()
            return self._finish()
        except KeyboardInterrupt:
            self.console.print(f"stopped; the same command goes on with {self.out}")
            raise
        finally:
            for side in self.sides:
                side.abandon()

    def _run_pass(self, current: _Pass, meter: Meter) -> None:
        limit = self.config.max_documents if current.split is None else None
        rows = chunks(islice(current.rows(), self.read, limit), _num_characters)
        texts = map(one_side_behind_the_other, rows)
        workers = self.config.workers or available_cores()
        for encoded in encode_in_order(texts, self.out / "tokenizer", workers):
            self._write(encoded, current.split)
            meter.update(self.num_bytes, current.documents)
            if self.num_bytes - self.noted >= NOTE_EVERY:
                self._note()

    def _write(self, encoded: Encoded, split: str | None) -> None:
        parts = encoded.sides(len(self.sides))
        numbers = np.arange(self.read, self.read + len(parts[0].lengths))
        splits = splits_of(numbers, self.config)
        if split is not None:
            splits[:] = SPLITS.index(split)
        # What is held out stays whole: a score is of all of it.
        is_limited = np.isin(splits, [SPLITS.index("train"), SPLITS.index("judge")])
        fates = self.config.limits.fates([part.lengths for part in parts], is_limited)
        for side, part in zip(self.sides, parts, strict=True):
            side.append(part, splits, fates == FATES.index("kept"))
        for place, name in enumerate(SPLITS):
            for fate, count in count_fates(fates[splits == place]).items():
                self.fates[name][fate] += count
        self.read += len(numbers)

    def _note(self) -> None:
        """Note how far it is, so that a killed process goes on from here."""
        state = {
            "pass": self.place,
            "documents": self.read,
            "fates": self.fates,
            "sides": [side.note() for side in self.sides],
        }
        write_json(self.out / PROGRESS, self.progress | {"state": state})
        self.noted = self.num_bytes

    def _finish(self) -> PreparedSummary:
        splits = self.sides[0].summaries
        if "train" not in splits and self.config.is_pairs and any(self.fates["train"].values()):
            raise ValueError(
                f"nothing is left to train on of {fates_in_words(self.fates['train'])}; raise the limits"
            )
        if "train" not in splits:
            raise ValueError(
                f"all {self.num_bytes:,} bytes of text fell into {', '.join(splits)}: nothing is left to "
                f"train on; add documents or lower the shares"
            )
        fates = {name: counts for name, counts in self.fates.items() if any(counts.values())}
        targets = self.sides[1].summaries if self.config.is_pairs else {}
        summary = PreparedSummary(self.out, self.tokenizer.vocab_size, fates, splits, targets)
        described = {"config": self.config.defining, "empty": summary.num_empty}
        for side in self.sides:
            side.finish(**described)
        if self.config.is_pairs:
            self._describe_pairs(fates)
        (self.out / PROGRESS).unlink()
        tell(summary, self.config, self.console)
        return summary

    def _describe_pairs(self, fates: dict[str, dict[str, int]]) -> None:
        sides = {side.folder.name: file_hash(side.folder / DESCRIPTION) for side in self.sides}
        about = {"config": self.config.defining, "sides": sides, "pairs": fates}
        write_json(self.out / DESCRIPTION, description(self.tokenizer) | about)
