"""The text of a run: documents or pairs, split, as token sequences to train and to validate on."""

import hashlib
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cdcd.config import DataConfig, RunConfig
from cdcd.data.corpus import (
    BUILT_IN,
    BUILT_IN_PAIRS,
    Split,
    built_in_documents,
    make_tokenizer,
    read_documents,
    refuse_too_many,
    split_documents,
)
from cdcd.data.pairs import PairDataset, PreparedPairs, holds_pairs, pairs_in_memory
from cdcd.data.remote import is_remote
from cdcd.data.sequences import Sequences, TokenDataset, TokenDocuments, is_dataset
from cdcd.data.subword_sampling import SubwordSampledPairs
from cdcd.data.tokenizers import Tokenizer, numerals_tokenizer, tokenizer_hash
from cdcd.data.vocabulary import EOS, UNKNOWN
from cdcd.files import expanded
from cdcd.languages import numerals
from cdcd.presets import TRANSLATION

COUNTED = 20_000
"""Sequences of which the unknown words are counted."""


@dataclass(frozen=True)
class Corpus:
    """The token sequences that a run trains and validates on, and their tokenizer."""

    tokenizer: Tokenizer
    train: Sequences
    valid: Sequences
    text_hash: str | None = None
    """The SHA-256 of the text, where it is not a built-in one."""


def split_seed(config: RunConfig) -> int:
    """Returns the seed that splits a text that is not prepared."""
    seed = config.data.split_seed
    return config.training.seed if seed is None else seed


def load_documents(config: RunConfig) -> Split:
    """Reads or draws the documents of a run's corpus, split the same way every time."""
    data, seed = config.data, split_seed(config)
    if data.source in BUILT_IN:
        documents = built_in_documents(
            data.source,
            count=data.num_documents,
            length=data.length,
            num_states=data.num_states,
            seed=seed,
        )
    else:
        documents = read_documents(data.source)
    return split_documents(documents, data.valid_share, seed=seed)


