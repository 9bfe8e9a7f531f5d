"""Where randomness comes from: every generator is derived from a seed and a place.

The global generator is never touched, but for dropout, which knows no other: it is seeded at every
training step of a model that has any. A training step's draws are a function of (seed, step), a
sample's of its own seed, so a resumed run is the same run and a sample does not depend on its batch.
"""

import hashlib

import torch


def generator_for(*place: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that is a function of `place` alone, for example (seed, step, "masks")."""
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
