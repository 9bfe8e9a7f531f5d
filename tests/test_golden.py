"""A short training run gives the loss curve it always gave; a refactoring must not change it."""

import json

import pytest
from tiny import train_tiny

GOLDEN = {
    "adam": [5.53339, 5.50425, 5.48892, 5.43273, 5.35837, 5.38112, 5.35475, 5.23187],
    "muon": [5.53339, 5.50425, 5.49159, 5.4446, 5.3851, 5.40729, 5.39004, 5.30206],
}


@pytest.mark.parametrize("optimiser", GOLDEN)
def test_loss_curve(optimiser, tmp_path):
    changes = {"training.optimiser": optimiser, "training.steps": 8}
    run = train_tiny(tmp_path / "run", changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == pytest.approx(GOLDEN[optimiser], rel=2e-3)
