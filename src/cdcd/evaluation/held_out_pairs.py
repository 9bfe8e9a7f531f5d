"""Pairs to test translators on: where they come from, and whether a run has trained on them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN_PAIRS
from cdcd.data.pairs import PairDataset, PreparedPairs, holds_pairs
from cdcd.data.prepare.reading import Documents, ParallelDocuments
from cdcd.data.tokenizers import Tokenizer, WordTokenizer
from cdcd.evaluation.held_out import training_sequences
from cdcd.evaluation.shared_documents import letters
from cdcd.evaluation.sweep import hashed
from cdcd.metrics.bleu import Corpus
from cdcd.training.corpora import built_in_pairs

BUILT_IN_SEEDS = {"test": 10**9 + 1, "valid": 10**9 + 2}
"""Seeds of the pairs drawn from the built-in task, by split: no seed that a run trains with."""
BUILT_IN_SENTENCES = 500
ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class HeldOutPairs:
    """A test set, and remarks about it."""

    corpus: Corpus
    name: str
    """The origin of the pairs."""
    direction: str | None = None
    """The direction of the built-in task, whose translations can be judged exactly."""
    remarks: tuple[str, ...] = ()

    @property
    def languages(self) -> tuple[str, str]:
        return self.corpus.source_language, self.corpus.target_language

    @property
    def hash(self) -> str:
        """A hash that is equal if and only if the test set is."""
        return hashed([*self.languages, list(self.corpus.sources), list(self.corpus.references)])


def held_out_pairs(
    run: RunConfig,
    *,
    split: str = "test",
    files: tuple[Path, Path] | None = None,
    num_sentences: int | None = None,
    trained_on: Collection[str] = (),
) -> HeldOutPairs:
    """Returns pairs of two files, else of the run's data set or task; the first few if a number is given.

    `trained_on`: the splits that runs trained on, which are refused.
    """
    if files is not None:
        return _from_files(run, files, num_sentences)
    if run.data.source == BUILT_IN_PAIRS:
        return _built_in(run, split, num_sentences or BUILT_IN_SENTENCES)
    if not holds_pairs(run.data.source):
        raise ValueError(
            f"the run's pairs {run.data.source} are not there; say where with --data FOLDER, or give "
            f"a test set with --source FILE --reference FILE"
        )
    return _prepared(run, split, num_sentences, trained_on)


def _corpus(run: RunConfig, pairs: Sequence[tuple[str, ...]]) -> Corpus:
    return Corpus([pair[0] for pair in pairs], [pair[1] for pair in pairs], *run.data.direction)


def _from_files(
    run: RunConfig, files: tuple[Path, Path], num_sentences: int | None
) -> HeldOutPairs:
    sides = [Documents(str(file), unit="line", errors="strict") for file in files]
    pairs = list(ParallelDocuments(*sides))
    name = f"{files[0].name}, {files[1].name}{_part(num_sentences, pairs)}"
    return HeldOutPairs(_corpus(run, pairs[:num_sentences]), name)


def _part(num_sentences: int | None, pairs: Sequence[object] | range) -> str:
    if num_sentences is None or num_sentences >= len(pairs):
        return ""
    return f", the first {num_sentences:,} of {len(pairs):,}"


def _built_in(run: RunConfig, split: str, num_sentences: int) -> HeldOutPairs:
    if split not in BUILT_IN_SEEDS:
        raise ValueError(
            f"{BUILT_IN_PAIRS} have no split {split!r}; choose {' or '.join(BUILT_IN_SEEDS)}"
        )
    seed = BUILT_IN_SEEDS[split]
    pairs = built_in_pairs(run.data, num_sentences, seed=seed, held_out=True)
    name = f"{BUILT_IN_PAIRS}, {split}: meanings that are held out, seed {seed}"
    return HeldOutPairs(_corpus(run, pairs), name, run.data.languages)


def _prepared(
    run: RunConfig, split: str, num_sentences: int | None, trained_on: Collection[str]
) -> HeldOutPairs:
    dataset = PreparedPairs(run.data.source)
    if split not in dataset.splits:
        raise ValueError(
            f"{run.data.source} has no pairs in a split {split!r}, it has {', '.join(dataset.splits)}: "
            f"choose one with --split, or give a test set with --source FILE --reference FILE"
        )
    if split in trained_on:
        raise ValueError(f"the split {split} is what a run trained on; choose another --split")
    numbers = range(dataset.num_pairs(split))
    pairs = [dataset.texts(split, number) for number in numbers[:num_sentences]]
    pairs = [(target, source) for source, target in pairs] if run.data.reverse else pairs
    name = f"{dataset.path.name}, {split}{_part(num_sentences, numbers)}"
    return HeldOutPairs(_corpus(run, pairs), name, remarks=tuple(_lost(dataset, split)))


def _lost(dataset: PreparedPairs, split: str) -> Iterator[str]:
    """Yields remarks on what the test set lost when it was prepared: scores of all of it would be others."""
    if isinstance(dataset.tokenizer, WordTokenizer):
        yield f"references are what the tokenizer of {dataset.path.name} keeps: known words, evenly spaced"
    lost = {why: n for why, n in dataset.counts(split).items() if n and why != "kept"}
    if lost:
        reasons = ", ".join(f"{why.replace('_', ' ')} {n:,}" for why, n in lost.items())
        yield f"pairs of the test set that were left out when it was prepared: {reasons}"


# Pairs that runs have trained on


@dataclass(frozen=True)
class Overlap:
    """Sentences of the test set that a run has trained on, white space aside."""

    pairs: int
    sources: int
    """Sources, with any target."""


def overlap(corpus: Corpus, run: RunConfig, tokenizer: Tokenizer) -> Overlap | None:
    """Counts a test set's pairs in the training set of a run; None if that is not there."""
    if run.data.source != BUILT_IN_PAIRS and not holds_pairs(run.data.source):
        return None
    tested = [
        (letters(source), letters(reference))
        for source, reference in zip(corpus.sources, corpus.references, strict=True)
    ]
    sources, known = {source for source, _ in tested}, set[str | tuple[str, str]]()
    for text, target in training_pairs(run, tokenizer):
        source = letters(text)
        if source in sources:
            known |= {source, (source, letters(target))}
    return Overlap(
        pairs=sum(pair in known for pair in tested),
        sources=sum(source in known for source, _ in tested),
    )


def training_pairs(run: RunConfig, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yields the pairs that a run trained on, as text."""
    pairs = training_sequences(run, tokenizer)
    assert isinstance(pairs, PairDataset)
    border = pairs.source_length
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        rows = pairs.rows(np.arange(start, min(start + ROWS_AT_ONCE, len(pairs))))
        for row in rows.tolist():
            yield tokenizer.decode(row[:border]), tokenizer.decode(row[border:])
