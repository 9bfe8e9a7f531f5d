"""Pictures of a run: time warping (Figure 2 of the paper), training curves, a sample denoising."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.sampling import StepInfo
from cdcd.diffusion.warping import NoiseSchedule, TimeWarp, from_unit
from cdcd.inference.unmasking import UnmaskingStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 16
"""Positions side by side in the picture of a denoising sample."""
BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#a0aec0"


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    """Returns a figure with its axes; without matplotlib, says what to install."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'cdcd[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def plot_time_warping(
    warp: TimeWarp, t: Sequence[float], losses: Sequence[float], path: Path
) -> None:
    """Draws loss and fitted F̃ over t, the implied weighting of noise levels, and loss over u (Figure 2)."""
    figure, (top, middle, bottom) = new_figure(3, 1, (7, 9))
    schedule, bins = warp.schedule(), warp.config.bins
    grid = from_unit(torch.linspace(0, 1, 1000), warp.process, bins)
    edges = from_unit(schedule.cdf.widths_in.cumsum(0).clamp(max=1), warp.process, bins)
    with torch.no_grad():
        fitted = warp.expected_loss(grid)
    for edge in edges[:-1].tolist():
        top.axvline(edge, color=GREY, linewidth=0.4, linestyle=":", zorder=0)
    u = schedule.uniform_time(torch.tensor(t))
    means_u, means_loss = _group_means(u, torch.tensor(losses))
    for axis, x, means_x, grid_x in (
        (top, t, schedule.noise_levels(means_u), grid),
        (bottom, u, means_u, schedule.uniform_time(grid)),
    ):
        axis.plot(x, losses, ".", color=BLUE, alpha=0.25, markersize=3, label="loss of a sequence")
        axis.plot(means_x, means_loss, "o", color=BLUE, label="mean of neighbours")
        axis.plot(grid_x, fitted, color=ORANGE, label="fitted F̃")
        axis.set_ylabel("cross-entropy (nats)")
        axis.legend(frameon=False)
    middle.plot(grid, _weighting(schedule, grid), color=ORANGE)
    middle.set(ylabel="λ(t) = dF/dt", title="Implied weighting of noise levels")
    for axis in (top, middle):
        axis.set(xlabel="noise level t", xscale=bins)
    top.set_title("Loss and its fit")
    bottom.set(xlabel="uniform time u = F(t)", title="Loss over uniform time")
    figure.savefig(path, dpi=130)


def _group_means(
    u: Float[Tensor, " points"], losses: Float[Tensor, " points"], groups: int = 12
) -> tuple[Tensor, Tensor]:
    """Means of points that are neighbours in u, in groups of equal size."""
    order = u.argsort()
    parts = torch.tensor_split(order, min(groups, len(order)))
    return (
        torch.stack([u[part].mean() for part in parts]),
        torch.stack([losses[part].mean() for part in parts]),
    )


def _weighting(schedule: NoiseSchedule, t: Tensor) -> Float[Tensor, " grid"]:
    """Computes dF/dt by the chain rule through the reference coordinate."""
    ends = schedule.process
    if schedule.bins == "linear":
        return schedule.density(t) / (ends.t_max - ends.t_min)
    return schedule.density(t) / (t * torch.tensor(ends.t_max / ends.t_min).log())


