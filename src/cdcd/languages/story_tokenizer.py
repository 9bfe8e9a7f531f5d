"""The tokenizer of llama2.c: pieces with scores, merged by the best score first, bytes where no piece fits.

Text is encoded with a space before it. Where merges have made a text's tokens they are its canonical
ones: `decode` maps other tokens to the same text, and a model gives these some probability too.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from cdcd.files import VOCABULARY_LIMIT, read_bounded

UNKNOWN, BEGIN, END = 0, 1, 2
FIRST_BYTE, FIRST_PIECE = 3, 259
WORD = re.compile(rb" *[^ ]+| +")
"""Stretches of a text that merges do not cross, since no piece has a space after a letter."""


class StoryTokenizer:
    """Encodes documents, which begin with `BEGIN` and end where the next begins."""

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        if any(b" " in piece.lstrip(b" ") for piece in pieces[FIRST_PIECE:]):
            raise ValueError(
                "a piece has a space after a letter: words cannot be merged on their own"
            )
        self.pieces, self.scores = pieces, scores
        self.vocab_size = len(pieces)
        self.tokens = {p: t for t, p in enumerate(pieces) if t >= FIRST_PIECE}
        self._merged = lru_cache(maxsize=1 << 18)(self._merge)

    @classmethod
    def read(cls, path: Path) -> "StoryTokenizer":
        """Reads tokenizer.bin: the longest piece, then score, length and bytes of each piece."""
        content = read_bounded(path, VOCABULARY_LIMIT)
        try:
            pairs = list(_entries(content))
            return cls([piece for piece, _ in pairs], [score for _, score in pairs])
        except (struct.error, ValueError) as error:
            raise ValueError(f"{path} is no tokenizer of llama2.c: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Returns the canonical tokens of a text, without `BEGIN`."""
        return self.encode_bytes(b" " + text.encode("utf-8", "surrogateescape")) if text else []

    def encode_bytes(self, text: bytes) -> list[int]:
        """Returns the canonical tokens of bytes, before which nothing is added."""
        return [token for word in WORD.findall(text) for token in self._merged(word)]

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """Returns the bytes of tokens, with the space before the text."""
        return b"".join(map(self.piece, tokens))

    def decode(self, tokens: Sequence[int]) -> str | None:
        """Returns the text of canonical tokens; None where tokens are not those of any text."""
        raw = self.decode_bytes(tokens)
        try:
            text = raw.removeprefix(b" ").decode("utf-8")
        except UnicodeDecodeError:
            return None
        return text if list(tokens) == self.encode(text) else None

    def piece(self, token: int) -> bytes:
        """Returns the bytes that a token stands for; control tokens stand for none."""
        if token < FIRST_BYTE:
            return b""
        return self.pieces[token] if token >= FIRST_PIECE else bytes([token - FIRST_BYTE])

    def _merge(self, word: bytes) -> tuple[int, ...]:
        """Merges the two neighbours whose piece has the best score until none is left to merge."""
        characters = word.decode("utf-8", "surrogateescape")
        tokens = [t for c in characters for t in self._character(c)]
        while merges := [
            (-self.scores[merged], index, merged)
            for index, pair in enumerate(pairwise(tokens))
            if (merged := self.tokens.get(self.decode_bytes(pair))) is not None
        ]:
            _, index, merged = min(merges)
            tokens[index : index + 2] = [merged]
        return tuple(tokens)

    def _character(self, character: str) -> list[int]:
        raw = character.encode("utf-8", "surrogateescape")
        token = self.tokens.get(raw)
        return [FIRST_BYTE + byte for byte in raw] if token is None else [token]


def _entries(content: bytes) -> Iterator[tuple[bytes, float]]:
    start = 4
    while start < len(content):
        score, length = struct.unpack_from("<fi", content, start)
        start += 8 + length
        if length < 0 or start > len(content):
            raise ValueError("it is cut short")
        yield content[start - length : start], score
