"""Random numbers of stochastic solvers: functions of (key of a sample, step), whatever the batch.

Each number is the hash of a counter, SplitMix64 of Steele et al. (2014), so all of a batch are computed at
once on its own device, and none is kept. Generators for each sample and step would draw them one after another.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.solvers import StepNoise

WEYL = 0x9E3779B97F4A7C15 - 2**64
"""The increment of the counter; products of 64-bit integers are modulo 2^64."""
MIXED = (30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)
FOR_NOISE, FOR_TOKENS = 0, 1
BITS = 24
"""Bits of a uniform number, as float32 has them."""


def step_noise(
    keys: Int[Tensor, " batch"], step: int, like: Float[Tensor, "batch seq embed"]
) -> StepNoise:
    """Returns the random numbers of a step for samples of some keys, in the shape of x."""
    _, length, dim = like.shape
    eps = normal_numbers(keys, 2 * step + FOR_NOISE, length * dim).to(like)
    u = uniform_numbers(keys, 2 * step + FOR_TOKENS, length).to(like)
    return StepNoise(eps.view_as(like), u)


def normal_numbers(
    keys: Int[Tensor, " batch"], stream: int, count: int
) -> Float[Tensor, "batch count"]:
    """Returns standard normal numbers in float64, two from each hash (Box and Muller)."""
    bits = hashes(keys, stream, (count + 1) // 2)
    # The first is not 0, so that its logarithm is finite.
    radius = (-2 * _uniform(bits, 1.0).log()).sqrt()
    angle = 2 * math.pi * _uniform(bits << 32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def uniform_numbers(
    keys: Int[Tensor, " batch"], stream: int, count: int
) -> Float[Tensor, "batch count"]:
    """Returns uniform numbers in [0, 1) in float64."""
    return _uniform(hashes(keys, stream, count))


def hashes(keys: Int[Tensor, " batch"], stream: int, count: int) -> Int[Tensor, "batch count"]:
    """Returns 64 random bits for each number of a stream of each key."""
    start = mix(keys ^ mix(torch.full_like(keys, stream)))
    return mix(start[:, None] + WEYL * torch.arange(count, device=keys.device))


def mix(values: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Returns the output of SplitMix64 for each counter."""
    for shift, factor in MIXED:
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def _uniform(bits: Int[Tensor, "*batch"], plus: float = 0.0) -> Float[Tensor, "*batch"]:
    """Returns the highest bits as a number in [0, 1), or in (0, 1] with 1 added to them."""
    return (_shifted(bits, 64 - BITS).double() + plus) / 2**BITS


def _shifted(values: Int[Tensor, "*batch"], by: int) -> Int[Tensor, "*batch"]:
    """Shifts the bits to the right; zeros follow."""
    return (values >> by) & ((1 << (64 - by)) - 1)
