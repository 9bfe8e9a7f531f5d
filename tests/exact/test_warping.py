"""Time warping (§3.3, App. A): monotone, normalised, exactly invertible, and fitted to what it sees."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import PROCESS, chain, table
from scipy.stats import beta as scipy_beta

from cdcd.diffusion.process import ProcessConfig, add_noise
from cdcd.diffusion.warping import (
    PiecewiseLinear,
    TimeWarp,
    WarpConfig,
    beta_cdf,
    from_unit,
    to_unit,
)
from cdcd.languages import MarkovOracle
from cdcd.seeding import generator_for

logits = st.lists(st.floats(-4, 4), min_size=1, max_size=12)


def piecewise(in_logits: list[float], seed: int) -> PiecewiseLinear:
    widths_in = torch.tensor(in_logits).double().softmax(0)
    other = torch.randn(len(in_logits), generator=generator_for(seed)).double()
    return PiecewiseLinear(widths_in, other.softmax(0))


def random_warp(bins: str = "linear", num_bins: int = 16, seed: int = 0, **settings) -> TimeWarp:
    warp = TimeWarp(WarpConfig(bins=bins, num_bins=num_bins, **settings), PROCESS).double()  # pyright: ignore[reportArgumentType]
    for tensor in warp.state_dict().values():
        tensor.copy_(torch.randn(num_bins, generator=generator_for(seed)).double())
        seed += 1
    return warp


def integrate(values: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Cumulative integral on a grid, by the midpoint rule."""
    return torch.cat([torch.zeros(1).double(), (values * grid.diff()).cumsum(0)])


@settings(deadline=None, max_examples=60)
@given(logits, st.integers(0, 10_000))
def test_maps_are_monotone_normalised_and_exactly_inverted(in_logits, seed):
    cdf = piecewise(in_logits, seed)
    r = torch.linspace(0, 1, 301).double()
    u = cdf(r)
    assert float(u[0]) == pytest.approx(0, abs=1e-12)
    assert float(u[-1]) == pytest.approx(1, abs=1e-12)
    assert (u.diff() > 0).all()
    torch.testing.assert_close(cdf.inverse()(u), r, atol=1e-9, rtol=0)
    torch.testing.assert_close(cdf(cdf.inverse()(r)), r, atol=1e-9, rtol=0)


@settings(deadline=None, max_examples=40)
@given(logits, st.integers(0, 10_000))
def test_density_is_the_derivative_and_integrates_to_the_map(in_logits, seed):
    cdf = piecewise(in_logits, seed)
    grid = torch.linspace(0, 1, 20_001).double()
    middle = (grid[:-1] + grid[1:]) / 2
    density = cdf.density(middle)
    # A grid cell that holds a bin's edge is counted with one of its two densities.
    tolerance = float(density.max()) * len(in_logits) / 20_000
    torch.testing.assert_close(integrate(density, grid), cdf(grid), atol=tolerance, rtol=0)
    inside = torch.rand(50, generator=generator_for(seed)).double()
    step = 1e-7
    slope = (cdf(inside + step) - cdf(inside - step)) / (2 * step)
    same_bin = cdf._bin(inside + step) == cdf._bin(inside - step)
    torch.testing.assert_close(slope[same_bin], cdf.density(inside)[same_bin], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.2, 5.0, 100.0])
@pytest.mark.parametrize("uniformity", [0.0, 0.1, 1.0])
def test_temperature_then_uniformity_against_integrated_densities(temperature, uniformity):
    schedule = random_warp().schedule()
    grid = torch.linspace(0, 1, 40_001).double()
    middle = (grid[:-1] + grid[1:]) / 2
    density = schedule.cdf.density(middle) ** (1 / temperature)
    density = density / (density * grid.diff()).sum()
    density = (1 - uniformity) * density + uniformity
    adjusted = schedule.adjusted(temperature=temperature, uniformity=uniformity)
    torch.testing.assert_close(adjusted.cdf(grid), integrate(density, grid), atol=2e-3, rtol=0)


def test_a_new_warp_is_the_identity_and_normalised():
    warp = TimeWarp(WarpConfig(num_bins=50), PROCESS).double()
    t = torch.linspace(PROCESS.t_min, PROCESS.t_max, 30).double()
    torch.testing.assert_close(warp.schedule().uniform_time(t), to_unit(t, PROCESS, "linear"))
    torch.testing.assert_close(warp.expected_loss(t), to_unit(t, PROCESS, "linear"))


