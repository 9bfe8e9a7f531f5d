"""A short training run gives the loss curve it always gave; a refactoring must not change it."""

import json

import pytest
from tiny import train_tiny

GOLDEN = {
    "adam": [5.53339, 5.51146, 5.48679, 5.43155, 5.40087, 5.28098, 5.23704, 5.18117],
    "muon": [5.53339, 5.51146, 5.48954, 5.44406, 5.42171, 5.32367, 5.29174, 5.26191],
}


@pytest.mark.parametrize("optimiser", GOLDEN)
def test_loss_curve(optimiser, tmp_path):
    changes = {"training.optimiser": optimiser, "training.steps": 8}
    run = train_tiny(tmp_path / "run", changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == pytest.approx(GOLDEN[optimiser], rel=2e-3)
