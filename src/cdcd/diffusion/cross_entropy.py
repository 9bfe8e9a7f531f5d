"""Cross-entropy of bfloat16 logits: computed in float32, a few thousand positions at a time.

At a vocabulary of 32,000 the logits are the largest tensor of a training step. They stay in the
network's precision, and so does their gradient, softmax − one-hot, which is made from them directly.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

CHUNK = 2**13
"""Positions that are held in float32 at a time, unless a kernel computes with each where it is."""
CHUNK_ON_CPU = 2**6
"""The same on a CPU, where they should stay in its cache."""


def cross_entropies(
    logits: Float[Tensor, "positions vocab"], targets: Int[Tensor, " positions"]
) -> Float[Tensor, " positions"]:
    """Nats of each target, in float32 or better."""
    if logits.dtype != torch.bfloat16:
        return F.cross_entropy(logits, targets, reduction="none")
    return _CrossEntropies.apply(logits, targets)


def positions_at_once(logits: Float[Tensor, "positions vocab"]) -> int:
    """How many positions to take at a time: all, where a compiler holds none of them in float32."""
    if torch.compiler.is_compiling():
        return max(1, len(logits))
    return CHUNK_ON_CPU if logits.is_cpu else CHUNK


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        size = positions_at_once(logits)
        parts = zip(logits.split(size), targets.split(size), strict=True)
        found = [_normaliser_and_picked(part, target) for part, target in parts]
        normalisers, picked = (torch.cat(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(logits, targets, normalisers)
        return normalisers - picked

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, targets, normalisers = ctx.saved_tensors
        columns = torch.arange(logits.shape[1], device=logits.device)
        size = positions_at_once(logits)
        parts = [tensor.split(size) for tensor in (logits, targets, normalisers, grads[0])]
        found = [_gradient(columns, *part) for part in zip(*parts, strict=True)]
        return torch.cat(found), None


def _normaliser_and_picked(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    return wide.logsumexp(-1), wide.gather(-1, targets[:, None])[:, 0]


def _gradient(
    columns: Tensor, logits: Tensor, targets: Tensor, normalisers: Tensor, grads: Tensor
) -> Tensor:
    probs = (logits.float() - normalisers[:, None]).exp()
    return ((probs - (columns == targets[:, None]).to(probs)) * grads[:, None]).to(logits.dtype)
