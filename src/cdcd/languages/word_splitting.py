"""Words and punctuation marks: prose to a list of them, and back."""

import re
from collections.abc import Iterable

GLUE = "##"
"""Beginning of a piece that continues a word."""


def split_words(text: str) -> list[str]:
    """Returns the words and punctuation marks of a text, in order."""
    return re.findall(r"\w+|[^\w\s]", text)


def join_words(words: Iterable[str]) -> str:
    """Inverts `split_words` for plain prose: no space before a mark."""
    return re.sub(r" ([.,?!;:])", r"\1", " ".join(words))
