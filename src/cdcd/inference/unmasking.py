"""Sampling of masked diffusion: all tokens are masked at first, and are drawn in steps from those that are not.

The exact ancestral sampler unmasks each token at a time of its own, uniform in [0, 1]. In equal steps of time
the number of tokens that fall into a step varies; here it is the same in every step, their order is as random,
and no step is empty. With as many steps as tokens, one at a time, there is nothing to choose between the two: no
token is drawn without knowing the others, and the samples have the distribution of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.logits import noisy_positions, put
from cdcd.diffusion.masked import MaskedNetwork, UnmaskingConfig
from cdcd.inference.rounds import Predicted, choose, fill_in_rounds


@dataclass(frozen=True)
class UnmaskingStep:
    """A step before its tokens are drawn, as a callback gets it."""

    index: int
    num_steps: int
    tokens: Int[Tensor, "batch seq"]
    is_masked: Bool[Tensor, "batch seq"]
    logits: Float[Tensor, "masked vocab"]
    """Those of the masked tokens."""

    @property
    def t(self) -> float:
        """The share of the tokens that are masked."""
        return float(self.is_masked.float().mean())

    @property
    def probabilities(self) -> Float[Tensor, "batch seq vocab"]:
        """Those of all tokens; visible ones are certain."""
        probs = torch.softmax(self.logits.float(), dim=-1)
        positions = noisy_positions(self.is_masked, len(probs))
        visible = F.one_hot(self.tokens.masked_fill(self.is_masked, 0), probs.shape[-1])
        predicted = put(probs, positions, self.is_masked.shape)
        return torch.where(self.is_masked[..., None], predicted, visible.to(probs))


@torch.no_grad()
def unmask(
    network: MaskedNetwork,
    tokens: Int[Tensor, "batch seq"],
    is_masked: Bool[Tensor, "batch seq"],
    config: UnmaskingConfig,
    *,
    u: Float[Tensor, "batch seq"],
    order: Float[Tensor, "batch seq"],
    callback: Callable[[UnmaskingStep], None] | None = None,
) -> Predicted:
    """Draws the masked tokens at the uniform numbers `u`, in the order of the numbers `order` or by confidence."""
    num_steps = min(config.num_steps, int(is_masked.sum(1).max()))

    def predict(
        index: int, tokens: Int[Tensor, "batch seq"], is_masked: Bool[Tensor, "batch seq"]
    ) -> Float[Tensor, "masked vocab"]:
        positions = noisy_positions(is_masked, int(is_masked.sum()))
        logits = network(tokens, is_masked, positions=positions)
        if callback is not None:
            callback(UnmaskingStep(index, num_steps, tokens, is_masked, logits))
        return logits

    chosen = partial(choose, temperature=config.temperature, nucleus=config.nucleus)
    by_confidence = config.order == "confidence"
    return fill_in_rounds(
        predict, chosen, tokens, is_masked, u, num_steps, order=None if by_confidence else order
    )
