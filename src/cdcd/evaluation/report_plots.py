"""Pictures of a report: NLL against entropy (Figures 5 and 6 of the paper), denoising quality."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cdcd.evaluation.report import Report, Row

COLOURS = (BLUE, ORANGE, "#2f855a", "#805ad5", "#b83280", "#718096")
CONTROL = "control: "


def plot_frontiers(report: "Report", path: Path) -> None:
    """AR-NLL over entropy: the data's own point, a line for each system, a marker for each setting."""
    figure, (axis,) = new_figure(1, 1, (8, 5.5))
    (x, x_error), (y, y_error) = (report.row("data").mean(name) for name in ("entropy", "nll"))
    axis.errorbar(x, y, y_error, x_error, "x", color="black", markersize=10, label="data")
    axis.axvline(x, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    lines = report.lines()
    controls = [label for label in lines if label.startswith(CONTROL)]
    systems = [label for label in lines if label not in controls]
    for number, label in enumerate(systems):
        _line(axis, lines[label], COLOURS[number % len(COLOURS)], label)
    for label in controls:
        nll = lines[label][0].mean("nll")[0]
        _line(axis, lines[label], GREY, f"{label} (NLL {nll:.1f})")
    axis.set(
        ylim=_shown_range([y, *(row.mean("nll")[0] for name in systems for row in lines[name])]),
        xlabel="unigram entropy, pooled (nats)",
        ylabel="AR-NLL (nats a token)",
        title=f"Quality against diversity, {report.protocol['num_samples']} samples a point",
    )
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)


def _shown_range(values: "Sequence[float]") -> tuple[float, float]:
    """Room for the data and the systems; a control may lie far beyond them."""
    margin = 0.12 * (max(values) - min(values)) + 0.1
    return min(values) - margin, max(values) + margin


def _line(axis: "Axes", rows: "Sequence[Row]", colour: str, label: str) -> None:
    x, x_error = zip(*(row.mean("entropy") for row in rows), strict=True)
    y, y_error = zip(*(row.mean("nll") for row in rows), strict=True)
    axis.errorbar(
        x, y, y_error, x_error, "o-", color=colour, label=label, markersize=4, linewidth=1.2
    )
    for row, place in zip(rows, zip(x, y, strict=True), strict=True):
        if row.settings:
            name, value = next(iter(row.settings.items()))
            axis.annotate(
                f"{name.replace('_', ' ')} {value}",
                place,
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
                color=colour,
            )


def plot_denoising_quality(denoising: dict[str, Any], path: Path) -> None:
    """Cross-entropy and accuracy over the noise level, with and without self-conditioning."""
    figure, (left, right) = new_figure(1, 2, (11, 4))
    for (label, levels), colour in zip(denoising.items(), COLOURS, strict=False):
        t = [level["t"] for level in levels]
        left.plot(t, [level["loss"] for level in levels], "o-", color=colour, label=label)
        right.plot(t, [level["accuracy"] for level in levels], "o-", color=colour, label=label)
    left.set(xscale="log", xlabel="noise level t", ylabel="cross-entropy (nats)")
    right.set(xscale="log", xlabel="noise level t", ylabel="accuracy", ylim=(0, 1.02))
    left.set_title("Denoising held-out text")
    left.legend(frameon=False)
    figure.savefig(path, dpi=130)
