"""Corpora: documents from built-in languages or files, as fixed-length token sequences in memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cdcd.data.dataset_files import DESCRIPTION, REMEDY
from cdcd.data.prepare.reading import Documents
from cdcd.data.tokenizer_learning import learn_tokenizer
from cdcd.data.tokenizers import Tokenizer, WordTokenizer
from cdcd.languages import markov_chain, tales
from cdcd.seeding import generator_for

BUILT_IN = ("markov", "tales")
BUILT_IN_PAIRS = "numerals"


@dataclass(frozen=True)
class Split:
    """Documents to train on and documents held out."""

    train: list[str]
    valid: list[str]


def read_documents(source: str) -> list[str]:
    """Returns the documents of a file (one a line or row) or a folder (one a text file); none is empty."""
    path = Path(source).expanduser()
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
        return tales.stories(count, seed=seed)
    return markov_chain(num_states).documents(count, length - 1, seed=seed)


def make_tokenizer(
    kind: str, source: str, documents: Iterable[str], *, vocab_size: int, num_states: int
) -> Tokenizer:
    """Returns the tokenizer for a corpus; built-in corpora have their own words."""
    if source in BUILT_IN and kind in ("auto", "words"):
        return WordTokenizer(
            tales.VOCABULARY if source == "tales" else markov_chain(num_states).words
        )
    return learn_tokenizer("sentencepiece" if kind == "auto" else kind, documents, vocab_size)
