"""Learning the pieces of SentencePiece from a stream of documents, in bounded memory."""

import heapq
import io
import random
from collections import Counter
from collections.abc import Iterable, Iterator

from cdcd.data.tokenizers import COVERAGE, LARGE, UNDECODABLE
from cdcd.data.vocabulary import EOS, PAD, SPECIALS, UNKNOWN


def sample_stretches(
    documents: Iterable[str], *, num_bytes: int, stretch: int, seed: int
) -> list[str]:
    """At most `num_bytes` of a corpus in its order, each stretch of text as likely as any other.

    Every stretch draws a number, and those with the smallest are kept: one pass, whatever the size.
    """
    rng = random.Random(seed)
    heap: list[tuple[float, int, str]] = []
    total = 0
    for place, text in enumerate(_stretches(documents, stretch)):
        drawn = -rng.random()
        heapq.heappush(heap, (drawn, place, text))
        total += len(text.encode("utf-8"))
        while total > num_bytes and len(heap) > 1:
            total -= len(heapq.heappop(heap)[2].encode("utf-8"))
    return [text for _, _, text in sorted(heap, key=lambda kept: kept[1])]


def _stretches(documents: Iterable[str], stretch: int) -> Iterator[str]:
    """Documents in stretches that SentencePiece takes: it leaves out what is too long."""
    for text in documents:
        text = UNDECODABLE.sub("", text)
        yield from (text[start : start + stretch] for start in range(0, len(text), stretch))


def train_sentencepiece(stretches: list[str], vocab_size: int) -> bytes:
    """The model of SentencePiece for these stretches of text."""
    import sentencepiece

    counts = Counter[str]()
    for text in stretches:
        counts.update(text)
    coverage = 1.0 if counts.total() < LARGE else COVERAGE
    smallest = 256 + len(SPECIALS) + len(_covered(counts, coverage) | {" "})
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size is {vocab_size}; bytes and the characters of this corpus need {smallest}"
        )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=iter(stretches),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="unigram",
        byte_fallback=True,
        hard_vocab_limit=False,
        character_coverage=coverage,
        required_chars="▁",  # the space
        # Lossless and concatenative: the pieces of a text are those of its parts, as infilling needs.
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        max_sentence_length=4 * max(16, *map(len, stretches)),
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNKNOWN,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def _covered(counts: Counter[str], coverage: float) -> set[str]:
    """The most frequent characters that together make up this share of the text."""
    covered: set[str] = set()
    needed = coverage * counts.total()
    for character, count in counts.most_common():
        if needed <= 0:
            break
        covered.add(character)
        needed -= count
    return covered
