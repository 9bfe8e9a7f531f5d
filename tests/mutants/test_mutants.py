"""A part of the mutation check; all of it is `make mutants`."""

import shutil

import pytest
from mutation_check import MUTANTS, is_noticed
from paths import ROOT

IN_CI = {"wrong Heun weight", "c not zeroed at noisy positions", "self-conditioning not detached"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_source(mutant, tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    mutant.apply(tmp_path / "src")


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in IN_CI], ids=lambda m: m.name)
def test_mutant_is_noticed(mutant):
    assert is_noticed(mutant)