@pytest.mark.parametrize("bins", ["linear", "log"])
def test_unnormalised_is_z_times_normalised_floor_included(bins):
    warp = random_warp(bins, min_bin=0.01)
    t = from_unit(torch.linspace(0, 1, 40).double(), PROCESS, bins)  # pyright: ignore[reportArgumentType]
    fitted = warp._schedule(warp.logits_in, warp.logits_out)
    expected = warp.logits_out.exp().sum() * fitted.uniform_time(t)
    torch.testing.assert_close(warp.expected_loss(t), expected)
    widths = fitted.cdf.widths_out
    floored = warp.logits_out.softmax(0) + 0.01
    torch.testing.assert_close(widths, floored / floored.sum())
    assert float(widths.detach().sum()) == pytest.approx(1)


@pytest.mark.parametrize("bins", ["linear", "log"])
def test_coordinates_are_inverse_and_span_the_range(bins):
    t = torch.tensor([PROCESS.t_min, 1.0, 7.0, PROCESS.t_max], dtype=torch.float64)
    torch.testing.assert_close(from_unit(to_unit(t, PROCESS, bins), PROCESS, bins), t)
    assert to_unit(t, PROCESS, bins)[[0, -1]].tolist() == pytest.approx([0, 1])
    middle = float(from_unit(torch.tensor(0.5).double(), PROCESS, bins))
    mean = (PROCESS.t_min + PROCESS.t_max) / 2
    assert middle == pytest.approx(
        mean if bins == "linear" else math.sqrt(PROCESS.t_min * PROCESS.t_max)
    )


@pytest.mark.parametrize("bins", ["linear", "log"])
def test_noise_levels_follow_the_density_they_claim(bins):
    """Drawn levels, weighted by importance, are uniform in the reference coordinate."""
    warp = random_warp(bins, num_bins=8, max_importance=1e6)
    u = (torch.arange(200_000).double() + 0.5) / 200_000
    t = warp.noise_levels(u)
    r = to_unit(t, PROCESS, bins)
    weights = warp.importance_weights(t)
    assert float(weights.mean()) == pytest.approx(1.0)
    for edge in (0.1, 0.37, 0.8):
        share = float((weights * (r < edge)).mean())
        assert share == pytest.approx(edge, abs=2e-3)


def test_importance_weights_are_clipped_and_know_temperature_and_uniformity():
    warp = random_warp(num_bins=8, max_importance=2.0, temperature=2.0, uniformity=0.3)
    t = warp.noise_levels(torch.linspace(0.001, 0.999, 999).double())
    weights = 1 / warp.schedule().adjusted(temperature=2.0, uniformity=0.3).density(t)
    expected = (weights / weights.mean()).clamp(max=2.0)
    torch.testing.assert_close(warp.importance_weights(t), expected)


def test_warping_off_is_uniform_in_the_reference_coordinate():
    for bins in ("linear", "log"):
        warp = random_warp(bins, train=False)
        u = torch.linspace(0, 1, 20).double()
        torch.testing.assert_close(to_unit(warp.noise_levels(u), PROCESS, bins), u)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("b", [0.5, 1.0, 2.0])
def test_beta_cdf_equals_scipys_with_finite_gradients(a, b):
    u = torch.linspace(0, 1, 101).double().requires_grad_()
    shaped = beta_cdf(u, a, b)
    expected = torch.tensor(scipy_beta.cdf(u.detach(), a, b))
    torch.testing.assert_close(shaped.detach(), expected, atol=2e-3, rtol=0)
    inside = slice(1, -1)
    torch.testing.assert_close(shaped.detach()[inside], expected[inside], atol=1e-9, rtol=0)
    shaped.sum().backward()
    assert u.grad is not None
    assert u.grad.isfinite().all()


def test_beta_settings_without_a_closed_form_are_refused():
    with pytest.raises(ValueError, match=r"choose both from 0.5, 1 and 2"):
        WarpConfig(beta_a=3.0, beta_b=0.5)


def fit(warp: TimeWarp, loss_at, steps: int, batch: int = 256, average: bool = True) -> None:
    """Fit on drawn noise levels, as in training."""
    adam = torch.optim.Adam(warp.parameters(), lr=0.02)
    generator = generator_for(0, "fit")
    for step in range(steps):
        adam.param_groups[0]["lr"] = 0.02 * min(1.0, 2 * (1 - step / steps))
        offset = torch.rand(1, generator=generator).double()
        t = warp.noise_levels((torch.arange(batch).double() + offset) / batch)
        warp.fitting_loss(t, loss_at(t)).backward()
        adam.step()
        adam.zero_grad()
        if average:
            warp.update_average()


