"""Validations of few noise levels: they would take longer than the tiny trainings before them."""

from collections.abc import Iterator

import pytest

from cdcd.training import validation


@pytest.fixture(scope="module", autouse=True)
def few_noise_levels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets the number of noise levels, except where losses are compared with known ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ != "test_validation":
            patch.setattr(validation, "NUM_LEVELS", 2)
        yield
