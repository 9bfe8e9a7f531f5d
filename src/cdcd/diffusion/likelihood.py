"""Likelihoods of tokens under a diffusion model, in nats (ours: the paper measures samples alone).

Chain rule, for models trained with masks (§4.1). At t_max the noise x hides everything, so a prediction
there is the model's distribution of a token given other tokens. In any order o of the positions,

    −ln p(tokens | x) = −Σ_i ln p(token_o(i) | token_o(1) … token_o(i−1), x).

The terms are those of a proper distribution if x and the order do not depend on the tokens: x is plain
noise, with nothing of the tokens in it, one draw for the whole sequence. It is the exact likelihood of
the decoder that draws the tokens one by one in that order.

Bound, for every model. The reverse process starts at N(0, t_max²), follows x0_hat as an SDE in continuous
time, and draws each token from the prediction at t_min. With q(x_t | tokens) = N(e, t²),

    −ln p(tokens) ≤ KL(q(x_tmax | tokens) ‖ N(0, t_max²)) + ∫ E|e − x0_hat(x_t, t)|² / t³ dt
                    + E[−ln p(tokens | x_tmin)],        t from t_min to t_max.

The integral is the KL of two diffusions with drifts of (e − x)/t and (x0_hat − x)/t and noise of 2t dt, and the
first term is |e|² / (2 t_max²). Any x0_hat that is a function of (x_t, t) gives a bound. The exact posterior mean
makes it tight for each sequence, since d/dt KL(q(x_t | tokens) ‖ q(x_t)) = −E|e − x0_hat|² / t³; it then exceeds
−ln p(tokens) by

    E[ln p(tokens | x_tmin) − Σ_n ln p(token_n | x_tmin)]   and   E[ln q(x_tmax) − ln N(x_tmax; 0, t_max²)]:

tokens that are drawn independently at t_min, and a start that is not quite the process's own.

For independent tokens the integrand is the slope of the cross-entropy, which is what the time warp is fitted to
(§3.3): noise levels drawn from the warp make the estimate nearly constant, t = F⁻¹(u) with weight dt/du.

Denoising score, a ranking of texts: how well a text is recognised behind a little noise,

    S(tokens) = mean over t and eps of ln p(token | e + t·eps), for a few low t.

Self-conditioned predictions see the model's own first prediction at the same noise level, which is a function of
(x_t, t) too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.estimator import Estimate, Estimator, EstimatorFor
from cdcd.diffusion.logits import cross_entropies
from cdcd.diffusion.process import add_noise
from cdcd.diffusion.warping import NoiseSchedule

Noise = Iterator[Float[Tensor, "batch seq embed"]]
"""Draws of unit Gaussian noise, one after another."""


def predict(
    estimator: Estimator, x: Tensor, t: Float[Tensor, " batch"], *, self_conditioned: bool
) -> Estimate:
    """Returns a prediction; a self-conditioned one has seen the first one at the same (x, t)."""
    first = estimator(x, t, None)
    if not self_conditioned or first.state is None:
        return first
    return estimator(x, t, first.state)


# Chain rule


def left_to_right(is_noisy: Bool[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Returns the rank of each noisy position in the order of reading, and −1 for given positions."""
    return torch.where(is_noisy, is_noisy.cumsum(1) - 1, -1)


def random_order(
    is_noisy: Bool[Tensor, "batch seq"], u: Float[Tensor, "batch seq"]
) -> Int[Tensor, "batch seq"]:
    """Returns the rank of each noisy position in the order of uniform numbers, and −1 for given ones."""
    ranks = u.masked_fill(~is_noisy, torch.inf).argsort(dim=1, stable=True).argsort(1)
    return torch.where(is_noisy, ranks, -1)


@torch.no_grad()
def chain_rule(
    estimator_for: EstimatorFor,
    tokens: Int[Tensor, "batch seq"],
    ranks: Int[Tensor, "batch seq"],
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    *,
    self_conditioned: bool = True,
) -> Float[Tensor, "batch seq"]:
    """Returns −ln p of each token given those of lower rank; 0 for tokens of a negative rank, which are given.

    `x` is noise at the highest level `t`, with nothing of the tokens in it.
    """
    nats = torch.zeros(tokens.shape, dtype=t.dtype, device=tokens.device)
    for rank in range(int(ranks.max()) + 1):
        estimator, is_next = estimator_for(tokens, ranks >= rank), ranks == rank
        logits = predict(estimator, x, t, self_conditioned=self_conditioned).logits[is_next]
        nats[is_next] = cross_entropies(logits, tokens[is_next]).to(nats.dtype)
    return nats


