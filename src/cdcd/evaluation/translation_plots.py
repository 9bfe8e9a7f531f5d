"""Pictures of a translation report: BLEU against samples, as in Table 4 of the paper, and steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdcd.evaluation.plots import GREY, new_figure
from cdcd.evaluation.report_plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cdcd.evaluation.translation_report import TranslationReport
    from cdcd.metrics.intervals import Interval


def plot_bleu_by_count(report: "TranslationReport", path: Path) -> None:
    """BLEU over the number of samples of minimum Bayes-risk decoding; dotted, the oracle's choice."""
    figure, (axis,) = new_figure(1, 1, (7, 4.5))
    decoded = [row for row in report.rows if row.by_count]
    shown = {each.num_samples for row in decoded for each in row.by_count}
    for number, row in enumerate(decoded):
        colour = COLOURS[number % len(COLOURS)]
        counts = [each.num_samples for each in row.by_count]
        _line(axis, counts, [each.bleu for each in row.by_count], colour, row.label)
        oracle = [each.oracle_bleu for each in row.by_count]
        axis.plot(counts, oracle, ".:", color=colour, linewidth=0.9, alpha=0.6)
    axis.plot([], [], ".:", color=GREY, label="oracle: nearest to the reference")
    _finish(axis, shown, "samples for each sentence", report)
    figure.savefig(path, dpi=130)


def plot_bleu_by_steps(report: "TranslationReport", path: Path) -> None:
    """BLEU over the number of sampling steps, a line for each system and its other settings."""
    figure, (axis,) = new_figure(1, 1, (7, 4.5))
    lines = report.lines("num_steps")
    shown = {row.settings["num_steps"] for rows in lines.values() for row in rows}
    for number, (label, rows) in enumerate(lines.items()):
        steps = [row.settings["num_steps"] for row in rows]
        colour = COLOURS[number % len(COLOURS)]
        _line(axis, steps, [row.scores.bleu for row in rows], colour, label)
    _finish(axis, shown, "sampling steps", report)
    figure.savefig(path, dpi=130)


def _line(
    axis: "Axes", x: Sequence[int], found: "Sequence[Interval]", colour: str, label: str
) -> None:
    y = [each.value for each in found]
    # A resampled corpus may lie on one side of the measured value throughout.
    below = [max(each.value - each.low, 0) for each in found]
    above = [max(each.high - each.value, 0) for each in found]
    axis.errorbar(
        x, y, [below, above], None, "o-", color=colour, label=label, markersize=4, linewidth=1.2
    )


def _finish(axis: "Axes", shown: set[int], xlabel: str, report: "TranslationReport") -> None:
    axis.set(xscale="log", xlabel=xlabel, ylabel="BLEU")
    axis.minorticks_off()
    axis.set_xticks(sorted(shown), [str(value) for value in sorted(shown)])
    axis.set_title(f"{'-'.join(report.languages)}, {report.num_sentences} sentences")
    axis.legend(frameon=False, loc="lower right")
