"""Cross-entropy of bfloat16 logits, computed in float32.

The gradient, softmax − one-hot, is made from the logits directly and stays in bfloat16.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.parts import in_parts


def cross_entropies(
    logits: Float[Tensor, "positions vocab"], targets: Int[Tensor, " positions"]
) -> Float[Tensor, " positions"]:
    """Returns the nats of each target, in float32 or better."""
    if logits.dtype != torch.bfloat16:
        return F.cross_entropy(logits, targets, reduction="none")
    return _CrossEntropies.apply(logits, targets)


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        normalisers = in_parts(lambda part: part.float().logsumexp(-1), logits)
        ctx.save_for_backward(logits, targets, normalisers)
        return normalisers - logits.gather(-1, targets[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return in_parts(_gradient, *ctx.saved_tensors, grads[0]), None


def _gradient(logits: Tensor, targets: Tensor, normalisers: Tensor, grads: Tensor) -> Tensor:
    columns = torch.arange(logits.shape[1], device=logits.device)
    probs = (logits.float() - normalisers[:, None]).exp()
    return ((probs - (columns == targets[:, None]).to(probs)) * grads[:, None]).to(logits.dtype)
