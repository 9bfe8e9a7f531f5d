"""The longest passage that each sample shares with the training set.

A sample that shares n tokens in a row with the training set also shares n - 1, so the length of its
longest match is found one binary digit at a time: does any of its windows of `length + step` tokens
occur? Windows are compared by the hash

    h(i, n) = b^-i · Σ_{i ≤ j < i+n} r[token j] · b^j   (mod 2^64),

which prefix sums give for every i and n at once: b is odd, hence invertible, and r random. Of N windows
of samples and M of the training set some unequal ones share a hash with a chance near N·M / 2^64: one in
a hundred thousand for 10^5 windows and 10^9 training tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt64
from torch import Tensor

CHUNK = 2**18
"""Training tokens hashed at a time: their arrays stay in the processor's cache."""
BASE = 0x9E3779B97F4A7C15
"""b: odd, with bits as good as random."""
SLOTS_PER_WINDOW = 16
"""Size of the table that turns most training windows away without a search."""


@dataclass(frozen=True)
class MatchSummary:
    """The part of a set of samples that stands in the training set."""

    mean: float
    """Mean over samples of the longest match, in tokens."""
    median: float
    maximum: int
    copied_share: float
    """Samples whose whole generated part stands in the training set, in one piece."""


def summarise_matches(
    lengths: Int[Tensor, " samples"], is_generated: Bool[Tensor, "samples seq"]
) -> MatchSummary:
    """Computes mean, median and maximum of the longest matches, and the share of copied samples.

    A sample with nothing generated is no copy, nor is one whose generated positions are apart.
    """
    if not len(lengths):
        raise ValueError("lengths has 0 samples; at least 1 is needed: generate some text first")
    num_generated = is_generated.sum(1).to(lengths.device)
    is_copied = (lengths == num_generated) & (num_generated > 0)
    return MatchSummary(
        mean=float(lengths.double().mean()),
        median=float(lengths.double().quantile(0.5)),
        maximum=int(lengths.max()),
        copied_share=float(is_copied.double().mean()),
    )


def longest_matches(
    tokens: Int[Tensor, "samples seq"],
    is_generated: Bool[Tensor, "samples seq"],
    training: Iterable[np.ndarray],
) -> Int[Tensor, " samples"]:
    """Returns, per sample, the most adjacent generated tokens that stand in a row in one training array.

    The arrays hold integer tokens in one dimension and may be memory maps: they are read in chunks,
    several times over. Documents joined in one array are one text here.
    """
    texts = [_checked(text) for text in training]
    ours = tokens.cpu().numpy()
    hashes = RollingHash(int(ours.max(initial=0)) + 1, CHUNK + ours.shape[1])
    samples = _Samples(ours, is_generated.cpu().numpy(), hashes)
    lengths = np.zeros(len(tokens), np.int64)
    for step in _powers_of_two_up_to(tokens.shape[1]):
        lengths += step * _occur(samples, lengths + step, texts)
    return torch.from_numpy(lengths).to(tokens.device)


def _checked(text: np.ndarray) -> np.ndarray:
    if text.ndim != 1 or not np.issubdtype(text.dtype, np.integer):
        raise ValueError(
            f"a training array has shape {text.shape} and type {text.dtype}; integers in one "
            "dimension are needed: flatten and cast it"
        )
    return text


def _powers_of_two_up_to(limit: int) -> list[int]:
    """Lists them in falling order: their partial sums reach every length up to the limit."""
    return [2**k for k in reversed(range(limit.bit_length()))]


class RollingHash:
    """Hashes of all windows of a text: random numbers for its tokens, one for all higher ones, and powers of b."""

    def __init__(self, num_tokens: int, longest: int) -> None:
        rng = np.random.default_rng(0)
        self.numbers = rng.integers(2**64, size=num_tokens + 1, dtype=np.uint64)
        self.powers = _powers(BASE, longest)
        self.inverses = _powers(pow(BASE, -1, 2**64), longest)

    def prefix_sums(self, tokens: np.ndarray) -> UInt64[np.ndarray, "*batch more"]:
        """Returns Σ_{j < i} r[token j] · b^j for i = 0 … seq."""
        terms = self.numbers.take(tokens, mode="clip") * self.powers[: tokens.shape[-1]]
        sums = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.uint64)
        np.cumsum(terms, axis=-1, out=sums[..., 1:])
        return sums

    def windows(self, sums: np.ndarray, length: int) -> UInt64[np.ndarray, "*batch windows"]:
        """Returns the hash of every window, from prefix sums."""
        differences = sums[..., length:] - sums[..., :-length]
        differences *= self.inverses[: differences.shape[-1]]
        return differences


