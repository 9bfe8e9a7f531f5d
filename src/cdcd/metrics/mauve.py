"""MAUVE: how close two sets of texts are, by the features of a language model (§6.5).

Pillutla et al. (2021) cluster the features of both sets together. With p and q the shares of the
clusters in each set, mixtures r = w p + (1 - w) q for w from 0 to 1 trace the divergence curve

    (exp(-c KL(q ‖ r)), exp(-c KL(p ‖ r))),

from (1, 0) to (0, 1), and MAUVE is the area under it: 1 for equal histograms, near 0 for disjoint
ones. The defaults are those of the authors' package `mauve-text`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

SAMPLES_PER_CLUSTER = 10
"""Sets the number of clusters: samples of the smaller set to one cluster."""
FEWEST_PER_CLUSTER = 2
"""With fewer samples of either set, the histograms would be mostly chance."""
MOST_ITERATIONS = 500
"""Iterations of k-means, which settles long before."""
END = 1e-6
"""Distance of the first and last mixture weight from 0 and 1."""
DISTANCES_AT_A_TIME = 2**24
"""Bounds the memory of k-means."""


def mauve(
    features_p: Float[Tensor, "samples_p width"],
    features_q: Float[Tensor, "samples_q other_width"],
    *,
    num_clusters: int | None = None,
    seed: int = 0,
    explained_variance: float = 0.9,
    num_restarts: int = 5,
) -> float:
    """Computes MAUVE of two sets of features, one row per text; the order of sets and rows has no effect."""
    sizes = [len(features_p), len(features_q)]
    if num_clusters is None:
        num_clusters = max(2, round(min(sizes) / SAMPLES_PER_CLUSTER))
    _check(features_p, features_q, num_clusters)
    joint = normalize(torch.cat([features_p, features_q]).double(), dim=1)
    order = _own_order(joint)
    reduced = principal_components(joint[order], explained_variance).float()
    clusters = torch.empty_like(order)
    clusters[order], _ = k_means(reduced, num_clusters, num_restarts=num_restarts, seed=seed)
    p, q = (_histogram(part, num_clusters) for part in clusters.split(sizes))
    return area_under(divergence_curve(p, q))


def _check(features_p: Tensor, features_q: Tensor, num_clusters: int) -> None:
    if features_p.shape[1] != features_q.shape[1]:
        raise ValueError(
            f"the features are {features_p.shape[1]} and {features_q.shape[1]} wide; "
            "take both from the same network"
        )
    if not (features_p.isfinite().all() and features_q.isfinite().all()):
        raise ValueError("a feature is not finite; compute the features in higher precision")
    fewest = min(len(features_p), len(features_q))
    if num_clusters < 2 or fewest < FEWEST_PER_CLUSTER * num_clusters:
        raise ValueError(
            f"{num_clusters} clusters for {fewest} samples; from 2 clusters on, each needs "
            f"{FEWEST_PER_CLUSTER} samples of either set: choose others or generate more"
        )


def _own_order(rows: Float[Tensor, "samples width"]) -> Int[Tensor, " samples"]:
    """Sorts by a fixed projection, so that clusters do not depend on the order of the samples."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(rows.shape[1], generator=generator, dtype=rows.dtype)
    return (rows * direction.to(rows.device)).sum(1).argsort(stable=True)


def _histogram(clusters: Int[Tensor, " samples"], num_clusters: int) -> Float[Tensor, " clusters"]:
    return torch.bincount(clusters, minlength=num_clusters).double() / len(clusters)


def principal_components(
    rows: Float[Tensor, "samples width"], explained_variance: float
) -> Float[Tensor, "samples kept"]:
    """Computes coordinates along the fewest principal axes that explain this share of the variance."""
    centred = rows - rows.mean(0)
    variances, axes = torch.linalg.eigh(centred.T @ centred)
    explained = variances.flip(0).clamp(min=0).cumsum(0)
    kept = int((explained < explained_variance * explained[-1]).sum()) + 1
    return centred @ axes.flip(1)[:, :kept]


