"""Diffusion on the simplex (App. B.3), which the paper gave up: a Cox–Ingersoll–Ross process.

A token is a one-hot vector of V components. Each component diffuses independently of the others
(Richemond et al. 2022),

    dx = (a − x) dt + sqrt(2x) dW,

from x_0 = 1 for the token itself and from x_0 = 0 for all others. With a = 1/V the components sum to 1 in
expectation at all times, and in the end their shares have the Dirichlet distribution of concentration a.
With c = 1/(1 − e^−t) and u = c·e^−t the transition density is that of a gamma variable of random shape,

    n ~ Poisson(u·x_0),   c·x_t ~ Gamma(a + n),   in other words   2c·x_t ~ noncentral χ²(2a, 2u·x_0).

The components of the other tokens are gamma variables of shape a: most are nearly 0 and a few are large.
Those look like the token, although little noise was added in all.

A component has one of two densities, so score interpolation (§3.1) mixes two scores by the probability p
of its token. Their ratio is p(x | x_0 = 1) / p(x | x_0 = 0) = e^−u ₀F₁(a, z) with z = c·u·x, and the
probability flow ODE becomes

    d ln x / dt = u·(1 − p·c·R(z)),   R(z) = d ln ₀F₁(a, z) / dz.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

NUM_FRACTIONS = 64
"""Levels of the continued fraction of R; its innermost one is closed by the fixed point."""


@dataclass(frozen=True)
class SimplexProcess:
    """The process at a concentration a."""

    concentration: float

    def add_noise(
        self,
        tokens: Int[Tensor, "batch seq"],
        vocab_size: int,
        t: Float[Tensor, " batch"],
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Draws x_t, given the tokens."""
        t = t[:, None, None]
        one_hot = F.one_hot(tokens, vocab_size).to(t.dtype)
        extra = torch.poisson(one_hot * _u(t), generator=generator)
        return _gamma(self.concentration + extra, generator) / _c(t)

    def final_noise(
        self, shape: tuple[int, ...], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch seq vocab"]:
        """Draws from the stationary distribution."""
        return _gamma(torch.full(shape, self.concentration), generator)

    def log_likelihood_ratio(
        self, x: Float[Tensor, "batch seq vocab"], t: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch seq vocab"]:
        """Returns ln p(x_i | token is i) − ln p(x_i | token is another): the evidence for each token."""
        t = t[:, None, None]
        return _log_hypergeometric(self.concentration, _c(t) * _u(t) * x) - _u(t)

    def slope(
        self,
        x: Float[Tensor, "batch seq vocab"],
        t: Float[Tensor, " batch"],
        probabilities: Float[Tensor, "batch seq vocab"],
    ) -> Float[Tensor, "batch seq vocab"]:
        """Returns d ln x / dt of the probability flow ODE."""
        t = t[:, None, None]
        ratio = _slope_of_log_hypergeometric(self.concentration, _c(t) * _u(t) * x)
        return _u(t) * (1 - probabilities * _c(t) * ratio)


def shares(x: Float[Tensor, "batch seq vocab"]) -> Float[Tensor, "batch seq vocab"]:
    """Returns the point of the simplex: components divided by their sum."""
    return x / x.sum(-1, keepdim=True)


def _c(t: Tensor) -> Tensor:
    return -1 / torch.expm1(-t)


def _u(t: Tensor) -> Tensor:
    return 1 / torch.expm1(t)


def _gamma(shape: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws gamma variables; in float64, since those of a small shape are below float32's smallest number."""
    drawn = torch._standard_gamma(shape.double(), generator=generator)  # pyright: ignore[reportPrivateImportUsage]
    return drawn.clamp(min=torch.finfo(shape.dtype).tiny).to(shape)


def _log_hypergeometric(a: float, z: Tensor) -> Tensor:
    """Returns ln ₀F₁(a, z) = ln Σ z^k / (k! (a)_k); the largest terms are near k = sqrt(z)."""
    num_terms = 50 + int(4 * float(z.max()) ** 0.5)
    k = torch.arange(num_terms, dtype=z.dtype, device=z.device)
    start = torch.tensor(a, dtype=z.dtype, device=z.device)
    coefficients = torch.lgamma(start) - torch.lgamma(start + k) - torch.lgamma(k + 1)
    return torch.logsumexp(torch.xlogy(k, z[..., None]) + coefficients, dim=-1)


def _slope_of_log_hypergeometric(a: float, z: Tensor) -> Tensor:
    """Returns R(z) = 1 / (a + z / (a + 1 + z / (a + 2 + …))), from the inside out."""
    b = a + NUM_FRACTIONS
    value = (b + (b * b + 4 * z).sqrt()) / 2
    for k in reversed(range(NUM_FRACTIONS)):
        value = a + k + z / value
    return 1 / value
