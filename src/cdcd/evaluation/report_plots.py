"""Pictures of reports: NLL against entropy (Figures 5 and 6 of the paper), BLEU (Table 4)."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

    from cdcd.evaluation.text_report import Report, Row
    from cdcd.evaluation.translation_report import TranslationReport
    from cdcd.metrics.intervals import Interval

COLOURS = (BLUE, ORANGE, "#2f855a", "#805ad5", "#b83280", "#718096")
OFFSETS = [(0, 10), (0, -10), (-14, 8), (14, -8), (16, 0), (-16, 0), (14, 8), (-14, -8)]
"""Places of a label beside its point, in points."""
LINE: dict[str, Any] = {"fmt": "o-", "markersize": 4, "linewidth": 1.2}


def plot_frontiers(report: "Report", path: Path) -> None:
    """Draws AR-NLL over entropy: the data's own point, a line for each system, a marker for each setting."""
    figure, (axis,) = new_figure(1, 1, (8, 5.5))
    (x, x_error), (y, y_error) = (report.row("data").mean(name) for name in ("entropy", "nll"))
    axis.errorbar(x, y, y_error, x_error, "x", color="black", markersize=10, label="data")
    axis.axvline(x, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    labels: list[Annotation] = []
    for (label, rows), colour in zip(report.lines().items(), cycle(COLOURS), strict=False):
        labels += _frontier(axis, rows, colour, label)
    axis.set(xlabel="unigram entropy, pooled (nats)", ylabel="AR-NLL (nats a token)")
    axis.set_title(f"Quality against diversity, {report.protocol['num_samples']} samples a point")
    axis.margins(0.08)
    axis.legend(frameon=False)
    _move_labels_apart(axis, labels)
    figure.savefig(path, dpi=130)


def _frontier(axis: "Axes", rows: "Sequence[Row]", colour: str, label: str) -> "list[Annotation]":
    """Draws a line, named after the setting that is swept; returns the values of its points as labels."""
    x, x_error = zip(*(row.mean("entropy") for row in rows), strict=True)
    y, y_error = zip(*(row.mean("nll") for row in rows), strict=True)
    swept = next(iter(rows[0].settings), None)
    if swept is not None:
        name = swept.replace("_", " ")
        label += f", {name} {rows[0].settings[swept]}" if len(rows) == 1 else f" by {name}"
    axis.errorbar(x, y, y_error, x_error, color=colour, label=label, **LINE)
    if swept is None or len(rows) == 1:
        return []
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": colour}
    return [
        axis.annotate(str(row.settings[swept]), point, (0, 0), ha="center", va="center", **style)
        for row, point in zip(rows, zip(x, y, strict=True), strict=True)
    ]


def _move_labels_apart(axis: "Axes", labels: "Sequence[Annotation]") -> None:
    """Moves each label beside its point to where nothing is, or takes it away where everything is taken."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    for label in labels:
        label.set_in_layout(False)
    figure.draw_without_rendering()
    drawn = [line.get_path().transformed(line.get_transform()) for line in axis.lines]
    drawn += [
        path.transformed(collection.get_transform())
        for collection in axis.collections
        for path in collection.get_paths()
    ]
    legend = axis.get_legend()
    taken = [legend.get_window_extent()] if legend is not None else []
    for label in labels:
        for offset in OFFSETS:
            label.set_position(offset)
            box = label.get_window_extent().padded(2)
            is_crossed = any(path.intersects_bbox(box, filled=False) for path in drawn)
            if not is_crossed and not box.count_overlaps(taken):
                taken.append(box)
                break
        else:
            label.remove()


def plot_bleu_by_count(report: "TranslationReport", path: Path) -> None:
    """Draws BLEU over the samples of minimum Bayes-risk decoding; dotted, the oracle's choice."""
    decoded = {row.label: row.by_count for row in report.rows if row.by_count}
    bleu = {label: {e.num_samples: e.bleu for e in curve} for label, curve in decoded.items()}
    oracle = {
        label: {e.num_samples: e.oracle_bleu for e in curve} for label, curve in decoded.items()
    }
    _plot_bleu(report, "samples for each sentence", bleu, oracle, path)


def plot_bleu_by_steps(report: "TranslationReport", path: Path) -> None:
    """Draws BLEU over the number of sampling steps, a line for each system and its other settings."""
    bleu = {
        label: {row.settings["num_steps"]: row.scores.bleu for row in rows}
        for label, rows in report.lines("num_steps").items()
    }
    _plot_bleu(report, "sampling steps", bleu, {}, path)


def _plot_bleu(
    report: "TranslationReport",
    xlabel: str,
    bleu: "Mapping[str, Mapping[int, Interval]]",
    oracle: Mapping[str, Mapping[int, float]],
    path: Path,
) -> None:
    figure, (axis,) = new_figure(1, 1, (7, 4.5))
    for (label, curve), colour in zip(bleu.items(), cycle(COLOURS), strict=False):
        # A resampled corpus may lie on one side of the measured value throughout.
        below = [max(each.value - each.low, 0) for each in curve.values()]
        above = [max(each.high - each.value, 0) for each in curve.values()]
        values = [each.value for each in curve.values()]
        axis.errorbar(list(curve), values, [below, above], color=colour, label=label, **LINE)
        if label in oracle:
            x, y = list(oracle[label]), list(oracle[label].values())
            axis.plot(x, y, ".:", color=colour, linewidth=0.9, alpha=0.6)
    if oracle:
        axis.plot([], [], ".:", color=GREY, label="oracle: nearest to the reference")
    ticks = sorted({x for curve in bleu.values() for x in curve})
    axis.set(xscale="log", xlabel=xlabel, ylabel="BLEU")
    axis.minorticks_off()
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.set_title(f"{report.languages}, {report.num_sentences} sentences")
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=130)
