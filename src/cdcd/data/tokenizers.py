"""Tokenizers: text to tokens and back. Token 0 pads, token 1 ends a document, token 2 is unknown.

* `SentencePieceTokenizer` is the paper's: unigram pieces with byte fallback, learnt from the corpus.
* `WordTokenizer` has a list of words, for languages that are small.
* `SymbolTokenizer` has a list of symbols between white space: chess moves, chords.
* `MorphemeTokenizer` has a list of words and parts of words, for a language that compounds them.
* `ByteTokenizer` takes the bytes as they are: molecules, or text in any encoding.

Bytes that are not UTF-8 are lone surrogates in a `str` (PEP 383). Pieces and bytes keep them, words
and symbols make them unknown. `decode` shows them as U+FFFD unless errors="surrogateescape" asks for
them back.
"""

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt

from cdcd.data.vocabulary import EOS, PAD, SPECIALS, UNKNOWN
from cdcd.languages import numerals
from cdcd.languages.words import GLUE, join_words, split_words
from cdcd.settings import unknown

STRETCH = 1 << 16
LARGE = 1_000_000
COVERAGE = 0.9995

UNDECODABLE = re.compile("[\udc80-\udcff]")
# SentencePiece takes the character ▁ for a space, and refuses what is not UTF-8.
BYTE_WISE = re.compile("([\udc80-\udcff▁]+)")


