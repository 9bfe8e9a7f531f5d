"""Tokenizers: text to tokens and back. Token 0 pads, token 1 ends a document, token 2 is unknown.

* `SentencePieceTokenizer` is the paper's: unigram pieces with byte fallback, learnt from the corpus.
* `WordTokenizer` has a list of words, for languages that are small.
* `SymbolTokenizer` has a list of symbols between white space: chess moves, chords.
* `MorphemeTokenizer` has a list of words and parts of words, for a language that compounds them.
* `ByteTokenizer` takes the bytes as they are: molecules, or text in any encoding.

Bytes that are not UTF-8 are lone surrogates in a `str` (PEP 383). Pieces and bytes keep them, words
and symbols make them unknown. `decode` replaces them by U+FFFD unless errors="surrogateescape" asks
for them back. `tokenizer_learning` learns vocabularies.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from cdcd.data.vocabulary import EOS, PAD, SPECIALS, UNKNOWN
from cdcd.files import VOCABULARY_LIMIT, parse_json, read_bounded
from cdcd.languages import numerals
from cdcd.languages.word_splitting import GLUE, join_words, split_words

LONGEST = 60
"""Characters of an unknown word that an error shows."""
UNDECODABLE = re.compile("[\udc80-\udcff]")
# SentencePiece takes the character ▁ for a space, and refuses what is not UTF-8.
BYTE_WISE = re.compile("([\udc80-\udcff▁]+)")


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of every tokenizer."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = "json"

    vocab_size: int
    content: bytes
    """The content of the tokenizer's file; the tokenizer is a function of it."""

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        """Returns the tokens of a text; where `strict`, an unknown word raises an error."""
        ...

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str: ...
    def piece(self, token: int) -> str:
        """Returns one token as a person would read it."""
        ...

    def save(self, folder: Path) -> None:
        (folder / f"{self.kind}.{self.suffix}").write_bytes(self.content)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest type for tokens on disk: little-endian, unsigned."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def is_utf8(text: str) -> bool:
    """Returns whether a text has no bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Returns a SHA-256 that is equal if and only if the tokenizer gives the same tokens."""
    return hashlib.sha256(tokenizer.content).hexdigest()


