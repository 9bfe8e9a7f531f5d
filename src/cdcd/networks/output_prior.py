"""The output prior: what x alone says about each token is added to the logits, and need not be learnt.

logits_k += w·x·e_k / t²,        the exact ln N(x; e_k, t²) up to a constant, since all |e_k| are equal

For independent tokens the whole posterior is softmax(x·e/t² + ln prior); with it in the logits the network
has to learn the context alone (Gulrajani & Hashimoto, 2023). The weight w rises from 0 to 1 over the first
steps, and the noise level is at least one at which |e|²/t² is `most`: without the two, embeddings that are
not learnt yet dominate the loss.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cdcd.diffusion.interpolation import token_likelihoods


class OutputPrior(nn.Module):
    """Adds the likelihoods of the tokens to logits; its weight is part of a checkpoint."""

    weight: Tensor

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most
        self.register_buffer("weight", torch.zeros(1))

    def warm_up(self, step: int, num_steps: int) -> None:
        """Raises the weight to that of a step; it never falls, also in a run tuned from another."""
        self.weight.clamp_(min=min(1.0, (step + 1) / max(1, num_steps)))

    def forward(
        self,
        logits: Float[Tensor, "*positions vocab"],
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        table: Float[Tensor, "vocab embed"],
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions vocab"]:
        """Returns new logits; `x` is the network's input, scaled to unit variance."""
        weighted = self.weight * x * (t[:, None, None] ** 2 + 1).sqrt()
        likelihoods = token_likelihoods(weighted, t, table, positions, most=self.most)
        return logits + likelihoods.to(logits.dtype)
