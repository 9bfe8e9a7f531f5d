"""The exact oracle: the predictions of a perfect network, for a Markov chain in Gaussian noise.

A chain draws the tokens s_1 … s_N with initial probabilities π and transitions P. Token i is embedded as
e_i, and x_n = e_{s_n} + t ε_n is observed (§2). That is a hidden Markov model with the likelihoods

    ℓ_n(i) = N(x_n; e_i, t² I),   or   ℓ_n(i) = 1 if i = s_n, else 0,   where token n is given,

and the posterior of every token follows by forward–backward:

    α_1(i) = π_i ℓ_1(i)        α_n(j) = ℓ_n(j) Σ_i α_{n-1}(i) P_ij
    β_N(i) = 1                 β_n(i) = Σ_j P_ij ℓ_{n+1}(j) β_{n+1}(j)

    p(s_n = i | x, t) ∝ α_n(i) β_n(i)        p_t(x) = Σ_i α_N(i).

Everything is computed in logarithms.
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
    """The exact posterior of a Markov chain's tokens, given a noisy sequence and some given tokens.

    It is an estimator like a trained network, so every solver, mask and plot can run on it.
    """

    chain: MarkovChain
    table: Float[Tensor, "states embed"]
    """The embeddings of the tokens."""
    tokens: Int[Tensor, "batch seq"]
    """The given tokens; those at noisy positions are not looked at."""
    is_noisy: Bool[Tensor, "batch seq"]

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any = None
    ) -> Estimate:
        likelihood = self._log_likelihood(x, t)
        log_alpha, log_beta = self._forward(likelihood), self._backward(likelihood)
        posterior = torch.log_softmax(log_alpha + log_beta, dim=-1)
        return Estimate(posterior, posterior.exp() @ self.table, None)

    def log_density(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """Returns ln p_t(noisy positions of x, given tokens), differentiable in x."""
        num_components = self.is_noisy.sum(1) * x.shape[-1]
        constant = num_components / 2 * (2 * math.pi * t**2).log()
        return self._forward(self._log_likelihood(x, t))[:, -1].logsumexp(-1) - constant

    def _log_likelihood(self, x: Tensor, t: Tensor) -> Float[Tensor, "batch seq states"]:
        """Returns ln ℓ_n(i) without the constant of the Gaussian."""
        # The differences themselves, not products: those cancel in float32 at low noise levels.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(x.flatten(0, 1), self.table, compute_mode=exact)
        squares = distances.square().unflatten(0, x.shape[:2])
        gaussian = -squares / (2 * t[:, None, None] ** 2)
        states = torch.arange(len(self.table), device=x.device)
        certain = torch.where(self.tokens[..., None] == states, 0.0, -torch.inf).to(x.dtype)
        return torch.where(self.is_noisy[..., None], gaussian, certain)

    def _forward(self, likelihood: Tensor) -> Float[Tensor, "batch seq states"]:
        """Returns ln α from ln ℓ."""
        transitions = self.chain.transitions.to(likelihood).log()
        alpha = [self.chain.initial.to(likelihood).log() + likelihood[:, 0]]
        for n in range(1, likelihood.shape[1]):
            alpha.append(likelihood[:, n] + _log_product(alpha[-1], transitions))
        return torch.stack(alpha, dim=1)

    def _backward(self, likelihood: Tensor) -> Float[Tensor, "batch seq states"]:
        """Returns ln β from ln ℓ."""
        transitions = self.chain.transitions.to(likelihood).log()
        beta = [torch.zeros_like(likelihood[:, 0])]
        for n in range(likelihood.shape[1] - 1, 0, -1):
            beta.append(_log_product(likelihood[:, n] + beta[-1], transitions.T))
        return torch.stack(beta[::-1], dim=1)


@dataclass(frozen=True)
class MaskedMarkovOracle:
    """The exact posterior of masked tokens, given the visible ones: a perfect network of masked diffusion."""

    chain: MarkovChain

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_masked: Bool[Tensor, "batch seq"],
        *,
        positions: Int[Tensor, " predicted"] | None = None,
    ) -> Float[Tensor, "*positions states"]:
        # Where all embeddings are one vector, noisy tokens say nothing.
        table = torch.zeros_like(self.chain.initial)[:, None]
        x = torch.zeros_like(tokens[..., None], dtype=table.dtype)
        oracle = MarkovOracle(self.chain, table, tokens, is_masked)
        logits = oracle(x, torch.ones_like(x[:, 0, 0])).logits
        return logits if positions is None else logits.flatten(0, 1)[positions]


def _log_product(
    vector: Float[Tensor, "batch states"], matrix: Float[Tensor, "states others"]
) -> Float[Tensor, "batch others"]:
    """Returns ln(a B) from ln a and ln B, for a row vector a."""
    return torch.logsumexp(vector[:, :, None] + matrix, dim=1)