def _powers(base: int, count: int) -> UInt64[np.ndarray, " count"]:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


@dataclass(frozen=True)
class _Samples:
    tokens: Int[np.ndarray, "samples seq"]
    is_generated: Bool[np.ndarray, "samples seq"]
    hash: RollingHash


class _Search:
    """The windows of one length whose samples have no match of this length yet, sorted by hash."""

    def __init__(
        self,
        length: int,
        hashes: UInt64[np.ndarray, " windows"],
        owners: Int[np.ndarray, " windows"],
    ) -> None:
        self.length, self.hashes, self.owners = length, hashes, owners
        # True in the slot of each hash. The number of slots is a power of two.
        self.table = np.zeros(2 ** (SLOTS_PER_WINDOW * max(len(hashes), 1)).bit_length(), bool)
        self.table[self._slots(hashes)] = True

    def _slots(self, hashes: np.ndarray) -> Int[np.ndarray, " hashes"]:
        """Returns the highest bits, which depend on all others."""
        shift = np.uint64(64 - (len(self.table).bit_length() - 1))
        return (hashes >> shift).view(np.int64)

    def owners_among(self, hashes: UInt64[np.ndarray, " hashes"]) -> Int[np.ndarray, " owners"]:
        """Returns the samples that own a window with one of these hashes."""
        candidates = hashes[self.table.take(self._slots(hashes))]
        nearest = self.hashes.take(np.searchsorted(self.hashes, candidates), mode="clip")
        hits = candidates[nearest == candidates]
        return self.owners[np.isin(self.hashes, hits)] if len(hits) else self.owners[:0]

    def without(self, owners: Int[np.ndarray, " owners"]) -> "_Search":
        """Returns the search without the windows of these samples."""
        is_open = ~np.isin(self.owners, owners)
        return _Search(self.length, self.hashes[is_open], self.owners[is_open])


def _occur(
    samples: _Samples, wanted: Int[np.ndarray, " samples"], texts: Sequence[np.ndarray]
) -> Bool[np.ndarray, " samples"]:
    """Tells for each sample if any of its windows of the wanted length stands in the texts."""
    is_matched = np.zeros(len(wanted), bool)
    seq = samples.tokens.shape[1]
    searches = [_search(samples, wanted, int(n)) for n in np.unique(wanted) if n <= seq]
    for chunk in _chunks(texts, overlap=seq - 1):
        searches = [search for search in searches if len(search.hashes)]
        if not searches:
            break
        sums = samples.hash.prefix_sums(chunk)
        for i, search in enumerate(searches):
            owners = search.owners_among(samples.hash.windows(sums, search.length))
            if len(owners):
                is_matched[owners] = True
                searches[i] = search.without(owners)
    return is_matched


def _chunks(texts: Sequence[np.ndarray], overlap: int) -> Iterator[np.ndarray]:
    """Yields stretches of the texts such that every window lies in one of them."""
    for text in texts:
        for start in range(0, max(len(text) - overlap, 1), CHUNK):
            yield np.asarray(text[start : start + CHUNK + overlap])


def _search(samples: _Samples, wanted: np.ndarray, length: int) -> _Search:
    """Collects the generated windows of the samples that want this length."""
    rows = np.flatnonzero(wanted == length)
    counts = np.pad(samples.is_generated[rows].cumsum(1), ((0, 0), (1, 0)))
    owners, starts = np.nonzero(counts[:, length:] - counts[:, :-length] == length)
    sums = samples.hash.prefix_sums(samples.tokens[rows])
    hashes = samples.hash.windows(sums, length)[owners, starts]
    order = hashes.argsort()
    return _Search(length, hashes[order], rows[owners[order]])
