"""The longest passage that each sample shares with the training set.

A sample that shares n tokens in a row with the training set also shares n - 1, so its longest match
is found one binary digit at a time: does any of its windows of `length + step` tokens occur? Windows
are looked up by the hash

    h(i, n) = b^-i · Σ_{i ≤ j < i+n} r[token j] · b^j   (mod 2^64),

which prefix sums give for every i and n at once: b is odd, hence invertible, and r random. Every hit
is confirmed on the tokens themselves, so equal hashes of unequal windows never make a match; that
they hide one has a chance near 2^-64.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer, UInt64
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

CHUNK = 2**18
"""Training tokens hashed at a time: their arrays stay in the processor's cache."""
BASE = 0x9E3779B97F4A7C15
"""b: odd, with bits as good as random."""
SLOTS_PER_WINDOW = 16
"""Size of the table that turns most training windows away without a search."""


@dataclass(frozen=True)
class MatchSummary:
    """How much of a set of samples stands in the training set."""

    mean: float
    """Mean over samples of the longest match, in tokens."""
    median: float
    maximum: int
    copied_share: float
    """Samples whose whole generated part stands in the training set, in one piece."""


def summarise_matches(
    lengths: Int[Tensor, " samples"], is_generated: Bool[Tensor, "samples seq"]
) -> MatchSummary:
    """Mean, median and maximum of the longest matches, and the share of samples that are copies.

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
    """Per sample, the most adjacent generated tokens that stand in a row in one training array.

    The arrays hold integer tokens in one dimension and may be memory maps: a stretch at a time is
    read, several times over. Documents joined in one array are one text here.
    """
    texts = [_checked(text) for text in training]
    ours = tokens.cpu().numpy()
    samples = _Samples(ours, is_generated.cpu().numpy(), _Mixer(ours))
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
    """Falling, so that their partial sums reach every length up to the limit."""
    return [2**k for k in reversed(range(limit.bit_length()))]


class _Mixer:
    """The hash: random numbers for the samples' tokens, one for all others, and powers of b."""

    def __init__(self, tokens: Int[np.ndarray, "samples seq"]) -> None:
        size = int(tokens.max(initial=0)) + 2
        rng = np.random.default_rng(0)
        self.numbers = rng.integers(2**64, size=size, dtype=np.uint64)
        self.powers = _powers(BASE, CHUNK + tokens.shape[1])
        self.inverses = _powers(pow(BASE, -1, 2**64), CHUNK + tokens.shape[1])

    def prefix_sums(self, tokens: np.ndarray) -> UInt64[np.ndarray, "*batch more"]:
        """Σ_{j < i} r[token j] · b^j for i = 0 … seq."""
        terms = self.numbers.take(tokens, mode="clip") * self.powers[: tokens.shape[-1]]
        sums = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.uint64)
        np.cumsum(terms, axis=-1, out=sums[..., 1:])
        return sums

    def hashes(self, sums: np.ndarray, length: int) -> UInt64[np.ndarray, "*batch windows"]:
        """The hash of every window, from prefix sums."""
        differences = sums[..., length:] - sums[..., :-length]
        differences *= self.inverses[: differences.shape[-1]]
        return differences


@dataclass(frozen=True)
class _Samples:
    tokens: Int[np.ndarray, "samples seq"]
    is_generated: Bool[np.ndarray, "samples seq"]
    mixer: _Mixer


@dataclass(frozen=True)
class _Windows:
    """Windows of one length, sorted by hash: those of samples that may still have a match."""

    length: int
    hashes: UInt64[np.ndarray, " windows"]
    owners: Int[np.ndarray, " windows"]
    """The sample of each window."""
    starts: Int[np.ndarray, " windows"]
    table: Bool[np.ndarray, " slots"]
    """True in the slot of each hash."""

    def without(self, matched: Bool[np.ndarray, " samples"]) -> "_Windows":
        is_open = ~matched[self.owners]
        hashes = self.hashes[is_open]
        return replace(
            self,
            hashes=hashes,
            owners=self.owners[is_open],
            starts=self.starts[is_open],
            table=_table(hashes),
        )