@runtime_checkable
class Tokenizer(Protocol):
    """What every tokenizer can do."""

    kind: ClassVar[str]

    @property
    def vocab_size(self) -> int: ...
    @property
    def content(self) -> bytes:
        """What is saved; the tokenizer is a function of it."""
        ...

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        """Tokens of a text. Strict: an unknown word is an error instead of the unknown token."""
        ...

    def encode_array(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """The same, not strict, as an array of `token_dtype`: for whole corpora."""
        ...

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str: ...
    def piece(self, token: int) -> str:
        """One token as a person would read it."""
        ...

    def save(self, folder: Path) -> None: ...


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest type for tokens on disk: little-endian, unsigned."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def is_utf8(text: str) -> bool:
    """Whether a text has no bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """SHA-256 of what the tokenizer saves: equal if and only if it gives the same tokens."""
    return hashlib.sha256(tokenizer.content).hexdigest()


class WordTokenizer:
    """Words and punctuation marks, from a fixed list."""

    kind: ClassVar[str] = "words"
    noun: ClassVar[str] = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIALS, *words)
        # Without the specials: "<eos>" in a text is no end of it.
        self.index = {word: token for token, word in enumerate(words, start=len(SPECIALS))}
        if len({*self.words}) != len(self.words):
            raise ValueError(f"the {self.noun}s of a {type(self).__name__} must be distinct")

    @staticmethod
    def split(text: str) -> list[str]:
        return split_words(text)

    @staticmethod
    def join(words: Iterable[str]) -> str:
        return join_words(words)

    def pieces(self, text: str) -> list[str]:
        """What a text is made of, in the list or not."""
        return self.split(text)

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    @property
    def content(self) -> bytes:
        listed = {self.kind: self.words[len(SPECIALS) :]}
        return json.dumps(listed, ensure_ascii=False, indent=0).encode("utf-8")

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        words = self.pieces(text)
        if strict and (missing := [word for word in words if word not in self.index]):
            near = difflib.get_close_matches(missing[0], self.words[len(SPECIALS) :], n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ValueError(
                f"the {self.noun} {missing[0]!r} is not in the model's vocabulary{hint}"
            )
        find = self.index.get
        return [find(word, UNKNOWN) for word in words]

    def encode_array(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.array(self.encode(text), dtype=token_dtype(self.vocab_size))

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        return self.join(self.words[token] for token in tokens if token not in (PAD, EOS))

    def piece(self, token: int) -> str:
        return self.words[token]

    def save(self, folder: Path) -> None:
        (folder / f"{self.kind}.json").write_bytes(self.content)


class SymbolTokenizer(WordTokenizer):
    """Symbols between white space, from a fixed list."""

    kind: ClassVar[str] = "symbols"
    noun: ClassVar[str] = "symbol"

    @staticmethod
    def split(text: str) -> list[str]:
        return text.split()

    @staticmethod
    def join(words: Iterable[str]) -> str:
        return " ".join(words)


class MorphemeTokenizer(WordTokenizer):
    """Words and, glued to what is before them, parts of words: the longest that fit, from a list."""

    kind: ClassVar[str] = "morphemes"
    noun: ClassVar[str] = "part"

    @staticmethod
    def join(words: Iterable[str]) -> str:
        return " ".join(words).replace(f" {GLUE}", "")

    def pieces(self, text: str) -> list[str]:
        return [piece for chunk in text.split() for piece in self._parts(chunk)]

    def _parts(self, chunk: str) -> Iterator[str]:
        start, glue = 0, ""
        while start < len(chunk):
            ends = range(len(chunk), start, -1)
            known = (end for end in ends if glue + chunk[start:end] in self.index)
            end = next(known, len(chunk))
            yield glue + chunk[start:end]
            start, glue = end, GLUE


class ByteTokenizer:
    """The bytes of a text, each a token; lossless for anything."""

    kind: ClassVar[str] = "bytes"
    vocab_size = len(SPECIALS) + 256
    content = b'{"bytes": 256}'

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> UInt[np.ndarray, " tokens"]:
        raw = np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)
        return raw.astype(token_dtype(self.vocab_size)) + len(SPECIALS)

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        raw = bytes(token - len(SPECIALS) for token in tokens if token >= len(SPECIALS))
        return raw.decode("utf-8", errors)

    def piece(self, token: int) -> str:
        if token < len(SPECIALS):
            return SPECIALS[token]
        byte = token - len(SPECIALS)
        return chr(byte) if 32 <= byte < 127 else f"<0x{byte:02X}>"

    def save(self, folder: Path) -> None:
        (folder / "bytes.json").write_bytes(self.content)


class OtherSpecials(ValueError):  # noqa: N818
    """A SentencePiece model that numbers its special tokens in another way."""


class SentencePieceTokenizer:
    """SentencePiece unigram pieces with byte fallback (§6.1)."""

    kind: ClassVar[str] = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._check_specials()
        self._byte_tokens = self.processor.piece_to_id([f"<0x{byte:02X}>" for byte in range(256)])

    def _check_specials(self) -> None:
        found = (self.processor.pad_id(), self.processor.eos_id(), self.processor.unk_id())
        if found != (PAD, EOS, UNKNOWN):
            raise OtherSpecials(
                f"the SentencePiece model has pad {found[0]}, eos {found[1]}, unk {found[2]}; it needs "
                f"pad {PAD}, eos {EOS}, unk {UNKNOWN}: train it with --pad_id={PAD} --eos_id={EOS} "
                f"--unk_id={UNKNOWN} --bos_id=-1"
            )

    @property
    def vocab_size(self) -> int:
        return self.processor.get_piece_size()

    @property
    def content(self) -> bytes:
        return self.model

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        if "▁" not in text and is_utf8(text):
            return self.processor.encode(text)
        tokens: list[int] = []
        for place, stretch in enumerate(BYTE_WISE.split(text)):
            if place % 2:
                tokens += [self._byte_tokens[b] for b in stretch.encode("utf-8", "surrogateescape")]
            else:
                tokens += self.processor.encode(stretch)
        return tokens

    def encode_array(self, text: str) -> UInt[np.ndarray, " tokens"]:
        return np.array(self.encode(text), dtype=token_dtype(self.vocab_size))

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        kept = [int(token) for token in tokens if token not in (PAD, EOS)]
        text = self.processor.decode(kept)
        if errors == "replace" or "\ufffd" not in text:
            return text
        parts = (
            self._spelt(is_byte, run) for is_byte, run in groupby(kept, self.processor.is_byte)
        )
        return b"".join(parts).decode("utf-8", errors)

    def _spelt(self, is_byte: bool, tokens: Iterable[int]) -> bytes:
        if is_byte:
            return bytes(int(self.piece(token)[1:-1], 16) for token in tokens)
        return self.processor.decode(list(tokens)).encode("utf-8")

    @property
    def is_unigram(self) -> bool:
        """Whether words can be split in several ways, each of which has a probability."""
        try:
            self.processor.nbest_encode("", nbest_size=1)
        except RuntimeError:
            return False
        return True

    def ways_to_split(self, word: list[int], most: int) -> tuple[list[list[int]], list[float]]:
        """The likeliest ways to spell the text of these tokens, and their ln p; these tokens come first."""
        found: list[list[int]] = self.processor.nbest_encode(self.decode(word), nbest_size=most)
        if word not in found:  # bytes, or a text that is spelt in another way
            return [word], [0.0]
        found.sort(key=lambda way: way != word)
        return found, [sum(map(self.processor.get_score, way)) for way in found]

    def piece(self, token: int) -> str:
        return self.processor.id_to_piece(token)

    def save(self, folder: Path) -> None:
        (folder / "sentencepiece.model").write_bytes(self.model)


def learn_words(documents: Iterable[str], vocab_size: int) -> WordTokenizer:
    """The most frequent words of a corpus."""
    return WordTokenizer(_most_frequent(map(WordTokenizer.split, documents), vocab_size))


def learn_symbols(documents: Iterable[str], vocab_size: int) -> SymbolTokenizer:
    """The most frequent symbols of a corpus."""
    return SymbolTokenizer(_most_frequent(map(SymbolTokenizer.split, documents), vocab_size))


def _most_frequent(documents: Iterable[Sequence[str]], vocab_size: int) -> list[str]:
    if vocab_size <= len(SPECIALS):
        raise ValueError(f"vocab_size is {vocab_size}, it must be above {len(SPECIALS)}")
    counts = Counter(word for words in documents for word in words)
    known = (word for word in counts if not UNDECODABLE.search(word) and word not in SPECIALS)
    return sorted(known, key=lambda word: (-counts[word], word))[: vocab_size - len(SPECIALS)]


def learn_sentencepiece(
    documents: Iterable[str], vocab_size: int, *, num_bytes: int = 50_000_000, seed: int = 0
) -> SentencePieceTokenizer:
    """Unigram pieces learnt from at most `num_bytes` of a corpus, sampled evenly.

    A small corpus gives fewer than `vocab_size`. Each of its characters becomes a piece; those that
    are rare in a large one are left to their bytes.
    """
    from cdcd.data.learning import sample_stretches, train_sentencepiece

    stretches = sample_stretches(documents, num_bytes=num_bytes, stretch=STRETCH, seed=seed)
    return SentencePieceTokenizer(train_sentencepiece(stretches, vocab_size))


LEARNERS: dict[str, Callable[..., Tokenizer]] = {
    "sentencepiece": learn_sentencepiece,
    "words": learn_words,
    "symbols": learn_symbols,
    "bytes": lambda documents, vocab_size: ByteTokenizer(),
}


def learn_tokenizer(
    kind: str, documents: Iterable[str], vocab_size: int, **options: Any
) -> Tokenizer:
    """A tokenizer of this kind for a corpus."""
    if kind not in LEARNERS:
        raise unknown("tokenizer", kind, LEARNERS)
    return LEARNERS[kind](documents, vocab_size, **options)


def _words_of(content: bytes) -> WordTokenizer:
    return WordTokenizer(json.loads(content)["words"])


def _symbols_of(content: bytes) -> SymbolTokenizer:
    return SymbolTokenizer(json.loads(content)["symbols"])


def _morphemes_of(content: bytes) -> MorphemeTokenizer:
    return MorphemeTokenizer(json.loads(content)["morphemes"])


def _bytes_of(content: bytes) -> ByteTokenizer:
    if content != ByteTokenizer.content:
        raise ValueError("not what a ByteTokenizer saves")
    return ByteTokenizer()


LOADERS: dict[str, Callable[[bytes], Tokenizer]] = {
    "sentencepiece.model": SentencePieceTokenizer,
    "words.json": _words_of,
    "symbols.json": _symbols_of,
    "morphemes.json": _morphemes_of,
    "bytes.json": _bytes_of,
}


def load_tokenizer(path: Path) -> Tokenizer:
    """A saved tokenizer: its file, its folder, or the run or data set that it lies in.

    A file of any name that ends in .model is taken for one of SentencePiece.
    """
    if path.is_dir():
        for file in (folder / name for folder in (path, path / "tokenizer") for name in LOADERS):
            if file.is_file():
                return _load(file)
        raise ValueError(f"{path} holds no tokenizer ({', '.join(LOADERS)})")
    if not path.is_file():
        raise ValueError(
            f"there is no tokenizer {path}; give a folder, a run, a data set or a .model file"
        )
    return _load(path)


def _load(file: Path) -> Tokenizer:
    build = SentencePieceTokenizer if file.suffix == ".model" else LOADERS.get(file.name)
    if build is None:
        raise ValueError(f"{file} is not a tokenizer; known files: *.model, {', '.join(LOADERS)}")
    try:
        return build(file.read_bytes())
    except OtherSpecials as error:
        raise ValueError(f"{file}: {error}") from None
    except (ValueError, LookupError, TypeError, RuntimeError):
        raise ValueError(f"the tokenizer {file} is damaged") from None


def numerals_tokenizer() -> MorphemeTokenizer:
    """Returns the tokenizer of the built-in task `numerals`."""
    return MorphemeTokenizer(numerals.pieces())
