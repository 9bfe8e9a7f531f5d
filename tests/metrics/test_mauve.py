"""MAUVE has its known values and symmetries, and agrees with the frozen answers of the authors' package."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from fixtures import make_mauve_fixture as fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from cdcd.metrics import mauve as module
from cdcd.metrics.mauve import (
    area_under,
    divergence_curve,
    k_means,
    mauve,
    principal_components,
)


def area_under_divergence_curve(p, q, **options) -> float:
    """MAUVE of two histograms."""
    return area_under(divergence_curve(p, q, **options))


def features(count: int, *, shift: float = 0.0, seed: int, width: int = 24) -> torch.Tensor:
    """A mixture of clouds, moved by `shift` in a fixed direction."""
    fixed, generator = torch.Generator().manual_seed(7), torch.Generator().manual_seed(seed)
    centres = torch.randn(10, width, generator=fixed)
    direction = torch.randn(width, generator=fixed)
    drawn = torch.randint(10, (count,), generator=generator)
    return centres[drawn] + torch.randn(count, width, generator=generator) + shift * direction


def histogram(values) -> torch.Tensor:
    values = torch.tensor(values, dtype=torch.double)
    return values / values.sum()


def exact_area(p: torch.Tensor, q: torch.Tensor, scaling: float) -> float:
    """∫ y dx by quadrature, with dx/dw in closed form, and the strip left of the last point."""
    p, q = p.numpy(), q.numpy()

    def kl(a, r):
        return np.sum(a[a > 0] * np.log(a[a > 0] / r[a > 0]))

    def integrand(w):
        r = w * p + (1 - w) * q
        slope = -np.sum((q * (p - q))[q > 0] / r[q > 0])
        return math.exp(-scaling * (kl(p, r) + kl(q, r))) * scaling * slope

    strip = math.exp(-scaling * kl(q, p)) if (p[q > 0] > 0).all() else 0.0
    return quad(integrand, 0, 1, epsabs=1e-12, limit=200)[0] + strip


@pytest.mark.parametrize("scaling", [1.0, 2.0, 5.0])
def test_disjoint_histograms_have_the_least_area(scaling):
    p, q = histogram([1, 2, 0, 0]), histogram([0, 0, 3, 1])
    least = math.gamma(scaling + 1) ** 2 / math.gamma(2 * scaling + 1)
    assert exact_area(p, q, scaling) == pytest.approx(least, rel=1e-8)
    fine = area_under_divergence_curve(p, q, scaling=scaling, num_weights=20_001)
    assert fine == pytest.approx(least, rel=1e-5)
    assert area_under_divergence_curve(p, q, scaling=scaling) == pytest.approx(least, rel=0.05)


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.5, 6))
@settings(max_examples=40, deadline=None)
def test_the_area_converges_to_the_integral(seed, size, scaling):
    rng = np.random.default_rng(seed)
    p, q = histogram(rng.random(size) + 0.02), histogram(rng.random(size) + 0.02)
    expected = exact_area(p, q, scaling)
    fine = area_under_divergence_curve(p, q, scaling=scaling, num_weights=4001)
    assert fine == pytest.approx(expected, abs=1e-5)
    assert abs(area_under_divergence_curve(p, q, scaling=scaling) - expected) < 4e-3


def test_the_integral_tells_a_wrong_curve_apart():
    """Twice the KL, or the KL taken the other way round, would fail the test above."""
    p, q = histogram([5, 3, 2]), histogram([1, 2, 7])
    right = area_under_divergence_curve(p, q, num_weights=4001)
    assert abs(right - exact_area(p, q, 10.0)) > 0.05
    w = torch.linspace(1e-6, 1 - 1e-6, 4001, dtype=torch.double)[:, None]
    r = w * p + (1 - w) * q
    reverse = [(r * (r / a).log()).sum(1) for a in (q, p)]
    ends = torch.eye(2, dtype=torch.double)
    wrong = torch.cat([ends[:1], torch.exp(-5 * torch.stack(reverse, 1)), ends[1:]])
    assert abs(area_under(wrong) - exact_area(p, q, 5.0)) > 1e-3


@given(st.integers(0, 10**6), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_the_curve_falls_and_its_area_is_symmetric(seed, size):
    rng = np.random.default_rng(seed)
    p, q = histogram(rng.integers(0, 5, size) + np.eye(size)[0]), histogram(rng.random(size))
    curve = divergence_curve(p, q, scaling=5.0, num_weights=25)
    steps = curve.diff(dim=0)
    assert curve[0].tolist() == [1, 0]
    assert curve[-1].tolist() == [0, 1]
    assert (steps[:, 0] <= 1e-12).all()
    assert (steps[:, 1] >= -1e-12).all()
    area = area_under(curve)
    assert area_under(curve.flip(1).flip(0)) == pytest.approx(area, abs=1e-12)
    assert area_under_divergence_curve(q, p) == pytest.approx(area, abs=1e-12)
    assert 1 / 252 <= area <= 1 + 1e-12
    assert area_under_divergence_curve(p, p) == pytest.approx(1, abs=1e-12)


def test_equal_features_score_one():
    p = features(300, seed=0)
    assert mauve(p, p) == pytest.approx(1, abs=1e-12)


def test_features_far_apart_score_the_least():
    p, q = features(300, seed=0), features(300, seed=1)
    far = torch.zeros(24)
    far[0] = 100
    least = area_under_divergence_curve(histogram([1, 0]), histogram([0, 1]))
    assert mauve(p - far, q + far) == pytest.approx(least, abs=1e-12)


def test_exchange_and_order_change_nothing():
    p, q = features(200, seed=0), features(150, seed=1, shift=0.5)
    found = mauve(p, q, seed=3)
    assert mauve(p, q, seed=3, num_clusters=15) == found != mauve(p, q, seed=3, num_clusters=16)
    assert mauve(q, p, seed=3) == pytest.approx(found, abs=1e-12)
    shuffled = p[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert mauve(shuffled, q, seed=3) == pytest.approx(found, abs=1e-12)
    assert mauve(3 * p, q, seed=3) == pytest.approx(found, abs=1e-9)
    assert mauve(p, q, seed=4) != found


def test_garbage_lowers_the_score():
    p, q = features(400, seed=0), features(400, seed=1)
    garbage = features(400, seed=2, shift=3.0)
    scores = [
        mauve(p, torch.cat([q[count:], garbage[:count]])) for count in (0, 40, 100, 200, 300, 400)
    ]
    assert scores[0] > 0.9
    assert scores[-1] < 0.05
    assert all(a > b + 0.02 for a, b in itertools.pairwise(scores))


def test_principal_components_keep_the_variance_asked_for():
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([5.0, 3.0, 2.0, 1.0, 0.5])
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator))[0]
    rows = torch.randn(4000, 5, generator=generator) * spread @ rotation
    singular = torch.linalg.svdvals((rows - rows.mean(0)).double())
    for share in (0.5, 0.8, 0.9, 0.99):
        kept = principal_components(rows.double(), share)
        explained = singular.square().cumsum(0) / singular.square().sum()
        assert kept.shape[1] == int((explained < share).sum()) + 1
        assert kept.norm(dim=0).tolist() == pytest.approx(singular[: kept.shape[1]].tolist())
        assert (kept.T @ kept - torch.diag(kept.norm(dim=0) ** 2)).abs().max() < 1e-6


def test_k_means_finds_separate_clouds_at_any_chunk(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(6, (300,), generator=generator)
    rows = 20 * torch.eye(6)[truth] + torch.randn(300, 6, generator=generator)
    options = {"num_restarts": 20, "seed": 0}
    clusters, inertia = k_means(rows, 6, **options)
    pairs = set(zip(truth.tolist(), clusters.tolist(), strict=True))
    assert len(pairs) == 6
    centres = torch.stack([rows[truth == k].mean(0) for k in range(6)])
    assert inertia == pytest.approx(float((rows - centres[truth]).square().sum()), rel=1e-4)
    monkeypatch.setattr(module, "DISTANCES_AT_A_TIME", 100)
    assert k_means(rows, 6, **options)[0].equal(clusters)
    assert k_means(rows, 6, **options | {"num_restarts": 1})[1] >= inertia


def test_empty_clusters_start_anew():
    """Five copies of one point and two others: three centres must end on three points."""
    rows = torch.tensor([[0.0], [0.0], [0.0], [0.0], [0.0], [5.0], [9.0]])
    for seed in range(10):
        clusters, inertia = k_means(rows, 3, num_restarts=1, seed=seed)
        assert inertia == 0
        assert len(clusters.unique()) == 3


def test_features_that_cannot_be_compared_are_refused():
    p, q = features(40, seed=0), features(40, seed=1)
    with pytest.raises(ValueError, match="24 and 23 wide"):
        mauve(p, q[:, :23])
    with pytest.raises(ValueError, match="21 clusters for 40 samples"):
        mauve(p, q, num_clusters=21)
    with pytest.raises(ValueError, match="1 clusters for 40 samples"):
        mauve(p, q, num_clusters=1)
    with pytest.raises(ValueError, match="2 clusters for 3 samples"):
        mauve(p, q[:3])
    q[3, 4] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        mauve(p, q)


OPTIONS = {
    "mauve_scaling_factor": "scaling",
    "divergence_curve_discretization_size": "num_weights",
    "num_buckets": "num_clusters",
    "kmeans_explained_var": "explained_variance",
}
"""Our name for each option of the authors' package."""
FROZEN = json.loads(fixture.FIXTURE.read_text(encoding="utf-8"))


