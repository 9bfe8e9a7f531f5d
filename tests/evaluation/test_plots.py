"""Pictures: what is written on them fits, and is true."""

from itertools import combinations

import pytest
import torch

from cdcd.evaluation import plots, report_plots
from cdcd.evaluation.plots import Trace, plot_denoising
from cdcd.evaluation.report_plots import plot_frontiers
from cdcd.evaluation.text_report import Measured, Report, Row
from cdcd.metrics.entropy import TextStatistics
from cdcd.metrics.intervals import Interval


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, each with its axes."""
    drawn, new_figure = [], plots.new_figure

    def noted(*arguments):
        drawn.append(new_figure(*arguments))
        return drawn[-1]

    for module in (plots, report_plots):
        monkeypatch.setattr(module, "new_figure", noted)
    return drawn


def row(system, x, y, **settings):
    intervals = [Interval(value, value - 0.02, value + 0.02) for value in (y, x)]
    statistics = object.__new__(TextStatistics)
    return Row(system, settings, [Measured("run", intervals[0], 1.0, intervals[1], statistics)])


def drawn_labels(figures, tmp_path, rows):
    report = Report([row("data", 7.0, 3.5), *rows], {}, {"num_samples": 8})
    plot_frontiers(report, tmp_path / "frontier.png")
    [(figure, [axis])] = figures
    figure.draw_without_rendering()
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    return axis, [text for text in axis.texts if text.get_text()], legend


def test_labels_of_a_sweep_are_its_values(figures, tmp_path):
    rows = [row("cdcd", 6 + i / 4, 4 + i, score_temperature=0.8 + i / 10) for i in range(4)]
    rows += [row("baseline", 6.1, 4.0, nucleus=0.9), row("control", 6.5, 9.0)]
    _, labels, legend = drawn_labels(figures, tmp_path, rows)
    assert [label.get_text() for label in labels] == [str(0.8 + i / 10) for i in range(4)]
    assert legend == ["data", "cdcd by score temperature", "baseline, nucleus 0.9", "control"]


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.0])
def test_labels_do_not_overlap(figures, tmp_path, spread):
    rows = [
        row(f"system {k}", 6 + spread * i / 12, 4 + spread * (i * (k + 1) % 5), nucleus=i / 12)
        for k in range(4)
        for i in range(12)
    ]
    axis, labels, _ = drawn_labels(figures, tmp_path, rows)
    boxes = [label.get_window_extent() for label in labels]
    assert boxes
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert not any(box.overlaps(axis.get_legend().get_window_extent()) for box in boxes)
    for line in axis.lines:
        path = line.get_path().transformed(line.get_transform())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes)


@pytest.mark.parametrize("length", [1, 5, 24])
@pytest.mark.parametrize("num_given", [0, 1])
def test_a_denoising_says_what_is_bold(figures, tmp_path, length, num_given):
    trace = Trace()
    for t in (9.0, 1.0):
        trace.levels.append(t)
        trace.tokens.append(torch.zeros(32, dtype=torch.long))
        trace.certainty.append(torch.rand(32, generator=torch.Generator().manual_seed(0)))
    is_given = [index < num_given for index in range(length)]
    plot_denoising(trace, [0] * length, is_given, lambda _: "word", tmp_path / "denoising.png")
    [(figure, axes)] = figures
    title = axes[0].title
    assert ("given tokens are bold" in title.get_text()) == bool(num_given)
    weights = [text.get_fontweight() for axis in axes for text in axis.texts]
    assert weights.count("bold") == 3 * num_given
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
