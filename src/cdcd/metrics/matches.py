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
    texts, ours, seq = list(training), tokens.cpu().numpy(), tokens.shape[1]
    hashing = RollingHash(int(ours.max(initial=0)) + 1, CHUNK + seq)
    sums = hashing.prefix_sums(ours)
    generated = np.pad(is_generated.cpu().numpy().cumsum(1), ((0, 0), (1, 0)))
    lengths = np.zeros(len(tokens), np.int64)
    # The partial sums of falling powers of two reach every length.
    for step in (2**k for k in reversed(range(seq.bit_length()))):
        wanted = lengths + step
        windows = []
        for length in (int(n) for n in np.unique(wanted) if n <= seq):
            is_whole = generated[:, length:] - generated[:, :-length] == length
            owners, starts = np.nonzero(is_whole & (wanted == length)[:, None])
            hashes = hashing.windows(sums, length)[owners, starts]
            windows.append(_Windows(length, hashes, owners))
        matched = _owners_of_matches(windows, _chunks(texts, overlap=seq - 1), hashing)
        lengths[matched] += step
    return torch.from_numpy(lengths).to(tokens.device)


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


class _Windows:
    """The windows of one length whose samples have no match of this length yet."""

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
        return self.owners[np.isin(self.hashes, candidates)]

    def without(self, owners: Int[np.ndarray, " owners"]) -> "_Windows":
        """Returns the windows of other samples than these."""
        is_open = ~np.isin(self.owners, owners)
        return _Windows(self.length, self.hashes[is_open], self.owners[is_open])


def _owners_of_matches(
    windows: list[_Windows], chunks: Iterable[np.ndarray], hashing: RollingHash
) -> Int[np.ndarray, " matched"]:
    """Returns the samples one of whose windows stands in the training text."""
    matched = [np.zeros(0, np.int64)]
    for chunk in chunks:
        windows = [each for each in windows if len(each.hashes)]
        if not windows:
            break
        sums = hashing.prefix_sums(chunk)
        for i, each in enumerate(windows):
            owners = each.owners_among(hashing.windows(sums, each.length))
            if len(owners):
                matched.append(owners)
                windows[i] = each.without(owners)
    return np.unique(np.concatenate(matched))


def _chunks(texts: Sequence[np.ndarray], overlap: int) -> Iterator[np.ndarray]:
    """Yields stretches of the texts such that every window lies in one of them."""
    for text in texts:
        for start in range(0, max(len(text) - overlap, 1), CHUNK):
            yield np.asarray(text[start : start + CHUNK + overlap])
