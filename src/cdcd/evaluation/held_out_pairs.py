"""Pairs to test translators on: where they come from, and whether a run has trained on them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdcd.config import DataConfig, RunConfig
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
    direction, remarks = None, ()
    if files is not None:
        lines = [Documents(str(file), unit="line", errors="strict") for file in files]
        pairs, name = list(ParallelDocuments(*lines)), ", ".join(file.name for file in files)
    elif run.data.source == BUILT_IN_PAIRS:
        pairs, name = _built_in(run.data, split, num_sentences or BUILT_IN_SENTENCES)
        direction = run.data.languages
    else:
        dataset = _prepared(run.data, split, trained_on)
        pairs = [dataset.texts(split, number) for number in range(dataset.num_pairs(split))]
        pairs = [(target, source) for source, target in pairs] if run.data.reverse else pairs
        name, remarks = f"{dataset.path.name}, {split}", tuple(_lost(dataset, split))
    if num_sentences is not None and num_sentences < len(pairs):
        name += f", the first {num_sentences:,} of {len(pairs):,}"
    sources, references = ([pair[i] for pair in pairs[:num_sentences]] for i in (0, 1))
    corpus = Corpus(sources, references, *run.data.direction)
    return HeldOutPairs(corpus, name, direction, remarks)


def _built_in(data: DataConfig, split: str, count: int) -> tuple[list[tuple[str, str]], str]:
    """Draws pairs of the built-in task; returns their name too."""
    if split not in BUILT_IN_SEEDS:
        raise ValueError(
            f"{BUILT_IN_PAIRS} have no split {split!r}; choose {' or '.join(BUILT_IN_SEEDS)}"
        )
    seed = BUILT_IN_SEEDS[split]
    name = f"{BUILT_IN_PAIRS}, {split}: meanings that are held out, seed {seed}"
    return built_in_pairs(data, count, seed=seed, held_out=True), name


def _prepared(data: DataConfig, split: str, trained_on: Collection[str]) -> PreparedPairs:
    """Returns the data set of a run, if it has the split and no run trained on that."""
    if not holds_pairs(data.source):
        raise ValueError(
            f"the run's pairs {data.source} are not there; say where with --data FOLDER, or give "
            f"a test set with --source FILE --reference FILE"
        )
    dataset = PreparedPairs(data.source)
    if split not in dataset.splits:
        raise ValueError(
            f"{data.source} has no pairs in a split {split!r}, it has {', '.join(dataset.splits)}: "
            f"choose one with --split, or give a test set with --source FILE --reference FILE"
        )
    if split in trained_on:
        raise ValueError(f"the split {split} is what a run trained on; choose another --split")
    return dataset


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
