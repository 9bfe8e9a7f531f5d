"""The best setting of a sweep: the lowest NLL among those that are as varied as the data."""

import pytest

from cdcd.evaluation.best_setting import MeasuredSetting, VarietyRule, best_settings

DATA = MeasuredSetting("data", {}, 3.5, 6.9, 3.3, 0.004)


def setting(t: float, nll: float, entropy: float, inner: float, repetition: float):
    return MeasuredSetting("cdcd", {"t": t}, nll, entropy, inner, repetition)


def test_each_bound_excludes_and_its_edge_does_not():
    edge = setting(1.0, 5.0, 6.9 - 0.07, 3.3 - 0.12, 0.010)
    beyond = [
        setting(0.9, 4.0, 6.9 - 0.071, 3.3, 0.0),
        setting(0.8, 4.0, 6.9, 3.3 - 0.121, 0.0),
        setting(0.7, 4.0, 6.9, 3.3, 0.0101),
    ]
    worse = setting(1.1, 5.1, 7.0, 3.4, 0.0)
    assert best_settings([DATA, *beyond, worse, edge]) == {"cdcd": edge}
    assert best_settings([DATA, *beyond]) == {"cdcd": None}
    # Power: each bound alone excludes.
    for each in beyond:
        assert best_settings([DATA, edge, each])["cdcd"] == edge
    loose = VarietyRule(entropy_below=1, sample_entropy_below=1, most_repetition=1)
    assert best_settings([DATA, edge, beyond[0]], loose)["cdcd"] == beyond[0]


def test_systems_are_chosen_for_separately_and_need_the_data():
    other = MeasuredSetting("baseline", {"nucleus": 0.9}, 3.4, 6.9, 3.3, 0.004)
    ours = setting(1.0, 5.0, 6.9, 3.3, 0.0)
    assert best_settings([ours, DATA, other]) == {"cdcd": ours, "baseline": other}
    with pytest.raises(ValueError, match="none of the system 'data'"):
        best_settings([ours])


def test_a_row_of_a_report_is_read_by_its_means():
    mean = {name: {"value": n, "error": 0.0} for n, name in enumerate(("nll", "entropy"))}
    row = {"system": "cdcd", "settings": {"t": 1.0}, "mean": mean}
    with pytest.raises(ValueError, match="no 'sample_entropy': evaluate the run again"):
        MeasuredSetting.of_row(row)
    mean |= {"sample_entropy": {"value": 2}, "repetition": {"value": 3}}
    assert MeasuredSetting.of_row(row) == setting(1.0, 0, 1, 2, 3)
