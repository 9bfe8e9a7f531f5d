"""Pictures of reports: NLL against entropy (Figures 5 and 6 of the paper), denoising, BLEU (Table 4)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cdcd.evaluation.text_report import Report, Row
    from cdcd.evaluation.translation_report import TranslationReport
    from cdcd.metrics.intervals import Interval

COLOURS = (BLUE, ORANGE, "#2f855a", "#805ad5", "#b83280", "#718096")
CONTROL = "control: "
LINE: dict[str, Any] = {"fmt": "o-", "markersize": 4, "linewidth": 1.2}


def plot_frontiers(report: "Report", path: Path) -> None:
    """Draws AR-NLL over entropy: the data's own point, a line for each system, a marker for each setting."""
    figure, (axis,) = new_figure(1, 1, (8, 5.5))
    (x, x_error), (y, y_error) = (report.row("data").mean(name) for name in ("entropy", "nll"))
    axis.errorbar(x, y, y_error, x_error, "x", color="black", markersize=10, label="data")
    axis.axvline(x, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    lines = report.lines()
    systems = [label for label in lines if not label.startswith(CONTROL)]
    for number, label in enumerate(systems):
        _frontier(axis, lines[label], COLOURS[number % len(COLOURS)], label)
    for label in lines.keys() - systems:
        _frontier(axis, lines[label], GREY, f"{label} (NLL {lines[label][0].mean('nll')[0]:.1f})")
    # A control may lie far beyond the data and the systems.
    heights = [y, *(row.mean("nll")[0] for name in systems for row in lines[name])]
    margin = 0.12 * (max(heights) - min(heights)) + 0.1
    axis.set(
        ylim=(min(heights) - margin, max(heights) + margin),
        xlabel="unigram entropy, pooled (nats)",
        ylabel="AR-NLL (nats a token)",
        title=f"Quality against diversity, {report.protocol['num_samples']} samples a point",
    )
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)


def _frontier(axis: "Axes", rows: "Sequence[Row]", colour: str, label: str) -> None:
    x, x_error = zip(*(row.mean("entropy") for row in rows), strict=True)
    y, y_error = zip(*(row.mean("nll") for row in rows), strict=True)
    axis.errorbar(x, y, y_error, x_error, color=colour, label=label, **LINE)
    for row, point in zip(rows, zip(x, y, strict=True), strict=True):
        if row.settings:
            name, value = next(iter(row.settings.items()))
            axis.annotate(
                f"{name.replace('_', ' ')} {value}",
                point,
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
                color=colour,
            )


def plot_denoising_quality(denoising: dict[str, Any], path: Path) -> None:
    """Draws cross-entropy and accuracy over the noise level, with and without self-conditioning."""
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


def plot_bleu_by_count(report: "TranslationReport", path: Path) -> None:
    """Draws BLEU over the samples of minimum Bayes-risk decoding; dotted, the oracle's choice."""
    figure, (axis,) = new_figure(1, 1, (7, 4.5))
    counts: list[int] = []
    for number, row in enumerate(row for row in report.rows if row.by_count):
        colour = COLOURS[number % len(COLOURS)]
        counts = [each.num_samples for each in row.by_count]
        _bleu(axis, counts, [each.bleu for each in row.by_count], colour, row.label)
        oracle = [each.oracle_bleu for each in row.by_count]
        axis.plot(counts, oracle, ".:", color=colour, linewidth=0.9, alpha=0.6)
    axis.plot([], [], ".:", color=GREY, label="oracle: nearest to the reference")
    _finish(axis, counts, "samples for each sentence", report)
    figure.savefig(path, dpi=130)


def plot_bleu_by_steps(report: "TranslationReport", path: Path) -> None:
    """Draws BLEU over the number of sampling steps, a line for each system and its other settings."""
    figure, (axis,) = new_figure(1, 1, (7, 4.5))
    ticks: set[int] = set()
    for number, (label, rows) in enumerate(report.lines("num_steps").items()):
        steps = [row.settings["num_steps"] for row in rows]
        ticks.update(steps)
        bleu = [row.scores.bleu for row in rows]
        _bleu(axis, steps, bleu, COLOURS[number % len(COLOURS)], label)
    _finish(axis, ticks, "sampling steps", report)
    figure.savefig(path, dpi=130)


def _bleu(
    axis: "Axes", x: Sequence[int], bleu: "Sequence[Interval]", colour: str, label: str
) -> None:
    # A resampled corpus may lie on one side of the measured value throughout.
    below = [max(each.value - each.low, 0) for each in bleu]
    above = [max(each.high - each.value, 0) for each in bleu]
    y = [each.value for each in bleu]
    axis.errorbar(x, y, [below, above], color=colour, label=label, **LINE)


def _finish(
    axis: "Axes", ticks: "Sequence[int] | set[int]", xlabel: str, report: "TranslationReport"
) -> None:
    axis.set(xscale="log", xlabel=xlabel, ylabel="BLEU")
    axis.minorticks_off()
    axis.set_xticks(sorted(ticks), [str(value) for value in sorted(ticks)])
    axis.set_title(f"{'-'.join(report.languages)}, {report.num_sentences} sentences")
    axis.legend(frameon=False, loc="lower right")
