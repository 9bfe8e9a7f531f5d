"""Orders without memory: hashes of positions, and permutations that are computed where needed.

The order of an epoch is a keyed permutation of 0 … size − 1. It is a Feistel network on a grid of
about √size × √size: a position is written as (row, column), and each round adds to one of the two a
hash of the other, which can be undone, so the whole is a permutation of the grid. A position that
lands on the few cells of the grid beyond `size` goes through it again (cycle walking). Any part of
the order costs time for that part alone, and no memory, for billions of sequences.
"""

import hashlib
import math

import numpy as np
from jaxtyping import Int64, UInt64

ROUNDS = 8


def mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Returns a hash of each 64-bit integer (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def keys_for(*name: int | str, count: int) -> UInt64[np.ndarray, " count"]:
    """Returns up to eight keys of 64 bits that are a function of `name` alone."""
    digest = hashlib.blake2b(repr(name).encode(), digest_size=8 * count).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def permuted(
    positions: Int64[np.ndarray, " n"], size: int, keys: UInt64[np.ndarray, " rounds"]
) -> Int64[np.ndarray, " n"]:
    """Returns the images of positions under a permutation of 0 … size − 1, chosen by the keys."""
    num_rows = math.isqrt(size - 1) + 1
    num_columns = -(-size // num_rows)
    images = _permuted_grid(positions.astype(np.uint64), num_rows, num_columns, keys)
    outside = np.flatnonzero(images >= size)
    while len(outside):
        images[outside] = _permuted_grid(images[outside], num_rows, num_columns, keys)
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


def _permuted_grid(
    positions: UInt64[np.ndarray, " n"],
    num_rows: int,
    num_columns: int,
    keys: UInt64[np.ndarray, " rounds"],
) -> UInt64[np.ndarray, " n"]:
    rows, columns = np.divmod(positions, np.uint64(num_columns))
    for number, key in enumerate(keys):
        if number % 2:
            columns = (columns + mix(rows ^ key) % np.uint64(num_columns)) % np.uint64(num_columns)
        else:
            rows = (rows + mix(columns ^ key) % np.uint64(num_rows)) % np.uint64(num_rows)
    return rows * np.uint64(num_columns) + columns
