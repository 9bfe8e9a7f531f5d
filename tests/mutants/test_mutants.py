"""The faults of the mutation check still fit the source; `make mutants` runs their tests."""

import ast
import re
from dataclasses import replace

import pytest
from mutant import Mutant, load_mutants
from mutation_check import run_all
from paths import ROOT

MUTANTS = load_mutants()
EULER = Mutant(
    name="an example",
    within="euler_step",
    right="(s_next - t) * _1",
    wrong="(t - s_next) * _1",
    tests="test_solvers.py -k enter_where",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_source_and_names_its_tests(mutant):
    mutant.faulty(ROOT / "src" / "cdcd")
    path, _, keyword = mutant.test_arguments(ROOT / "tests")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert any(word in text for word in re.findall(r"\w+", keyword))


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 100


def faulty(folder, source, mutant=EULER):
    (folder / "solvers.py").write_text(source, encoding="utf-8")
    return ast.unparse(ast.parse(mutant.faulty(folder)[1]))


@pytest.mark.parametrize(
    "source",
    [
        "def euler_step(x, t, s_next, d):\n    return x + (s_next - t) * d",
        'def euler_step(x, t, s_next, slope):\n    """σ."""\n    return x + (\n        s_next\n - t) * (\n  slope(x))',
        "class Any:\n    def euler_step(x, t, s_next, d): 'σ'; return x + (s_next - t) * d",
    ],
)
def test_layout_place_and_operand_do_not_matter(source, tmp_path):
    expected = ast.unparse(ast.parse(source)).replace("s_next - t", "t - s_next")
    assert faulty(tmp_path, source) == expected


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def heun_step(): pass", "an example: no function, class or module is named euler_step"),
        ("def euler_step(): pass", "an example: 0 matches in euler_step"),
        (
            "def euler_step(): return (s_next - t) * 1 + (s_next - t) * 2",
            "an example: 2 matches in euler_step",
        ),
    ],
)
def test_a_mutant_that_fits_nothing_or_twice_is_an_error(source, error, tmp_path):
    with pytest.raises(ValueError, match=re.escape(error)):
        faulty(tmp_path, source)


def test_a_mutant_of_statements_keeps_the_indentation(tmp_path):
    source = "def f(x):\n    if x:\n        x = 1\n        y = x\n    return y"
    mutant = replace(EULER, within="f", right="x = _1\ny = x", wrong="y = _1\nx = y")
    expected = "def f(x):\n    if x:\n        y = 1\n        x = y\n    return y"
    assert faulty(tmp_path, source, mutant) == expected


def test_a_wildcard_that_stands_twice_stands_for_the_same(tmp_path):
    source = "def f(a, b):\n    return a / b.sum() + a / a.sum()"
    mutant = replace(EULER, within="f", right="_1 / _1.sum()", wrong="_1")
    assert faulty(tmp_path, source, mutant) == "def f(a, b):\n    return a / b.sum() + a"


def test_a_fault_is_noticed_and_a_harmless_change_is_not():
    harmless = replace(EULER, wrong="_1 * (s_next - t)")
    outcomes = run_all([EULER, harmless])
    assert [outcome.is_noticed for outcome in outcomes] == [True, False]
