"""Docstrings and names read as CONTRIBUTING.md asks (see check_language.py)."""

import pytest
from check_language import problems_in, python_files
from paths import ROOT

SOURCE = ROOT / "src" / "cdcd"
PATHS = {path.name: path for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
PATHS |= {name: ROOT / name for name in ("scripts", "examples") if (ROOT / name).exists()}
PATHS.pop("__pycache__", None)


@pytest.mark.parametrize("name", sorted(PATHS))
def test_docstrings_and_names_say_enough(name):
    problems = [line for path in python_files([PATHS[name]]) for line in problems_in(path)]
    assert not problems, "\n".join(problems)