def _occur(
    samples: _Samples, wanted: Int[np.ndarray, " samples"], texts: Sequence[np.ndarray]
) -> Bool[np.ndarray, " samples"]:
    """For each sample, whether any of its windows of the wanted length stands in the texts."""
    matched = np.zeros(len(wanted), bool)
    seq = samples.tokens.shape[1]
    searches = [_windows(samples, wanted, int(n)) for n in np.unique(wanted) if n <= seq]
    for chunk in _chunks(texts, overlap=seq - 1):
        searches = [search for search in searches if len(search.hashes)]
        if not searches:
            break
        sums = samples.mixer.prefix_sums(chunk)
        for i, search in enumerate(searches):
            hashes = samples.mixer.hashes(sums, search.length)
            places, positions = _look_up(search, hashes)
            if len(places):
                found = sliding_window_view(chunk, search.length)[positions]
                matched[_confirmed_owners(search, places, found, samples.tokens)] = True
                searches[i] = search.without(matched)
    return matched


def _chunks(texts: Sequence[np.ndarray], overlap: int) -> Iterator[np.ndarray]:
    """Stretches of the texts such that every window lies in one of them."""
    for text in texts:
        for start in range(0, max(len(text) - overlap, 1), CHUNK):
            yield np.asarray(text[start : start + CHUNK + overlap])


def _powers(base: int, count: int) -> UInt64[np.ndarray, " count"]:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _windows(samples: _Samples, wanted: np.ndarray, length: int) -> _Windows:
    """The generated windows of the samples that want this length."""
    rows = np.flatnonzero(wanted == length)
    tokens = samples.tokens[rows]
    counts = np.pad(samples.is_generated[rows].cumsum(1), ((0, 0), (1, 0)))
    owners, starts = np.nonzero(counts[:, length:] - counts[:, :-length] == length)
    sums = samples.mixer.prefix_sums(tokens)
    hashes = samples.mixer.hashes(sums, length)[owners, starts]
    order = hashes.argsort()
    hashes = hashes[order]
    return _Windows(length, hashes, rows[owners[order]], starts[order], _table(hashes))


def _table(hashes: np.ndarray) -> Bool[np.ndarray, " slots"]:
    """True in the slot of each hash; their number is a power of two."""
    table = np.zeros(2 ** (SLOTS_PER_WINDOW * max(len(hashes), 1)).bit_length(), bool)
    table[_slots(hashes, table)] = True
    return table


def _slots(hashes: np.ndarray, table: np.ndarray) -> Int[np.ndarray, " hashes"]:
    """By the highest bits, which depend on all others."""
    shift = np.uint64(64 - (len(table).bit_length() - 1))
    return (hashes >> shift).view(np.int64)


def _look_up(
    windows: _Windows, hashes: UInt64[np.ndarray, " positions"]
) -> tuple[Int[np.ndarray, " hits"], Int[np.ndarray, " hits"]]:
    """Which hashes of windows are among these: the first window of each, and a position of it."""
    candidates = np.flatnonzero(windows.table.take(_slots(hashes, windows.table)))
    places = np.searchsorted(windows.hashes, hashes[candidates])
    is_hit = windows.hashes.take(places, mode="clip") == hashes[candidates]
    places, firsts = np.unique(places[is_hit], return_index=True)
    return places, candidates[is_hit][firsts]


def _confirmed_owners(
    windows: _Windows,
    places: Int[np.ndarray, " hits"],
    found: Integer[np.ndarray, "hits length"],
    tokens: Int[np.ndarray, "samples seq"],
) -> Int[np.ndarray, " owners"]:
    """The samples that have, token for token, a window found under its hash: one each is compared."""
    hits = windows.hashes[places]
    sharing = np.flatnonzero(np.isin(windows.hashes, hits))
    owners, firsts = np.unique(windows.owners[sharing], return_index=True)
    sharing = sharing[firsts]
    theirs = found[np.searchsorted(hits, windows.hashes[sharing])]
    inside = windows.starts[sharing, None] + np.arange(windows.length)
    return owners[(theirs == tokens[owners[:, None], inside]).all(1)]
