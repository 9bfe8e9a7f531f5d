"""Time warping (§3.3, App. A): learn where the noise levels matter.

A monotone piecewise-linear F̃ is fitted to the loss as a function of noise level. Normalised, it is the
CDF F of the noise levels to train on: u uniform in [0, 1] goes to t = F⁻¹(u), so that the loss, and
with it the uncertainty of the predictions, grows linearly in u. The same map spaces the steps of the
sampler.

Nothing here knows of tokens or networks. To use it with another diffusion model:

    warp = TimeWarp(WarpConfig(bins="log"), ProcessConfig(t_min=0.002, t_max=80.0))
    optimiser = torch.optim.Adam(warp.parameters(), lr=0.01)
    for batch in data:
        u = torch.rand(len(batch))
        t = warp.noise_levels(u)                         # train on these noise levels
        losses = per_example_losses(model, batch, t)     # any loss that grows with t
        warp.fitting_loss(t, losses.detach()).backward()
        optimiser.step(); optimiser.zero_grad(); warp.update_average()
    steps = warp.noise_levels(torch.linspace(1, 0, 51))  # and sample with these
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cdcd.diffusion.process import ProcessConfig
from cdcd.settings import (
    BelowOne,
    Bounds,
    OpenShare,
    Rate,
    Repeats,
    Settings,
    Share,
    Temperature,
)

Coordinate = Literal["linear", "log"]


@dataclass(frozen=True, kw_only=True)
class WarpConfig(Settings, section="warp"):
    """Time warping in training."""

    train: bool = True
    """Draw training noise levels from the warp; off: uniformly in the reference coordinate."""
    bins: Coordinate = "linear"
    """Reference coordinate: `linear` in t (the paper) or `log` (uniform in ln t; starts short runs well)."""
    num_bins: Repeats = 100
    """Number N of linear pieces."""
    min_bin: OpenShare = 1e-5
    """Added to every bin's width before renormalising, for stability (App. A.1)."""
    temperature: Temperature = 1.0
    """Temperature T of the distribution of training noise levels (App. A.6)."""
    uniformity: Share = 0.0
    """Weight μ of a uniform distribution mixed in after the temperature (App. A.6)."""
    beta_a: Rate = 1.0
    """First parameter α of the Beta CDF S that the loss should follow in u (§6.3); 1, 1 is linear."""
    beta_b: Rate = 1.0
    """Second parameter β of the Beta CDF."""
    learning_rate: Rate = 0.01
    """Learning rate of the warp's own Adam."""
    average_decay: BelowOne = 0.99
    """Decay of the moving average of the logits, from which noise levels are drawn."""
    max_importance: Annotated[float, Bounds(1, 1_000_000)] = 10.0
    """Importance weights, normalised to mean 1, are clipped here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_bin * self.num_bins < 1:
            raise ValueError(f"warp.min_bin is {self.min_bin}, it must be below 1 / num_bins")
        beta_cdf(torch.tensor(0.5), self.beta_a, self.beta_b)


@dataclass(frozen=True)
class PiecewiseLinear:
    """A monotone piecewise-linear map of [0, 1] onto itself, given by its bin widths (App. A.1)."""

    widths_in: Float[Tensor, " bins"]
    widths_out: Float[Tensor, " bins"]

    def __call__(self, r: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        left_in, left_out = _left_edges(self.widths_in), _left_edges(self.widths_out)
        n = self._bin(r)
        return left_out[n] + (r - left_in[n]) / self.widths_in[n] * self.widths_out[n]

    def _bin(self, r: Float[Tensor, "*batch"]) -> Tensor:
        inner_edges = _left_edges(self.widths_in.detach())[1:]
        return torch.searchsorted(inner_edges, r.detach().contiguous(), right=True)

    def inverse(self) -> "PiecewiseLinear":
        """Returns the inverse map: the roles of the widths are exchanged (App. A.3)."""
        return PiecewiseLinear(self.widths_out, self.widths_in)

    def density(self, r: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns the derivative, constant in each bin (App. A.3)."""
        return (self.widths_out / self.widths_in)[self._bin(r)]

    def tempered(self, temperature: float) -> "PiecewiseLinear":
        """Returns the distribution at another temperature: density^(1/T), normalised (App. A.6)."""
        log_in, log_out = self.widths_in.log(), self.widths_out.log()
        widths_out = torch.softmax(log_in + (log_out - log_in) / temperature, dim=0)
        return PiecewiseLinear(self.widths_in, widths_out)

    def mixed(self, uniformity: float) -> "PiecewiseLinear":
        """Returns the mixture with the uniform distribution (App. A.6)."""
        widths_out = torch.lerp(self.widths_out, self.widths_in, uniformity)
        return PiecewiseLinear(self.widths_in, widths_out)


def _left_edges(widths: Float[Tensor, " bins"]) -> Float[Tensor, " bins"]:
    return torch.cumsum(widths, 0) - widths


