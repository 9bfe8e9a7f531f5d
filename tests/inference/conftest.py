"""A small trained text model."""

import pytest
from tiny import train_tiny

import cdcd
from cdcd.inference.text_model import Canvas


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"training.steps": 100, "training.checkpoint_every": 0, "training.log_every": 50}
    return train_tiny(tmp_path_factory.mktemp("inference") / "run", changes)


@pytest.fixture(scope="module")
def model(run):
    return cdcd.load(run)


@pytest.fixture
def blank(model):
    return Canvas((None,) * model.length)
