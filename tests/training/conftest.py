"""Validations of few noise levels, which would take longer than the tiny trainings before them; a trained run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import train_tiny

from cdcd.training import validation


@pytest.fixture(scope="module", autouse=True)
def few_noise_levels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets the number of noise levels, except where losses are compared with known ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ != "test_validation":
            patch.setattr(validation, "NUM_LEVELS", 2)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Copies the trained run, to be changed."""
    return shutil.copytree(trained, tmp_path / "run")