def k_means(
    rows: Float[Tensor, "samples width"],
    num_clusters: int,
    *,
    num_restarts: int,
    seed: int,
) -> tuple[Int[Tensor, " samples"], float]:
    """Returns the clusters and the inertia of the best of several runs of Lloyd's algorithm.

    Each run begins with samples drawn as centres. The inertia is the sum of squared distances to them.
    """
    generator = torch.Generator().manual_seed(seed)
    runs = []
    for _ in range(num_restarts):
        drawn = torch.randperm(len(rows), generator=generator)[:num_clusters]
        runs.append(_lloyd(rows, rows[drawn.to(rows.device)]))
    return min(runs, key=lambda run: run[1])


def _lloyd(
    rows: Float[Tensor, "samples width"], centres: Float[Tensor, "clusters width"]
) -> tuple[Int[Tensor, " samples"], float]:
    """Assigns and averages in turn until the inertia falls no more."""
    clusters, distances = _nearest(rows, centres)
    inertia = float(distances.double().sum())
    for _ in range(MOST_ITERATIONS):
        centres = _means(rows, clusters, distances, len(centres))
        moved, distances = _nearest(rows, centres)
        lower = float(distances.double().sum())
        if lower >= inertia:
            break
        clusters, inertia = moved, lower
    return clusters, inertia


def _nearest(
    rows: Float[Tensor, "samples width"], centres: Float[Tensor, "clusters width"]
) -> tuple[Int[Tensor, " samples"], Float[Tensor, " samples"]]:
    """Returns each row's nearest centre and its squared distance: ‖x‖² - 2 x·c + ‖c‖²."""
    norms = centres.square().sum(1)
    block = max(1, DISTANCES_AT_A_TIME // len(centres))
    nearest = [torch.addmm(norms, part, centres.T, alpha=-2).min(1) for part in rows.split(block)]
    distances = torch.cat([part.values for part in nearest]) + rows.square().sum(1)
    return torch.cat([part.indices for part in nearest]), distances.clamp(min=0)


def _means(
    rows: Float[Tensor, "samples width"],
    clusters: Int[Tensor, " samples"],
    distances: Float[Tensor, " samples"],
    num_clusters: int,
) -> Float[Tensor, "clusters width"]:
    """Returns the mean of each cluster; an empty one starts anew at a row that is far from its centre.

    Summed in float64: a GPU adds in any order, and the difference is lost in rounding.
    """
    counts = torch.bincount(clusters, minlength=num_clusters)
    sums = rows.new_zeros(num_clusters, rows.shape[1], dtype=torch.double)
    sums.index_add_(0, clusters, rows.double())
    means = (sums / counts.clamp(min=1)[:, None]).to(rows.dtype)
    is_empty = counts == 0
    farthest = distances.topk(int(is_empty.sum())).indices
    means[is_empty] = rows[farthest]
    return means


def divergence_curve(
    p: Float[Tensor, " clusters"],
    q: Float[Tensor, " clusters"],
    *,
    scaling: float = 5.0,
    num_weights: int = 25,
) -> Float[Tensor, "points 2"]:
    """Returns points of the curve for evenly spaced mixture weights, between its two corners.

    `p` and `q` are histograms, each of which sums to 1.
    """
    weights = torch.linspace(END, 1 - END, num_weights, dtype=torch.double, device=p.device)
    p, q = p.double(), q.double()
    mixtures = weights[:, None] * p + (1 - weights[:, None]) * q
    divergences = torch.stack([_kl(q, mixtures), _kl(p, mixtures)], dim=1)
    corners = torch.eye(2, dtype=torch.double, device=p.device)
    return torch.cat([corners[:1], torch.exp(-scaling * divergences), corners[1:]])


def _kl(p: Float[Tensor, " clusters"], r: Float[Tensor, "weights clusters"]) -> Tensor:
    """Returns KL(p ‖ r) for mixtures r, which are positive where p is; rounding does not make it negative."""
    return (torch.xlogy(p, p) - torch.xlogy(p, r)).sum(1).clamp(min=0)


def area_under(curve: Float[Tensor, "points 2"]) -> float:
    """Returns the area by trapezia. Exchanging the axes gives the same, as the ends lie on both axes."""
    x, y = curve.T
    return float(((x[:-1] - x[1:]) * (y[:-1] + y[1:])).sum() / 2)
