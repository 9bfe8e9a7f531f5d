"""Random generators that are functions of a seed and of what they are for.

The global generator stays untouched, except for dropout, which can use no other: a model with
dropout seeds it at every training step. The draws of a training step are a function of (seed, step),
those of a sample of its own seed: a resumed run repeats the uninterrupted one, and a sample does not
depend on its batch.
"""

import hashlib

import torch


def generator_for(*seed_path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a generator that is a function of `seed_path` alone, such as (seed, step, "masks")."""
    return torch.Generator(device).manual_seed(key_for(*seed_path))


def key_for(*seed_path: int | str) -> int:
    """Returns 63 bits that are a function of `seed_path` alone."""
    digest = hashlib.blake2b(repr(seed_path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