class WordTokenizer(Tokenizer):
    """Words and punctuation marks, from a fixed list."""

    kind: ClassVar[str] = "words"
    noun: ClassVar[str] = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIALS, *words)
        # Without the specials: "<eos>" in a text does not end it.
        self.index = {word: token for token, word in enumerate(words, start=len(SPECIALS))}
        if len({*self.words}) != len(self.words):
            raise ValueError(f"the {self.noun}s of a {type(self).__name__} must be distinct")
        self.vocab_size = len(self.words)
        self.content = json.dumps({self.kind: words}, ensure_ascii=False, indent=0).encode("utf-8")

    split = staticmethod(split_words)
    join = staticmethod(join_words)

    def pieces(self, text: str) -> list[str]:
        """Returns the words of a text, in the list or not."""
        return self.split(text)

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        words = self.pieces(text)
        if strict and (missing := [word for word in words if word not in self.index]):
            word = missing[0] if len(missing[0]) <= LONGEST else f"{missing[0][:LONGEST]}…"
            near = difflib.get_close_matches(word, self.words[len(SPECIALS) :], n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ValueError(f"the {self.noun} {word!r} is not in the model's vocabulary{hint}")
        find = self.index.get
        return [find(word, UNKNOWN) for word in words]

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        return self.join(self.words[token] for token in tokens if token not in (PAD, EOS))

    def piece(self, token: int) -> str:
        return self.words[token]


class SymbolTokenizer(WordTokenizer):
    """Symbols between white space, from a fixed list."""

    kind: ClassVar[str] = "symbols"
    noun: ClassVar[str] = "symbol"

    split = staticmethod(str.split)
    join = staticmethod(" ".join)


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


class ByteTokenizer(Tokenizer):
    """The bytes of a text, each a token; lossless for anything."""

    kind: ClassVar[str] = "bytes"
    vocab_size = len(SPECIALS) + 256
    content = b'{"bytes": 256}'

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        return [byte + len(SPECIALS) for byte in text.encode("utf-8", "surrogateescape")]

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        raw = bytes(token - len(SPECIALS) for token in tokens if token >= len(SPECIALS))
        return raw.decode("utf-8", errors)

    def piece(self, token: int) -> str:
        if token < len(SPECIALS):
            return SPECIALS[token]
        byte = token - len(SPECIALS)
        return chr(byte) if 32 <= byte < 127 else f"<0x{byte:02X}>"


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece unigram pieces with byte fallback (§6.1)."""

    kind: ClassVar[str] = "sentencepiece"
    suffix: ClassVar[str] = "model"

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.content = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size: int = self.processor.get_piece_size()
        self._check_specials()
        self._byte_tokens = self.processor.piece_to_id([f"<0x{byte:02X}>" for byte in range(256)])

    def _check_specials(self) -> None:
        pad, eos, unk = self.processor.pad_id(), self.processor.eos_id(), self.processor.unk_id()
        if (pad, eos, unk) != (PAD, EOS, UNKNOWN):
            raise ValueError(
                f"the SentencePiece model has pad {pad}, eos {eos}, unk {unk}; it needs pad {PAD}, "
                f"eos {EOS}, unk {UNKNOWN}: train it with --pad_id={PAD} --eos_id={EOS} "
                f"--unk_id={UNKNOWN} --bos_id=-1"
            )

    def encode(self, text: str, *, strict: bool = False) -> list[int]:
        if "▁" not in text and is_utf8(text):
            return self.processor.encode(text)
        tokens: list[int] = []
        for i, stretch in enumerate(BYTE_WISE.split(text)):
            if i % 2:
                tokens += [self._byte_tokens[b] for b in stretch.encode("utf-8", "surrogateescape")]
            else:
                tokens += self.processor.encode(stretch)
        return tokens

    def decode(self, tokens: Sequence[int], *, errors: str = "replace") -> str:
        kept = [int(token) for token in tokens if token not in (PAD, EOS)]
        text = self.processor.decode(kept)
        if errors == "replace" or "\ufffd" not in text:
            return text
        runs = groupby(kept, self.processor.is_byte)
        return b"".join(self._raw(is_byte, run) for is_byte, run in runs).decode("utf-8", errors)

    def _raw(self, is_byte: bool, tokens: Iterable[int]) -> bytes:
        if is_byte:
            return bytes(int(self.piece(token)[1:-1], 16) for token in tokens)
        return self.processor.decode(list(tokens)).encode("utf-8")

    def piece(self, token: int) -> str:
        return self.processor.id_to_piece(token)


def numerals_tokenizer() -> MorphemeTokenizer:
    """Returns the tokenizer of the built-in task `numerals`."""
    return MorphemeTokenizer(numerals.pieces())


LOADERS: dict[str, Callable[[bytes], Tokenizer]] = {
    "sentencepiece.model": SentencePieceTokenizer,
    "words.json": lambda content: WordTokenizer(_listed(content, "words")),
    "symbols.json": lambda content: SymbolTokenizer(_listed(content, "symbols")),
    "morphemes.json": lambda content: MorphemeTokenizer(_listed(content, "morphemes")),
    "bytes.json": lambda content: ByteTokenizer(),
}
"""For each name of a tokenizer's file, the tokenizer of its content."""


def _listed(content: bytes, kind: str) -> list[str]:
    """Returns the words in the content of a tokenizer's file."""
    words = parse_json(content)[kind]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"its {kind} are not a list of texts")
    return words


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads a tokenizer from its file or folder, or from the run or data set that holds it.

    A file of any name that ends in .model is read as one of SentencePiece.
    """
    if path.is_dir():
        return _load(tokenizer_file(path))
    if not path.is_file():
        raise ValueError(
            f"there is no tokenizer {path}; give sentencepiece, words, symbols or bytes to make one, or "
            f"a folder, a run, a data set or a .model file to take one over"
        )
    return _load(path)


def tokenizer_file(path: Path) -> Path:
    """Returns the file of the tokenizer in a folder, a run or a data set."""
    for file in (folder / name for folder in (path, path / "tokenizer") for name in LOADERS):
        if file.is_file():
            return file
    raise ValueError(f"{path} holds no tokenizer ({', '.join(LOADERS)})")


def _load(file: Path) -> Tokenizer:
    build = SentencePieceTokenizer if file.suffix == ".model" else LOADERS.get(file.name)
    if build is None:
        raise ValueError(f"{file} is not a tokenizer; known files: *.model, {', '.join(LOADERS)}")
    try:
        return build(read_bounded(file, VOCABULARY_LIMIT))
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(f"the tokenizer {file} is damaged or unfit: {error}") from None
