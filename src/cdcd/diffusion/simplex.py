"""Diffusion on the simplex (App. B.3), which the paper gave up: a Cox–Ingersoll–Ross process.

A token is a one-hot vector of V components. Each component diffuses independently of the others
(Richemond et al. 2022),

    dx = (a − x) dt + sqrt(2x) dW,

from x_0 = 1 for the token itself and from x_0 = 0 for all others. With a = 1/V the components sum to 1 in
expectation at all times, and in the end their shares have the Dirichlet distribution of concentration a.
The transition density is that of a gamma variable of random shape: with the signal s = 1/(e^t − 1), which
falls from infinity to 0, and y = x / (1 − e^−t),

    n ~ Poisson(s·x_0),   y ~ Gamma(a + n),   in other words   2y ~ noncentral χ²(2a, 2s·x_0).

The components of the other tokens are gamma variables of shape a: most are nearly 0 and a few are large.
Those look like the token, although little noise was added in all.

A component has one of two densities, so score interpolation (§3.1) mixes two scores by the probability p
of its token. Their ratio is p(y | x_0 = 1) / p(y | x_0 = 0) = e^−s ₀F₁(a, z) with z = s·y, and the
probability flow ODE, in the signal instead of time, becomes

    d ln y / ds = p·R(z),   R(z) = d ln ₀F₁(a, z) / dz = 1 / (a + z·q(z)),
                            q(z) = 1 / (a + 1 + z / (a + 2 + z / (a + 3 + …))).

The state is ln y, since gamma variables of small shape are below the smallest number of any precision.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

NUM_FRACTIONS = 64
"""Levels of the continued fraction q; its innermost one is closed by the fixed point."""
NEWTON_STEPS = 6
SMALL = -30.0
"""Logarithm of z below which the first term of the series of ₀F₁ is exact to rounding."""
PART = 2**13
"""Components whose series is summed at once."""


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
        """Draws ln y at time t, given the tokens."""
        one_hot = F.one_hot(tokens, vocab_size).to(t.dtype)
        extra = torch.poisson(one_hot * signal(t)[:, None, None], generator=generator)
        return _log_gamma(self.concentration + extra, generator)

    def final_noise(
        self,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Draws ln y from the stationary distribution."""
        device = None if generator is None else generator.device
        start = torch.full(shape, self.concentration, dtype=dtype, device=device)
        return _log_gamma(start, generator)

    def log_likelihood_ratio(
        self, log_y: Float[Tensor, "batch seq vocab"], t: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch seq vocab"]:
        """Returns ln p(y_i | token is i) − ln p(y_i | token is another): the evidence for each token."""
        s = signal(t)[:, None, None]
        return _log_hypergeometric(self.concentration, log_y + s.log()) - s

    def slope(
        self,
        log_y: Float[Tensor, "batch seq vocab"],
        t: Float[Tensor, " batch"],
        probabilities: Float[Tensor, "batch seq vocab"],
    ) -> Float[Tensor, "batch seq vocab"]:
        """Returns d ln y / ds of the probability flow ODE."""
        z = signal(t)[:, None, None] * log_y.exp()
        return probabilities / (self.concentration + z * _fraction(self.concentration, z))

    def step(
        self,
        log_y: Float[Tensor, "batch seq vocab"],
        t: Float[Tensor, " batch"],
        t_next: Float[Tensor, " batch"],
        probabilities: Float[Tensor, "batch seq vocab"],
    ) -> Float[Tensor, "batch seq vocab"]:
        """Solves the ODE to a lower time, with the probabilities p and b = s·q(z) as they are at its start.

        Then dy/ds = p·y / (a + b·y), so that ln w + w grows by p·Δs/a for w = b·y/a. A step of Euler's
        method in ln y overshoots where components are small, and one in y leaves them behind.
        """
        a, s, s_next = self.concentration, *(signal(time)[:, None, None] for time in (t, t_next))
        log_b = (s * _fraction(a, s * log_y.exp())).log() - math.log(a)
        log_w = log_y + log_b
        return _log_omega(log_w + log_w.exp() + probabilities * (s_next - s) / a) - log_b


def signal(t: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Returns the signal s at time t."""
    return 1 / torch.expm1(t)


def shares(log_y: Float[Tensor, "batch seq vocab"]) -> Float[Tensor, "batch seq vocab"]:
    """Returns the point of the simplex: components divided by their sum."""
    return torch.softmax(log_y, dim=-1)


def _log_gamma(shape: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws logarithms of gamma variables: Gamma(a) is Gamma(a + 1)·U^(1/a) for a uniform U."""
    larger = torch._standard_gamma(shape + 1, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
    uniform = torch.rand(shape.shape, dtype=shape.dtype, device=shape.device, generator=generator)
    return larger.log() + torch.log1p(-uniform) / shape


def _log_hypergeometric(a: float, log_z: Tensor) -> Tensor:
    """Returns ln ₀F₁(a, z) = ln Σ z^k / (k! (a)_k); the largest terms are near k = sqrt(z)."""
    result, is_large = log_z.exp() / a, log_z > SMALL
    parts = [_log_series(a, part) for part in log_z[is_large].split(PART)]
    result[is_large] = torch.cat(parts)
    return result


def _log_series(a: float, log_z: Tensor) -> Tensor:
    num_terms = 50 + int(4 * math.exp(float(log_z.detach().max()) / 2)) if len(log_z) else 1
    k = torch.arange(num_terms, dtype=log_z.dtype, device=log_z.device)
    start = torch.tensor(a, dtype=log_z.dtype, device=log_z.device)
    coefficients = torch.lgamma(start) - torch.lgamma(start + k) - torch.lgamma(k + 1)
    return torch.logsumexp(k * log_z[..., None] + coefficients, dim=-1)


def _fraction(a: float, z: Tensor) -> Tensor:
    """Returns q(z), from the inside out."""
    b = a + NUM_FRACTIONS
    value = (b + (b * b + 4 * z).sqrt()) / 2
    for k in reversed(range(1, NUM_FRACTIONS)):
        value = a + k + z / value
    return 1 / value


def _log_omega(g: Tensor) -> Tensor:
    """Returns the logarithm v of Wright's omega function, v + e^v = g, by Newton's method from above."""
    v = torch.where(g < 1, g, g.clamp(min=1).log())
    for _ in range(NEWTON_STEPS):
        w = v.exp()
        v = v - (v + w - g) / (1 + w)
    return v