def oracle_losses(t: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Exact per-sequence cross-entropies of the chain at noise levels t."""
    generator = generator_for(seed, "sequences", int(1e6 * float(t.sum())) % 10**9)
    tokens = chain().sample(len(t), 12, generator=generator)
    eps = torch.randn(len(t), 12, 16, generator=generator).double()
    exact = MarkovOracle(chain(), table(), tokens, torch.ones_like(tokens, dtype=torch.bool))
    logits = exact(add_noise(table()[tokens], t, eps), t).logits
    return -logits.gather(-1, tokens[..., None])[..., 0].mean(1)


def test_warp_fitted_to_oracle_losses_makes_the_loss_linear_in_u():
    warp = TimeWarp(WarpConfig(bins="log", num_bins=30, average_decay=0.95), PROCESS).double()
    fit(warp, oracle_losses, steps=500)
    u = torch.linspace(0, 1, 11).double()
    levels = warp.schedule().noise_levels(u)
    losses = torch.stack([oracle_losses(t.expand(1500), seed=1).mean() for t in levels])
    line = losses[0] + u * (losses[-1] - losses[0])
    assert float((losses - line).abs().max()) < 0.05 * float(losses[-1])
    # The same bound is far exceeded without warping.
    unwarped = from_unit(u, PROCESS, "log")
    losses = torch.stack([oracle_losses(t.expand(300), seed=1).mean() for t in unwarped])
    line = losses[0] + u * (losses[-1] - losses[0])
    assert float((losses - line).abs().max()) > 0.2 * float(losses[-1])


def bump(t: torch.Tensor) -> torch.Tensor:
    """A smooth increasing loss that three linear pieces cannot follow."""
    return 3 * torch.sigmoid((to_unit(t, PROCESS, "log") - 0.6) * 12)


def test_importance_weights_make_the_fit_independent_of_where_levels_are_drawn():
    """With too few bins the fit is a compromise; weighting makes it the one for uniform levels."""
    config = WarpConfig(bins="log", num_bins=3, max_importance=1e3)
    uniform = TimeWarp(config, PROCESS).double()
    skewed = TimeWarp(config, PROCESS).double()
    skewed.average_out.copy_(torch.tensor([-1.0, -1.0, 2.0]))
    for warp in (uniform, skewed):
        fit(warp, bump, steps=1500, average=False)
    t = from_unit(torch.linspace(0, 1, 50).double(), PROCESS, "log")
    gap = (uniform.expected_loss(t) - skewed.expected_loss(t)).detach().abs().max()
    assert float(gap) < 0.02  # without weights it is 0.34


@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (0.5, 0.5)])
def test_fitted_loss_follows_the_target_shape_in_u(a, b):
    warp = TimeWarp(WarpConfig(bins="log", num_bins=30, beta_a=a, beta_b=b), PROCESS).double()
    fit(warp, bump, steps=800)
    u = torch.linspace(0.1, 0.9, 9).double()
    found = bump(warp.schedule().noise_levels(u)) / bump(torch.tensor(PROCESS.t_max).double())
    torch.testing.assert_close(found, beta_cdf(u, a, b), atol=0.05, rtol=0)


def test_noise_levels_are_drawn_from_the_average_not_from_the_fit():
    warp = random_warp()
    floored = warp.average_out.softmax(0) + warp.config.min_bin
    torch.testing.assert_close(warp.schedule().cdf.widths_out, floored / floored.sum())


def test_average_moves_towards_the_fitted_logits():
    warp = random_warp(average_decay=0.9)
    before = warp.average_in.clone()
    warp.update_average()
    torch.testing.assert_close(warp.average_in, 0.9 * before + 0.1 * warp.logits_in.detach())


def test_no_gradient_flows_through_drawn_levels_and_weights():
    warp = random_warp()
    t = warp.noise_levels(torch.rand(10, generator=generator_for(0)).double())
    assert not t.requires_grad
    assert not warp.importance_weights(t).requires_grad


def test_usable_alone_as_the_module_documents():
    """The example in the module's docstring, with a toy loss."""
    warp = TimeWarp(WarpConfig(bins="log"), ProcessConfig(t_min=0.002, t_max=80.0))
    optimiser = torch.optim.Adam(warp.parameters(), lr=0.01)
    for step in range(300):
        t = warp.noise_levels(torch.rand(64, generator=generator_for(step)))
        warp.fitting_loss(t, t / (1 + t)).backward()
        optimiser.step()
        optimiser.zero_grad()
        warp.update_average()
    steps = warp.noise_levels(torch.linspace(1, 0, 51))
    losses = steps / (1 + steps)
    assert float(losses.diff().abs().max()) < 0.08
