"""Pictures of the tables, from numbers that are known: the paper's own."""

from cdcd.reproduction import pictures
from cdcd.reproduction.findings import PAPER


def test_table_3_has_a_line_for_the_baseline_and_each_guidance_scale():
    figure = pictures._completions(PAPER)
    assert figure is not None
    lines = {
        entry.get_label(): line.get_xydata().tolist()
        for axis in figure.axes[1:]
        for entry, line in zip(axis.collections, axis.lines, strict=True)
    }
    systems = ["data", "autoregressive", *(f"guidance={scale}" for scale in (1.0, 2.0, 4.0, 8.0))]
    assert list(lines) == systems
    assert lines["data"] == [[2.580, 1.0]]
    assert lines["autoregressive"][2] == [1.988, 0.940]
    assert lines["guidance=4.0"][1] == [2.073, 0.574]
    assert pictures._completions({}) is None
