"""Learning a vocabulary from a stream of documents, in bounded memory."""

import heapq
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from cdcd.data.learning_process import train_in_a_process
from cdcd.data.tokenizers import (
    UNDECODABLE,
    ByteTokenizer,
    SentencePieceTokenizer,
    SymbolTokenizer,
    Tokenizer,
    WordTokenizer,
)
from cdcd.data.vocabulary import EOS, PAD, SPECIALS, UNKNOWN
from cdcd.settings import unknown

STRETCH = 1 << 16
"""Characters of a document that SentencePiece reads at once; it would leave out what is too long."""
LARGE = 1_000_000
"""Characters of a corpus whose rarest characters are left to their bytes."""
COVERAGE = 0.9995
"""Share of the characters of a large corpus that become pieces."""


def learn_tokenizer(
    name: str, documents: Iterable[str], vocab_size: int, **options: Any
) -> Tokenizer:
    """Learns a tokenizer, one of `LEARNERS`, from a corpus."""
    if name not in LEARNERS:
        raise unknown("tokenizer", name, LEARNERS)
    return LEARNERS[name](documents, vocab_size, **options)


def learn_words(
    documents: Iterable[str], vocab_size: int, kind: type[WordTokenizer] = WordTokenizer
) -> WordTokenizer:
    """Learns the most frequent words of a corpus, or its symbols."""
    if vocab_size <= len(SPECIALS):
        raise ValueError(f"vocab_size is {vocab_size}, it must be above {len(SPECIALS)}")
    counts = Counter(word for text in documents for word in kind.split(text))
    known = (word for word in counts if not UNDECODABLE.search(word) and word not in SPECIALS)
    words = sorted(known, key=lambda word: (-counts[word], word))
    return kind(words[: vocab_size - len(SPECIALS)])


def learn_sentencepiece(
    documents: Iterable[str], vocab_size: int, *, num_bytes: int = 50_000_000, seed: int = 0
) -> SentencePieceTokenizer:
    """Learns unigram pieces from at most `num_bytes` of a corpus, sampled evenly.

    A small corpus gives fewer than `vocab_size`. Each of its characters becomes a piece; the rare
    ones of a large corpus are left to their bytes.
    """
    stretches = sample_stretches(documents, num_bytes=num_bytes, stretch=STRETCH, seed=seed)
    return SentencePieceTokenizer(train_sentencepiece(stretches, vocab_size))


def sample_stretches(
    documents: Iterable[str], *, num_bytes: int, stretch: int, seed: int
) -> list[str]:
    """Returns at most `num_bytes` of a corpus in its order, each stretch as likely as any other.

    Every stretch draws a number, and the smallest numbers are kept: one pass over any corpus.
    """
    rng = random.Random(seed)
    heap: list[tuple[float, int, str]] = []
    total = 0
    for index, text in enumerate(_stretches(documents, stretch)):
        heapq.heappush(heap, (-rng.random(), index, text))
        total += len(text.encode("utf-8"))
        while total > num_bytes and len(heap) > 1:
            total -= len(heapq.heappop(heap)[2].encode("utf-8"))
    return [text for _, _, text in sorted(heap, key=lambda kept: kept[1])]


def _stretches(documents: Iterable[str], stretch: int) -> Iterator[str]:
    for text in documents:
        text = UNDECODABLE.sub("", text)
        yield from (text[start : start + stretch] for start in range(0, len(text), stretch))


def train_sentencepiece(stretches: list[str], vocab_size: int) -> bytes:
    """Returns the SentencePiece model that is learnt from these stretches of text."""
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "model_type": "unigram",
        "byte_fallback": True,
        "hard_vocab_limit": False,
        "character_coverage": 1.0 if sum(map(len, stretches)) < LARGE else COVERAGE,
        "required_chars": "▁",  # the space
        # Lossless and concatenative: the pieces of a text are those of its parts, as infilling needs.
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "max_sentence_length": 4 * max(16, *map(len, stretches)),
        "pad_id": PAD,
        "eos_id": EOS,
        "unk_id": UNKNOWN,
        "bos_id": -1,
        "minloglevel": 2,
    }
    try:
        return train_in_a_process(stretches, options)
    except RuntimeError as error:
        if smallest := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            raise ValueError(
                f"vocab_size is {vocab_size}; bytes and the characters of this corpus need {smallest[1]}"
            ) from None
        raise


LEARNERS: dict[str, Callable[..., Tokenizer]] = {
    "sentencepiece": learn_sentencepiece,
    "words": learn_words,
    "symbols": partial(learn_words, kind=SymbolTokenizer),
    "bytes": lambda documents, vocab_size: ByteTokenizer(),
}