@dataclass(frozen=True)
class NoiseSchedule:
    """A map between noise levels t and u in [0, 1], here a normalised warp F in a reference coordinate."""

    cdf: PiecewiseLinear
    process: ProcessConfig
    bins: Coordinate

    def noise_levels(self, u: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns t = F⁻¹(u)."""
        return from_unit(self.cdf.inverse()(u).clamp(0.0, 1.0), self.process, self.bins)

    def uniform_time(self, t: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns u = F(t)."""
        return self.cdf(to_unit(t, self.process, self.bins)).clamp(0.0, 1.0)

    def density(self, t: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns the density of the noise levels with respect to the reference coordinate."""
        return self.cdf.density(to_unit(t, self.process, self.bins))

    def density_in_t(self, t: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns du/dt, the density of the noise levels in t itself."""
        low, high = self.process.t_min, self.process.t_max
        dt_dr = t * math.log(high / low) if self.bins == "log" else high - low
        return self.density(t) / dt_dr

    def adjusted(self, *, temperature: float = 1.0, uniformity: float = 0.0) -> "NoiseSchedule":
        """Applies the temperature first, then the uniformity (App. A.6)."""
        cdf = self.cdf if temperature == 1.0 else self.cdf.tempered(temperature)
        cdf = cdf if uniformity == 0.0 else cdf.mixed(uniformity)
        return NoiseSchedule(cdf, self.process, self.bins)


def to_unit(
    t: Float[Tensor, "*batch"], process: ProcessConfig, bins: Coordinate
) -> Float[Tensor, "*batch"]:
    """Returns the reference coordinate r(t) in [0, 1]."""
    if bins == "linear":
        return (t - process.t_min) / (process.t_max - process.t_min)
    return (t / process.t_min).log() / math.log(process.t_max / process.t_min)


def from_unit(
    r: Float[Tensor, "*batch"], process: ProcessConfig, bins: Coordinate
) -> Float[Tensor, "*batch"]:
    """Returns the noise level t at reference coordinate r."""
    if bins == "linear":
        t = process.t_min + r * (process.t_max - process.t_min)
    else:
        t = process.t_min * (r * math.log(process.t_max / process.t_min)).exp()
    return t.clamp(process.t_min, process.t_max)


class TimeWarp(nn.Module):
    """The learnt warp: parameters of F̃, their moving average, and the fitting loss."""

    average_in: Tensor
    average_out: Tensor

    def __init__(self, config: WarpConfig, process: ProcessConfig) -> None:
        super().__init__()
        self.config, self.process = config, process
        initial = torch.full((config.num_bins,), -math.log(config.num_bins))
        self.logits_in = nn.Parameter(initial.clone())
        self.logits_out = nn.Parameter(initial.clone())
        self.register_buffer("average_in", initial.clone())
        self.register_buffer("average_out", initial.clone())

    def _schedule(self, logits_in: Tensor, logits_out: Tensor) -> NoiseSchedule:
        cdf = PiecewiseLinear(self._widths(logits_in), self._widths(logits_out))
        return NoiseSchedule(cdf, self.process, self.config.bins)

    def _widths(self, logits: Float[Tensor, " bins"]) -> Float[Tensor, " bins"]:
        floored = torch.softmax(logits, dim=0) + self.config.min_bin
        return floored / floored.sum()

    def schedule(self) -> NoiseSchedule:
        """Returns the normalised warp F of the moving average, which spaces the sampler's steps."""
        return self._schedule(self.average_in.detach(), self.average_out.detach())

    def training_schedule(self) -> NoiseSchedule:
        """Returns the distribution of training noise levels: temperature and uniformity applied, or uniform."""
        config = self.config
        if not config.train:
            return self.schedule().adjusted(uniformity=1.0)
        return self.schedule().adjusted(
            temperature=config.temperature, uniformity=config.uniformity
        )

    def noise_levels(self, u: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns training noise levels for uniform times `u`; no gradient flows back (App. A.4)."""
        return self.training_schedule().noise_levels(u)

    def expected_loss(self, t: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Returns F̃(t), shaped by S where one is set: Z·S(F(t)), the fitted loss at noise level t."""
        schedule = self._schedule(self.logits_in, self.logits_out)
        u = schedule.cdf(to_unit(t, self.process, self.config.bins))
        return self.logits_out.exp().sum() * beta_cdf(u, self.config.beta_a, self.config.beta_b)

    def importance_weights(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Returns 1 / density of the distribution that `t` was drawn from, mean 1, clipped (App. A.4)."""
        weights = 1.0 / self.training_schedule().density(t)
        return (weights / weights.mean()).clamp(max=self.config.max_importance)

    def fitting_loss(
        self, t: Float[Tensor, " batch"], losses: Float[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Returns the importance-weighted squared error of F̃ against the observed losses (App. A.2)."""
        error = self.expected_loss(t) - losses.detach()
        return (self.importance_weights(t) * error.square()).mean()

    @torch.no_grad()
    def update_average(self) -> None:
        """Moves the averaged logits, from which noise levels are drawn, towards the fitted ones."""
        weight = 1 - self.config.average_decay
        self.average_in.lerp_(self.logits_in, weight)
        self.average_out.lerp_(self.logits_out, weight)


def beta_cdf(u: Float[Tensor, "*batch"], a: float, b: float) -> Float[Tensor, "*batch"]:
    """Returns the CDF of Beta(a, b) where it is elementary: all nine settings of Table 1, and any with a or b = 1."""
    # Slopes at 0 and 1 are infinite for a or b below 1: keep gradients finite.
    inner = u.clamp(1e-6, 1 - 1e-6)
    if a == b == 1.0:
        return u
    if a > 0 and b == 1.0:
        return inner**a
    if a == 1.0 and b > 0:
        return 1 - (1 - inner) ** b
    match (a, b):
        case (0.5, 0.5):
            return 2 / math.pi * inner.sqrt().asin()
        case (2.0, 2.0):
            return inner**2 * (3 - 2 * inner)
        case (0.5, 2.0):
            return inner.sqrt() * (3 - inner) / 2
        case (2.0, 0.5):
            return 1 - (1 - inner).sqrt() * (2 + inner) / 2
    raise ValueError(
        f"warp.beta_a, warp.beta_b = {a}, {b}: choose both from 0.5, 1 and 2, or one of them 1"
    )
