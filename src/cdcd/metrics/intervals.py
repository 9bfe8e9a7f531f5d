"""Confidence intervals of measured numbers, and numbers read off a frontier.

Samples are independent and tokens of one sample are not, so every interval here resamples or leaves
out whole samples. A frontier is the curve of (entropy, NLL) over a swept hyperparameter (§6.4):
models are compared by their NLL at the entropy of the data.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cdcd.metrics.entropy import counts_by_sample, pooled_entropy

NORMAL = 1.959964
"""Half the width of a normal 95% interval, in standard errors."""


@dataclass(frozen=True)
class Interval:
    """A measured value and its 95% confidence interval."""

    value: float
    low: float
    high: float


def standard_error(interval: Interval) -> float:
    """Returns the standard error of which an interval has 1.96 to each side."""
    return (interval.high - interval.low) / (2 * NORMAL)


def bootstrap(
    tensors: Sequence[Tensor],
    statistic: Callable[..., float],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Bootstraps over samples: percentiles of `statistic(*tensors)` on rows drawn with replacement.

    For statistics that averages explain, not for entropies or counts of types: a resample misses
    about a third of the samples and with them their rare tokens. See `pooled_entropy_interval`.
    """
    num_samples = len(tensors[0])
    if num_samples < 2:
        raise ValueError(f"{num_samples} samples show no spread; give 2 or more")
    if num_resamples < 100:
        raise ValueError(f"num_resamples is {num_resamples}; tails need 100 or more: raise it")
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(num_resamples, dtype=torch.double)
    for resample in range(num_resamples):
        rows = torch.randint(num_samples, (num_samples,), generator=generator)
        values[resample] = statistic(*(tensor[rows.to(tensor.device)] for tensor in tensors))
    low, high = values.quantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return Interval(statistic(*tensors), low, high)


def ratio_interval(
    numerators: Shaped[Tensor, " samples"],
    denominators: Shaped[Tensor, " samples"],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Bootstraps Σ numerators / Σ denominators, such as the NLL per token of samples."""
    above, below = numerators.double().cpu(), denominators.double().cpu()
    if (below < 0).any() or below.sum() == 0:
        raise ValueError(
            f"the denominators sum to {float(below.sum())} with a least of {float(below.min())}; "
            "counts are 0 or more and not all 0: leave out empty sets"
        )
    return bootstrap(
        [torch.stack([above, below], 1)],
        lambda rows: float(torch.div(*rows.sum(0))),
        num_resamples=num_resamples,
        seed=seed,
    )


def share_interval(count: int, total: int) -> Interval:
    """Computes a share with Wilson's interval, which holds near 0 and 1 too."""
    if not 0 <= count <= total or total < 1:
        raise ValueError(
            f"{count} of {total} is no share; count at least one, and no more than all"
        )
    share, square = count / total, NORMAL**2
    centre = (count + square / 2) / (total + square)
    spread = math.sqrt(total * share * (1 - share) + square / 4) * NORMAL / (total + square)
    return Interval(share, max(centre - spread, 0.0), min(centre + spread, 1.0))


def pooled_entropy_interval(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> Interval:
    """Computes the pooled entropy, with a normal interval by the jackknife over samples.

    It covers the mean entropy of sets of this many tokens, which is what is compared at equal
    counts, and not the higher entropy of unlimited text. A bootstrap would lie too low and the
    linearised error would be too small: both misjudge tokens that occur once.
    """
    num_samples = len(tokens)
    if num_samples < 2:
        raise ValueError(f"{num_samples} samples show no spread; give 2 or more")
    value = pooled_entropy(tokens, is_generated)
    without = _entropies_without_each(tokens, is_generated)
    error = float(((num_samples - 1) * without.var(correction=0)).sqrt())
    return Interval(value, value - NORMAL * error, value + NORMAL * error)


def _entropies_without_each(
    tokens: Int[Tensor, "samples seq"], is_generated: Bool[Tensor, "samples seq"]
) -> Float[Tensor, " samples"]:
    """Computes the pooled entropy without each sample: ln N - Σ n ln n / N with reduced counts."""
    samples, kinds, counts = counts_by_sample(tokens, is_generated)
    pooled = torch.bincount(tokens[is_generated]).double()
    n_log_n = torch.xlogy(pooled, pooled)
    left = pooled[kinds] - counts
    changes = torch.zeros(len(tokens), dtype=torch.double, device=tokens.device)
    changes.index_add_(0, samples, torch.xlogy(left, left) - n_log_n[kinds])
    totals = (pooled.sum() - is_generated.sum(1)).clamp(min=1)
    return totals.log() - (n_log_n.sum() + changes) / totals


def interpolate_at(points: Sequence[tuple[float, float]], entropy: float) -> float | None:
    """Returns the NLL of a frontier at an entropy; None where the frontier does not reach it.

    `points` are (entropy, NLL) in the order of the sweep; neighbours are joined by straight lines.
    A frontier may turn back and pass the entropy several times: the lowest NLL counts, being a
    setting that one would choose. Nothing is extrapolated.
    """
    if not all(math.isfinite(x) for x in [entropy, *(x for point in points for x in point)]):
        raise ValueError(
            f"a point of {list(points)} or the entropy {entropy} is not finite: drop it"
        )
    passed = [nll for h, nll in points if h == entropy]
    for (h1, nll1), (h2, nll2) in itertools.pairwise(points):
        if min(h1, h2) < entropy < max(h1, h2):
            passed.append(nll1 + (nll2 - nll1) * (entropy - h1) / (h2 - h1))
    return min(passed, default=None)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean over seeds and its standard error, from the unbiased variance."""
    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no standard error; give 2 or more seeds")
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
