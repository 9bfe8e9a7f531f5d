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
    top.plot(t, losses, ".", color=BLUE, alpha=0.25, markersize=3, label="loss of a sequence")
    top.plot(
        schedule.noise_levels(means_u), means_loss, "o", color=BLUE, label="mean of neighbours"
    )
    top.plot(grid, fitted, color=ORANGE, label="fitted F̃(t)")
    top.set(xlabel="noise level t", ylabel="cross-entropy (nats)", title="Loss and its fit")
    top.legend(frameon=False)
    middle.plot(grid, _weighting(schedule, grid), color=ORANGE)
    middle.set(
        xlabel="noise level t", ylabel="λ(t) = dF/dt", title="Implied weighting of noise levels"
    )
    bottom.plot(u, losses, ".", color=BLUE, alpha=0.25, markersize=3, label="loss of a sequence")
    bottom.plot(means_u, means_loss, "o", color=BLUE, label="mean of neighbours")
    bottom.plot(schedule.uniform_time(grid), fitted, color=ORANGE, label="fitted")
    bottom.set(
        xlabel="uniform time u = F(t)",
        ylabel="cross-entropy (nats)",
        title="Loss over uniform time",
    )
    bottom.legend(frameon=False)
    if bins == "log":
        for axis in (top, middle):
            axis.set_xscale("log")
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
    """Draws training and validation loss over steps, and the last validation by noise level.

    A diffusion model is validated at fixed noise levels, and trained at levels that follow the warp.
    """
    figure, (left, right) = new_figure(1, 2, (11, 4))
    train = [row for row in metrics if "loss" in row]
    valid = [row for row in metrics if "valid_loss" in row]
    levels = valid[-1]["validation"].get("levels", []) if valid else []
    labels = ("training", "validation")
    if levels:
        labels = ("training, levels of the warp", "validation, fixed levels")
    for rows, name, style, color, label in (
        (train, "loss", "-", BLUE, labels[0]),
        (valid, "valid_loss", "o-", ORANGE, labels[1]),
    ):
        left.plot(
            [r["step"] for r in rows], [r[name] for r in rows], style, color=color, label=label
        )
    left.set(xlabel="step", ylabel="cross-entropy (nats)", title="Loss", ylim=(0, None))
    left.legend(frameon=False)
    right.set_visible(bool(levels))
    if levels:
        t = [level["t"] for level in levels]
        right.plot(
            t, [level["loss"] for level in levels], "o-", color=ORANGE, label="cross-entropy"
        )
        right.plot(
            t, [level["entropy"] for level in levels], "s--", color=BLUE, label="prediction entropy"
        )
        right.set(
            xscale="log", xlabel="noise level t", ylabel="nats", title="Validation by noise level"
        )
        accuracy = right.twinx()
        accuracy.plot(t, [level["accuracy"] for level in levels], ":", color=GREY)
        accuracy.set(ylabel="accuracy (dotted)", ylim=(0, 1.02))
        right.legend(frameon=False, loc="center left")
    figure.savefig(path, dpi=130)


class Trace:
    """A sampling callback that notes, for the first sample, each position's likeliest token."""

    def __init__(self, rows: int = 11) -> None:
        self.rows = rows
        self.levels: list[float] = []
        self.tokens: list[Int[Tensor, " seq"]] = []
        self.certainty: list[Float[Tensor, " seq"]] = []

    def __call__(self, info: StepInfo) -> None:
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
    rows = [[*tokens.tolist()[: len(final)]] for tokens in trace.tokens] + [list(final)]
    certainty = torch.ones(len(rows), len(final))
    for row, values in enumerate(trace.certainty):
        certainty[row] = torch.where(torch.tensor(is_given), 1.0, values[: len(final)])
    starts = range(0, max(len(final), 1), COLUMNS)
    size = (0.72 * min(COLUMNS, len(final)) + 1.2, len(starts) * (0.27 * len(rows) + 0.3) + 0.4)
    figure, axes = new_figure(len(starts), 1, (max(size[0], 6.0), size[1]))
    for axis, start in zip(axes, starts, strict=True):
        columns = range(start, min(start + COLUMNS, len(final)))
        axis.imshow(
            certainty[:, start : columns.stop].numpy(),
            cmap="YlGnBu",
            vmin=0,
            vmax=1.25,
            aspect="auto",
        )
        for row, column in itertools.product(range(len(rows)), columns):
            token = final[column] if is_given[column] else rows[row][column]
            axis.text(
                column - start,
                row,
                _short(piece(token)),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if certainty[row, column] > 0.7 else "black",
                fontweight="bold" if is_given[column] or row == len(rows) - 1 else "normal",
            )
        axis.set_xlim(-0.5, min(COLUMNS, len(final)) - 0.5)
        axis.set_yticks(range(len(rows)), [f"t = {t:.3g}" for t in trace.levels] + ["text"])
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
    axes[0].set_title(
        "Most likely token at each position while denoising: darker is more certain, given tokens are bold"
    )
    figure.savefig(path, dpi=110)


def _short(piece: str) -> str:
    piece = piece.replace("▁", "·").replace("$", r"\$")
    return piece if len(piece) <= 10 else piece[:9] + "…"
