"""Tiny trained models of every kind, and a server of them."""

import httpx
import pytest
from playground import running
from tiny import train_tiny

from cdcd.serving.limits import Limits
from cdcd.serving.models import load_models

SHORT = {"training.steps": 60, "training.checkpoint_every": 0, "training.log_every": 50}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    return {
        "stories": train_tiny(folder / "stories", SHORT | {"training.steps": 300}),
        "baseline": train_tiny(folder / "baseline", {"model": "autoregressive", **SHORT}),
        "masked": train_tiny(folder / "masked", {"model": "masked", **SHORT}),
        "numerals": train_tiny(folder / "numerals", {"task": "translation", **SHORT}),
    }


@pytest.fixture(scope="session")
def models(runs):
    return load_models(list(runs.values()), Limits(), "cpu")


@pytest.fixture(scope="session")
def model(models):
    return models.by_name["stories"].model


@pytest.fixture(scope="session")
def address(models):
    with running(models) as address:
        yield address


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client
