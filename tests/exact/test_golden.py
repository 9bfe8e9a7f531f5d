"""A short training run gives the loss curve it always gave; a refactoring must not change it."""

import json

import pytest
from tiny import train_tiny

GOLDEN = {
    "adam": [5.53339, 5.50697, 5.49057, 5.43577, 5.37986, 5.41086, 5.36528, 5.24139],
    "muon": [5.53339, 5.50697, 5.49326, 5.44756, 5.40468, 5.43436, 5.40384, 5.31232],
}


@pytest.mark.parametrize("optimiser", GOLDEN)
def test_loss_curve(optimiser, tmp_path):
    changes = {"training.optimiser": optimiser, "training.steps": 8}
    run = train_tiny(tmp_path / "run", changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == pytest.approx(GOLDEN[optimiser], rel=2e-3)