def load_corpus(config: RunConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """Loads a run's text by its tokenizer, else by that of the data set, else by one learnt from the text."""
    data = config.data
    if config.task == "translation":
        return load_pairs(config, tokenizer)
    if data.source == BUILT_IN_PAIRS or holds_pairs(data.source):
        raise ValueError(
            f"{data.source} holds pairs to translate: train a translator with --task translation or "
            f"one of the presets {', '.join(TRANSLATION)}"
        )
    if is_dataset(data.source):
        dataset = TokenDataset(data.source)
        _check_tokenizer(dataset, data, tokenizer)
        train, valid = (
            dataset.documents(split).sequences(data.length, data.layout)
            for split in (data.split, "valid")
        )
        return Corpus(dataset.tokenizer, train, valid, dataset.content_hash)
    if data.split != "train":
        raise ValueError(
            f"data.split {data.split} needs a prepared data set: cdcd data prepare --source {data.source}"
        )
    split = load_documents(config)
    tokenizer = tokenizer or make_tokenizer(
        data.tokenizer,
        data.source,
        split.train,
        vocab_size=data.vocab_size,
        num_states=data.num_states,
    )
    train, valid = (
        TokenDocuments.of_texts(texts, tokenizer, name).sequences(data.length, data.layout)
        for name, texts in (("the corpus", split.train), ("its held-out part", split.valid))
    )
    text_hash = None if data.source in BUILT_IN else hash_of_texts(split)
    return Corpus(tokenizer, train, valid, text_hash)


def hash_of_texts(split: Split) -> str:
    """Returns a SHA-256 of the documents to train on and of those held out."""
    digest = hashlib.sha256()
    for documents in (split.train, split.valid):
        for text in documents:
            content = text.encode("utf-8", "surrogateescape")
            digest.update(len(content).to_bytes(8, "little") + content)
        digest.update(b"\xff" * 8)
    return digest.hexdigest()


def unknown_share(sequences: Sequences) -> float:
    """Returns the share of unknown words in up to `COUNTED` sequences, evenly spread."""
    indices = np.linspace(0, len(sequences) - 1, min(len(sequences), COUNTED)).astype(np.int64)
    tokens = sequences.rows(indices)
    return float((tokens == UNKNOWN).sum() / (tokens >= UNKNOWN).sum().clamp(min=1))


def load_pairs(config: RunConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """Loads a translator's pairs: of a prepared data set, or drawn from the built-in task."""
    data = config.data
    if data.source == BUILT_IN_PAIRS:
        corpus = _load_built_in_pairs(config, tokenizer or numerals_tokenizer())
    elif data.source in BUILT_IN:
        raise ValueError(
            f"{data.source} holds no pairs to translate: give --data {BUILT_IN_PAIRS}, or a folder "
            f"made by: cdcd data prepare --source PATH --target-source PATH --out FOLDER"
        )
    else:
        dataset = PreparedPairs(data.source)
        _check_tokenizer(dataset, data, tokenizer)
        train, valid = (prepared_pairs(dataset, data, split) for split in (data.split, "valid"))
        corpus = Corpus(dataset.tokenizer, train, valid, dataset.content_hash)
    if not data.subword_sampling:
        return corpus
    assert isinstance(corpus.train, PairDataset)
    sampled = SubwordSampledPairs(corpus.train, corpus.tokenizer, data.subword_sampling)
    return replace(corpus, train=sampled)


def prepared_pairs(dataset: PreparedPairs, data: DataConfig, split: str) -> PairDataset:
    """Returns the pairs of a part of a prepared data set that fit the model."""
    return dataset.sequences(
        split, source_length=data.source_length, target_length=data.length, reverse=data.reverse
    )


def _load_built_in_pairs(config: RunConfig, tokenizer: Tokenizer) -> Corpus:
    data = config.data
    draw = partial(built_in_pairs, data, seed=split_seed(config))
    refuse_too_many(partial(draw, held_out=False), data.num_documents)
    num_valid = max(1, round(data.valid_share * data.num_documents))
    train, valid = (
        pairs_in_memory(
            draw(count, held_out=held_out),
            tokenizer,
            source_length=data.source_length,
            target_length=data.length,
        )
        for held_out, count in ((False, data.num_documents - num_valid), (True, num_valid))
    )
    return Corpus(tokenizer, train, valid)


def built_in_pairs(
    data: DataConfig, count: int, *, seed: int, held_out: bool
) -> list[tuple[str, str]]:
    """Draws pairs of the built-in task in the direction of the run, of meanings held out or others."""
    if data.reverse:
        raise ValueError(
            f"data.reverse is for prepared data sets; {BUILT_IN_PAIRS} have --data.languages de-en"
        )
    if data.languages not in ("en-de", "de-en"):
        raise ValueError(
            f"data.languages is {data.languages}; {BUILT_IN_PAIRS} are written in en-de or de-en"
        )
    drawn = numerals.sample_pairs(count, seed=seed, direction=data.languages, held_out=held_out)
    return drawn if data.languages == "en-de" else [(german, english) for english, german in drawn]


def _check_tokenizer(
    dataset: TokenDataset | PreparedPairs, data: DataConfig, tokenizer: Tokenizer | None
) -> None:
    if tokenizer is not None and tokenizer_hash(tokenizer) != dataset.tokenizer_hash:
        raise ValueError(
            f"the data set {data.source} has another tokenizer (hash {dataset.tokenizer_hash[:12]}) "
            f"than the run ({tokenizer_hash(tokenizer)[:12]}); prepare it again with --tokenizer RUN"
        )


# The split of a run that another is tuned from


def check_split_is_kept(config: RunConfig, parent: RunConfig, tokenizer: Tokenizer) -> None:
    """Refuses to train on documents that the parent run held out, or to hold out those that it trained on.

    Documents are compared by their tokens. One that the parent has on both sides belongs to neither. A
    parent whose text is no longer there cannot be compared with.
    """
    own, theirs = config.data, parent.data
    if own.source == BUILT_IN_PAIRS or theirs.source == BUILT_IN_PAIRS:
        return  # Their held-out meanings are the same for every seed.
    is_there = theirs.source in BUILT_IN or is_remote(theirs.source)
    is_there = is_there or expanded(theirs.source).exists()
    if own.source != theirs.source and not is_there:
        return
    if is_dataset(own.source) and (own.source, own.split) == (theirs.source, theirs.split):
        return
    trained_on, held_out = _document_keys(parent, tokenizer)
    now_trained_on, now_held_out = _document_keys(config, tokenizer)
    wrong = {
        "train on {} documents that it held out": now_trained_on & (held_out - trained_on),
        "hold out {} documents that it trained on": now_held_out & (trained_on - held_out),
    }
    if problems := [text.format(len(keys)) for text, keys in wrong.items() if keys]:
        raise ValueError(
            f"tuning this run on {own.source} would {' and '.join(problems)}; keep the parent's "
            f"data.split_seed {split_seed(parent)}, data.valid_share {theirs.valid_share} and text, or "
            f"give other text"
        )


def _document_keys(config: RunConfig, tokenizer: Tokenizer) -> list[set[int]]:
    """Returns hashes of the documents, or of the sources of pairs, that are trained on and held out."""
    source, split = config.data.source, config.data.split
    if not is_dataset(source):
        documents = load_documents(config)
        return [
            {hash((*tokenizer.encode(text), EOS)) for text in part}
            for part in (documents.train, documents.valid)
        ]
    dataset = PreparedPairs(source).source if holds_pairs(source) else TokenDataset(source)
    return [
        {hash(tuple(document.tolist())) for document in dataset.documents(part)}
        for part in (split, "valid")
    ]