def plot_training(metrics: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws training and validation loss over steps, and the last of one or more validations by noise level.

    A diffusion model is validated at fixed noise levels, and trained at levels that follow the warp; a
    masked one at fixed shares of masked tokens.
    """
    figure, (left, right) = new_figure(1, 2, (11, 4))
    for name, style, colour, label in (
        ("loss", "-", BLUE, "training"),
        ("valid_loss", "o-", ORANGE, "validation"),
    ):
        losses = {row["step"]: row[name] for row in metrics if name in row}
        left.plot(list(losses), list(losses.values()), style, color=colour, label=label)
    left.set(xlabel="step", ylabel="cross-entropy (nats)", title="Loss", ylim=(0, None))
    left.legend(frameon=False)
    *_, last = (row["validation"] for row in metrics if "valid_loss" in row)
    levels, shares = last.get("levels"), last.get("shares")
    right.set_visible(bool(levels or shares))
    if levels:
        _draw_levels(right, levels, "t", "noise level t")
        right.set(xscale="log")
    elif shares:
        _draw_levels(right, shares, "share", "share of masked tokens")
    figure.savefig(path, dpi=130)


def _draw_levels(
    axis: "Axes", levels: Sequence[dict[str, float]], name_of_x: str, label_of_x: str
) -> None:
    x, accuracy = [level[name_of_x] for level in levels], axis.twinx()
    for each, name, style, colour, label in (
        (axis, "loss", "o-", ORANGE, "cross-entropy"),
        (axis, "entropy", "s--", BLUE, "prediction entropy"),
        (accuracy, "accuracy", ":", GREY, "accuracy"),
    ):
        each.plot(x, [level[name] for level in levels], style, color=colour, label=label)
    axis.set(xlabel=label_of_x, ylabel="nats", ylim=(0, None))
    axis.set_title(f"Validation by {label_of_x.removesuffix(' t')}")
    accuracy.spines[["top"]].set_visible(False)
    accuracy.set(ylabel="accuracy (dotted)", ylim=(0, 1.02))
    axis.legend(frameon=False, loc="center left")


class Trace:
    """A sampling callback that notes, for the first sample, each position's likeliest token."""

    def __init__(self, rows: int = 11) -> None:
        self.rows = rows
        self.levels: list[float] = []
        self.tokens: list[Int[Tensor, " seq"]] = []
        self.certainty: list[Float[Tensor, " seq"]] = []

    def __call__(self, info: StepInfo | UnmaskingStep) -> None:
        wanted = {round(i * (info.num_steps - 1) / (self.rows - 1)) for i in range(self.rows)}
        if info.index in wanted:
            certainty, tokens = info.probabilities[0].max(-1)
            self.levels.append(info.t)
            self.tokens.append(tokens.cpu())
            self.certainty.append(certainty.float().cpu())


def plot_denoising(
    trace: Trace,
    final: Sequence[int],
    is_given: Sequence[bool],
    piece: Callable[[int], str],
    path: Path,
) -> None:
    """Draws one sample over the steps: at each position the most likely token, coloured by its certainty."""
    length, last = len(final), len(trace.tokens)
    fixed = torch.tensor(is_given)
    tokens = torch.stack([*(each[:length] for each in trace.tokens), torch.tensor(final)])
    tokens = torch.where(fixed, tokens[-1], tokens)
    certainty = torch.stack([*(each[:length] for each in trace.certainty), torch.ones(length)])
    certainty = torch.where(fixed, 1.0, certainty)
    starts = range(0, max(length, 1), COLUMNS)
    width = max(0.72 * min(COLUMNS, length) + 1.2, 6.0)
    height = len(starts) * (0.27 * len(tokens) + 0.3) + 0.5
    figure, axes = new_figure(len(starts), 1, (width, height))
    for axis, start in zip(axes, starts, strict=True):
        part = certainty[:, start : start + COLUMNS]
        axis.imshow(part.numpy(), cmap="YlGnBu", vmin=0, vmax=1.25, aspect="auto")
        for row, column in itertools.product(*map(range, part.shape)):
            axis.text(
                column,
                row,
                _short(piece(int(tokens[row, start + column]))),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if part[row, column] > 0.7 else "black",
                fontweight="bold" if fixed[start + column] else "normal",
            )
        axis.set_xlim(-0.5, min(COLUMNS, length) - 0.5)
        axis.set_yticks(range(last + 1), [f"t = {t:.3g}" for t in trace.levels] + ["text"])
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
    given = ", given tokens are bold" if fixed.any() else ""
    axes[0].set_title(
        f"Most likely token at each position while denoising:\ndarker is more certain{given}",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)


def _short(piece: str) -> str:
    piece = piece.replace("▁", "·").replace("$", r"\$")
    return piece if len(piece) <= 10 else piece[:9] + "…"
