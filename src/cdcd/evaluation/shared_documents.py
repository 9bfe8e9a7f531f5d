"""Documents that two bodies of text share, whatever their files, splits, tokenizers and units.

Texts are compared without their white space, which some tokenizers write anew. A document is known by
the hashes of passages of `PASSAGE` bytes, chosen by the hashes themselves, one in `RATE`: so copies of
a passage are chosen in both texts, wherever their documents begin and end.
"""

import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int, UInt64

from cdcd.metrics.matches import RollingHash

PASSAGE, RATE = 128, 32
BLOCK = 2**20
"""Most bytes, and most hashes, that are handled at once."""
MOST_UNKNOWN = 0.5
"""Share of its passages that a shared document may have for itself."""


HASH = RollingHash(256, BLOCK)


def letters(text: str) -> str:
    """Returns a text without its white space, and without the differences between forms of one letter."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def fingerprints(text: str) -> UInt64[np.ndarray, " passages"]:
    """Returns hashes of passages of a text; of a short text the hash of all of it."""
    raw = np.frombuffer(letters(text).encode("utf-8", "surrogatepass"), np.uint8)
    parts = [_passages(raw[start : start + BLOCK]) for start in range(0, len(raw), BLOCK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _passages(raw: np.ndarray) -> UInt64[np.ndarray, " passages"]:
    hashes = HASH.windows(HASH.prefix_sums(raw), min(PASSAGE, len(raw)))
    high = hashes >> np.uint64(32)
    is_chosen = high < 2**32 // RATE
    return hashes[is_chosen] if is_chosen.any() else hashes[[high.argmin()]]


class Fingerprints:
    """The passages of a body of text, and which document each stands in; empty documents do not count."""

    def __init__(self, documents: Iterable[str]) -> None:
        parts = [part for part in map(fingerprints, documents) if len(part)]
        lengths = np.array([len(part) for part in parts], np.int64)
        self.num_documents = len(parts)
        self.hashes = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        self.owners: Int[np.ndarray, " passages"] = np.repeat(np.arange(len(parts)), lengths)

    def num_shared(self, is_known: np.ndarray) -> int:
        """Counts the documents of which enough passages are known."""
        num_passages = np.bincount(self.owners, minlength=self.num_documents)
        num_known = np.bincount(self.owners[is_known], minlength=self.num_documents)
        return int((num_known >= (1 - MOST_UNKNOWN) * num_passages).sum())


def count_shared(bodies: Iterable[Fingerprints], documents: Iterable[str]) -> list[int]:
    """Counts the documents of each body of text that stand among other documents, which are read once."""
    bodies = list(bodies)
    is_known = [np.zeros(len(body.hashes), bool) for body in bodies]
    for hashes in _blocks(documents):
        for body, known in zip(bodies, is_known, strict=True):
            known |= np.isin(body.hashes, hashes)
    return [body.num_shared(known) for body, known in zip(bodies, is_known, strict=True)]


def _blocks(documents: Iterable[str]) -> Iterator[UInt64[np.ndarray, " passages"]]:
    """Yields the hashes of all passages, many at a time."""
    parts, count = [np.zeros(0, np.uint64)], 0
    for text in documents:
        parts.append(fingerprints(text))
        count += len(parts[-1])
        if count >= BLOCK:
            yield np.concatenate(parts)
            parts, count = parts[:1], 0
    yield np.concatenate(parts)
