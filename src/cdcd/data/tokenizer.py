"""Tokenizers: text to tokens and back. Token 0 pads, token 1 ends a document, token 2 is unknown.

`WordTokenizer` has a fixed list of words, for languages that are small; `SentencePieceTokenizer` is
the paper's: unigram pieces with byte fallback, learnt from the corpus.
"""

import difflib
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from cdcd.data.words import join_words, split_words

PAD, EOS, UNKNOWN = 0, 1, 2
SPECIALS = ("<pad>", "<eos>", "<unk>")
STRETCH = 1 << 16


@runtime_checkable
class Tokenizer(Protocol):
    """What every tokenizer can do."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        """Tokens of a text. Strict: an unknown word is an error instead of the unknown token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...
    def piece(self, token: int) -> str:
        """One token as a person would read it."""
        ...

    def save(self, folder: Path) -> None: ...


class WordTokenizer:
    """Words and punctuation marks, from a fixed list."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIALS, *words)
        self.index = {word: token for token, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("the words of a WordTokenizer must be distinct")

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        words = split_words(text)
        if strict and (missing := [word for word in words if word not in self.index]):
            near = difflib.get_close_matches(missing[0], self.words[len(SPECIALS) :], n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ValueError(f"the word {missing[0]!r} is not in the model's vocabulary{hint}")
        return [self.index.get(word, UNKNOWN) for word in words]

    def decode(self, tokens: Sequence[int]) -> str:
        return join_words(self.words[token] for token in tokens if token not in (PAD, EOS))

    def piece(self, token: int) -> str:
        return self.words[token]

    def save(self, folder: Path) -> None:
        text = json.dumps({"words": self.words[len(SPECIALS) :]}, ensure_ascii=False, indent=0)
        (folder / "words.json").write_text(text, encoding="utf-8")


class SentencePieceTokenizer:
    """SentencePiece unigram pieces with byte fallback (§6.1)."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @property
    def vocab_size(self) -> int:
        return self.processor.get_piece_size()

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        return self.processor.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.processor.decode([int(t) for t in tokens if t not in (PAD, EOS)])

    def piece(self, token: int) -> str:
        return self.processor.id_to_piece(token)

    def save(self, folder: Path) -> None:
        (folder / "sentencepiece.model").write_bytes(self.model)


def learn_words(documents: Sequence[str], vocab_size: int) -> WordTokenizer:
    """The most frequent words of a corpus."""
    counts = Counter(word for document in documents for word in split_words(document))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return WordTokenizer(ordered[: max(vocab_size - len(SPECIALS), 0)])


def learn_sentencepiece(documents: Sequence[str], vocab_size: int) -> SentencePieceTokenizer:
    """Unigram pieces learnt from a corpus; a small corpus gives fewer than `vocab_size`."""
    import sentencepiece

    smallest = 256 + len(SPECIALS) + len({" ", *"".join(documents)})
    if vocab_size < smallest:
        raise ValueError(
            f"data.vocab_size is {vocab_size}; bytes and the characters of this corpus need {smallest}"
        )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=_stretches(documents),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="unigram",
        byte_fallback=True,
        hard_vocab_limit=False,
        character_coverage=1.0,
        required_chars="▁",  # the space
        # Lossless and concatenative: the pieces of a text are those of its parts, as infilling needs.
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        max_sentence_length=4 * STRETCH,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNKNOWN,
        bos_id=-1,
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue())


def _stretches(documents: Sequence[str]) -> Iterator[str]:
    """Documents in stretches that SentencePiece takes: it leaves out what is too long."""
    for text in documents:
        yield from (text[start : start + STRETCH] for start in range(0, len(text), STRETCH))


def _load_words(content: bytes) -> WordTokenizer:
    return WordTokenizer(json.loads(content)["words"])


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that was saved into a folder."""
    kinds = {"words.json": _load_words, "sentencepiece.model": SentencePieceTokenizer}
    for name, build in kinds.items():
        if (folder / name).exists():
            try:
                return build((folder / name).read_bytes())
            except (ValueError, LookupError, TypeError, RuntimeError):
                raise ValueError(f"the tokenizer {folder / name} is damaged") from None
    raise ValueError(f"{folder} holds no tokenizer (words.json or sentencepiece.model)")
