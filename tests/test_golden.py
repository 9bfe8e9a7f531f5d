"""A short training run gives the loss curve it always gave; a refactoring must not change it."""

import json

import pytest
from tiny import train_tiny

GOLDEN = {
    "adam": [5.53339, 5.50391, 5.48787, 5.43117, 5.35489, 5.37934, 5.35478, 5.22586],
    "muon": [5.53339, 5.50391, 5.49065, 5.44384, 5.38493, 5.40646, 5.39495, 5.30408],
}


@pytest.mark.parametrize("optimiser", GOLDEN)
def test_loss_curve(optimiser, tmp_path):
    changes = {"training.optimiser": optimiser, "training.steps": 8}
    run = train_tiny(tmp_path / "run", changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == pytest.approx(GOLDEN[optimiser], rel=2e-3)
