"""Exact estimators: what a perfect network would answer, for languages with known likelihood.

For a Markov chain observed in Gaussian noise, p(token i | x, t) follows by forward–backward. The
oracle is an estimator like any other, so every solver, mask and plot can run on it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.diffusion.estimator import Estimate
from cdcd.languages.markov import MarkovChain


@dataclass(frozen=True)
class MarkovOracle:
    """The exact posterior of a Markov chain's tokens, given a noisy sequence and some given tokens."""

    chain: MarkovChain
    table: Float[Tensor, "states embed"]
    tokens: Int[Tensor, "batch seq"]
    is_noisy: Bool[Tensor, "batch seq"]

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any = None
    ) -> Estimate:
        evidence = self._evidence(x, t)
        logits = torch.log_softmax(self._forward(evidence) + self._backward(evidence), dim=-1)
        return Estimate(logits, logits.exp() @ self.table, None)

    def log_density(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """ln p_t(noisy positions of x, given tokens), differentiable in x."""
        num_components = self.is_noisy.sum(1) * x.shape[-1]
        constant = num_components / 2 * (2 * math.pi * t**2).log()
        return torch.logsumexp(self._forward(self._evidence(x, t))[:, -1], dim=-1) - constant

    def _evidence(self, x: Tensor, t: Tensor) -> Float[Tensor, "batch seq states"]:
        """ln of each position's likelihood for each token, without the Gaussian's constant."""
        distances = (x[:, :, None] - self.table).square().sum(-1)
        gaussian = -distances / (2 * t[:, None, None] ** 2)
        states = torch.arange(len(self.table), device=x.device)
        certain = torch.where(self.tokens[..., None] == states, 0.0, -torch.inf).to(x.dtype)
        return torch.where(self.is_noisy[..., None], gaussian, certain)

    def _forward(self, evidence: Tensor) -> Float[Tensor, "batch seq states"]:
        steps = self.chain.transitions.to(evidence).log()
        columns = [self.chain.initial.to(evidence).log() + evidence[:, 0]]
        for i in range(1, evidence.shape[1]):
            reached = torch.logsumexp(columns[-1][:, :, None] + steps, dim=1)
            columns.append(reached + evidence[:, i])
        return torch.stack(columns, dim=1)

    def _backward(self, evidence: Tensor) -> Float[Tensor, "batch seq states"]:
        steps = self.chain.transitions.to(evidence).log()
        columns = [torch.zeros_like(evidence[:, 0])]
        for i in range(evidence.shape[1] - 1, 0, -1):
            ahead = (evidence[:, i] + columns[-1])[:, None]
            columns.append(torch.logsumexp(steps + ahead, dim=2))
        return torch.stack(columns[::-1], dim=1)


def independent_logits(
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    table: Float[Tensor, "vocab embed"],
    prior: Float[Tensor, " vocab"],
) -> Float[Tensor, "batch seq vocab"]:
    """The posterior for independent tokens with embeddings of equal length: x·e/t² + ln prior."""
    return x @ table.T / t[:, None, None] ** 2 + prior.log()
