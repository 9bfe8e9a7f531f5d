"""Corpora: documents from built-in languages or files, as fixed-length token sequences in memory."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cdcd.data.dataset_files import DESCRIPTION, REMEDY
from cdcd.data.prepare.reading import Documents
from cdcd.data.tokenizer_learning import learn_tokenizer
from cdcd.data.tokenizers import Tokenizer, WordTokenizer
from cdcd.files import expanded
from cdcd.languages import markov_chain, tales
from cdcd.memory import available_memory, refuse_beyond
from cdcd.seeding import generator_for

BUILT_IN = ("markov", "tales")
BUILT_IN_PAIRS = "numerals"

TRIAL = 300
"""Documents that are drawn on trial."""
BYTES_PER_TRANSITION = 28
"""Memory for each probability of a chain while it is drawn."""
BYTES_PER_BYTE = 5
"""Memory for each byte of a text, with its tokens; measured with words, other tokenizers need more."""


@dataclass(frozen=True)
class Split:
    """Documents to train on and documents held out."""

    train: list[str]
    valid: list[str]


def read_documents(source: str) -> list[str]:
    """Returns the documents of a file (one a line or row) or a folder (one a text file); none is empty."""
    path = expanded(source)
    if not path.exists():
        raise ValueError(
            f"there is no corpus {source!r}: give a text file, a folder or one of {', '.join(BUILT_IN)}"
        )
    documents = Documents(str(path), errors="strict")
    if any(file.suffix == ".tokens" for file in documents.files):
        raise ValueError(
            f"{source} has shards of a prepared data set, but no {DESCRIPTION} that describes them; "
            f"{REMEDY}"
        )
    refuse_beyond(
        available_memory(),
        BYTES_PER_BYTE * (documents.size or 0),
        f"to train on {source} as it is",
        f"prepare it, so that it stays on the disk: cdcd data prepare --source {shlex.quote(source)} "
        f"--out FOLDER",
    )
    texts = [text for (text,) in documents if text.strip()]
    if not texts:
        raise ValueError(f"the corpus {source} holds no text")
    return texts


def split_documents(documents: Sequence[str], valid_share: float, *, seed: int) -> Split:
    """Holds out a random share of the documents, at least one."""
    if len(documents) < 2:
        raise ValueError("the corpus has one document; it needs two, one of them for validation")
    num_valid = min(max(1, round(valid_share * len(documents))), len(documents) - 1)
    order = torch.randperm(len(documents), generator=generator_for(seed, "split")).tolist()
    valid = set(order[:num_valid])
    return Split(
        train=[text for i, text in enumerate(documents) if i not in valid],
        valid=[text for i, text in enumerate(documents) if i in valid],
    )


def built_in_documents(
    source: str, *, count: int, length: int, num_states: int, seed: int
) -> list[str]:
    """Draws documents from a built-in corpus; the markov ones fill a sequence with their end."""
    if source == "tales":
        draw = partial(tales.stories, seed=seed)
        refuse_too_many(draw, count)
        return draw(count)
    refuse_beyond(
        available_memory(),
        BYTES_PER_TRANSITION * num_states**2,
        f"a chain of {num_states:,} states",
        "lower data.num_states",
    )
    chain = markov_chain(num_states)

    def draw_chain(count: int) -> list[str]:
        return chain.documents(count, length - 1, seed=seed)

    # One tensor of all states, and one of the probabilities that follow each document.
    refuse_too_many(draw_chain, count, more=8 * length + 4 * num_states)
    return draw_chain(count)


def refuse_too_many(draw: Callable[[int], Sequence[object]], count: int, *, more: int = 0) -> None:
    """Raises an error where documents, of which a few are drawn on trial, would need too much memory.

    `more`: bytes that each needs beside its text and tokens.
    """
    if count <= TRIAL:
        return
    started = time.perf_counter()
    texts = [str(each) for each in draw(TRIAL)]
    hours = (time.perf_counter() - started) / TRIAL * count / 3600
    each = sum(sys.getsizeof(text) + 12 * len(text.split()) for text in texts) / TRIAL
    refuse_beyond(
        available_memory(),
        (each + more) * count,
        f"{count:,} documents, drawn in about {hours:,.1f} hours,",
        "lower data.num_documents",
    )


def make_tokenizer(
    kind: str, source: str, documents: Iterable[str], *, vocab_size: int, num_states: int
) -> Tokenizer:
    """Returns the tokenizer for a corpus; built-in corpora have their own words."""
    if source in BUILT_IN and kind in ("auto", "words"):
        return WordTokenizer(
            tales.VOCABULARY if source == "tales" else markov_chain(num_states).words
        )
    return learn_tokenizer("sentencepiece" if kind == "auto" else kind, documents, vocab_size)