def ours_of(case):
    """Translates the options of a frozen case."""
    return {OPTIONS[name]: value for name, value in case.items() if name in OPTIONS}


def test_the_frozen_features_are_drawn_again():
    drawn = fixture.features(600, seed=1, shift=0.3).sum(dtype=np.float64)
    assert drawn == pytest.approx(FROZEN["feature_sum"], rel=1e-9)


@pytest.mark.parametrize("case", FROZEN["histograms"])
def test_histograms_score_as_in_the_authors_package(case):
    """The same curve and area to rounding, on the package's own histograms of the features."""
    p, q = (torch.tensor(case[name], dtype=torch.double) for name in ("p_hist", "q_hist"))
    curve = divergence_curve(p, q, **{"scaling": 5.0, "num_weights": 25} | ours_of(case))
    assert (curve - torch.tensor(case["curve"], dtype=torch.double)).abs().max() < 1e-12
    ours = area_under_divergence_curve(p, q, **ours_of(case))
    assert ours == pytest.approx(case["mauve"], abs=1e-12)


@pytest.mark.parametrize("case", FROZEN["scores"])
def test_features_score_as_in_the_authors_package(case):
    """Clusters are drawn at random in both: the means over seeds agree within four errors."""
    p, q = (
        torch.from_numpy(fixture.features(case["count"], seed=seed, shift=shift))
        for seed, shift in ((0, 0.0), (1, case["shift"]))
    )
    answers = [mauve(p, q, seed=seed, **ours_of(case)) for seed in fixture.SEEDS]
    assert answers[0] == mauve(p, q, **ours_of(case) | {"num_clusters": case["clusters"]})
    ours, theirs = torch.tensor(answers), torch.tensor(case["mauve"])
    error = ((ours.var() + theirs.var()) / len(fixture.SEEDS)).sqrt()
    assert abs(float(ours.mean() - theirs.mean())) < 4 * float(error) + 1e-4