# Bound


@dataclass(frozen=True)
class Bound:
    """The three parts of the bound of each sequence, the integral and the last by an unbiased estimate."""

    prior: Float[Tensor, " batch"]
    diffusion: Float[Tensor, " batch"]
    tokens: Float[Tensor, " batch"]

    @property
    def total(self) -> Float[Tensor, " batch"]:
        return self.prior + self.diffusion + self.tokens


def stratified(
    num_levels: int, offsets: Float[Tensor, " batch"]
) -> Float[Tensor, "num_levels batch"]:
    """Returns uniform times of each sequence: one in each of `num_levels` equal parts, at its own offset."""
    parts = torch.arange(num_levels, device=offsets.device, dtype=offsets.dtype)
    return (parts[:, None] + offsets) / num_levels


@torch.no_grad()
def diffusion_bound(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "batch seq"],
    is_noisy: Bool[Tensor, "batch seq"],
    schedule: NoiseSchedule,
    u: Float[Tensor, "levels batch"],
    noise: Noise,
    *,
    self_conditioned: bool = True,
) -> Bound:
    """Returns the bound of −ln p(noisy tokens | given tokens), which the estimator is given.

    `schedule` says how often each noise level is drawn, `u` holds uniform times.
    """
    x0 = F.embedding(tokens, table)
    process = schedule.process
    t_min = torch.full_like(u[0], process.t_min)
    x = add_noise(x0, t_min, next(noise))
    last = predict(estimator, x, t_min, self_conditioned=self_conditioned)
    # At once: a recorded estimator overwrites its logits in the next call.
    nll = cross_entropies(last.logits, tokens).to(u.dtype)
    diffusion = torch.zeros_like(t_min)
    for each in u:
        t = schedule.noise_levels(each)
        x = add_noise(x0, t, next(noise))
        x0_hat = predict(estimator, x, t, self_conditioned=self_conditioned).x0_hat
        weight = 1 / (t**3 * schedule.density_in_t(t))
        diffusion += weight * _squared(x0 - x0_hat, is_noisy) / len(u)
    return Bound(
        prior=_squared(x0, is_noisy) / (2 * process.t_max**2),
        diffusion=diffusion,
        tokens=nll.masked_fill(~is_noisy, 0.0).sum(1),
    )


def _squared(
    x: Float[Tensor, "batch seq embed"], is_noisy: Bool[Tensor, "batch seq"]
) -> Float[Tensor, " batch"]:
    """Returns the squared length of each sequence's noisy positions."""
    return x.square().sum(-1).masked_fill(~is_noisy, 0.0).sum(1)


# Score


@torch.no_grad()
def denoising_score(
    estimator: Estimator,
    table: Float[Tensor, "vocab embed"],
    tokens: Int[Tensor, "batch seq"],
    is_scored: Bool[Tensor, "batch seq"],
    levels: Float[Tensor, " levels"],
    eps: Float[Tensor, "draws seq embed"],
    *,
    self_conditioned: bool = True,
) -> Float[Tensor, " batch"]:
    """Returns the mean of ln p(token | e ± t·eps) over scored positions, noise levels and draws.

    All sequences share each draw of noise, so that texts differ in their scores by their tokens alone. Each
    is taken with both signs, which is worth four times as many independent draws on the exact oracle.
    """
    x0, total = F.embedding(tokens, table), torch.zeros(len(tokens)).to(table)
    for level in levels:
        t = level.expand(len(tokens))
        for noise in torch.cat([eps, -eps]):
            x = add_noise(x0, t, noise.expand_as(x0))
            logits = predict(estimator, x, t, self_conditioned=self_conditioned).logits
            nll = cross_entropies(logits, tokens).masked_fill(~is_scored, 0.0)
            total -= nll.sum(1).to(total.dtype)
    return total / (is_scored.sum(1).clamp(min=1) * len(levels) * 2 * len(eps))
