"""Captured training steps: with a stand-in for the graph on a CPU, and as they are on a GPU."""

import json
from itertools import pairwise

import pytest
import torch
from tiny import start_tiny, train_tiny

from cdcd.training.compiling import WARMUP, CapturedStep
from cdcd.training.distributed import ALONE
from cdcd.training.tasks import seed_dropout


def record_again(work):
    """Does the work anew, but puts its results where the last ones were, as a graph does."""
    kept = []

    def replay():
        results = work()
        if not kept:
            kept.extend(None if result is None else result.clone() for result in results)
        for buffer, result in zip(kept, results, strict=True):
            if buffer is not None:
                buffer.copy_(result)
        return tuple(kept)

    return replay


def lines(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.optimiser": "muon"},
        {"training.accumulate": 2},
        {"model": "autoregressive"},
        {"model": "masked", "training.accumulate": 2},
        {"task": "translation", "seq2seq.dropout": 0.2},
        {"task": "translation", "seq2seq.dropout": 0.2, "model": "autoregressive"},
    ],
)
def test_replayed_steps_are_the_steps(tmp_path, changes):
    changes = changes | {"training.steps": WARMUP + 6, "training.log_every": 3}
    plain = train_tiny(tmp_path / "plain", changes)
    trainer = start_tiny(tmp_path / "captured", changes)
    trainer.update = CapturedStep(trainer._update, record_again)
    trainer.train()
    assert trainer.update.replay is not None
    assert lines(tmp_path / "captured") == lines(plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs")
@pytest.mark.parametrize(
    "changes", [{}, {"training.optimiser": "muon"}, {"training.accumulate": 2}]
)
def test_captured_steps_are_those_of_the_plain_path(tmp_path, changes):
    """Rounding apart: the compiled loss adds in another order."""
    changes = changes | {"training.steps": 30, "training.device": "cuda"}
    found = [
        [row["loss"] for row in lines(train_tiny(tmp_path / mode, changes | {"training.compile": mode}))
         if "loss" in row]
        for mode in ("off", "graphs")
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], rel=2e-2)
    assert found[0][-1] < 0.95 * found[0][0]


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs"),
        ),
    ],
)
def test_dropout_of_captured_steps_changes_from_step_to_step(tmp_path, device):
    changes = {
        "task": "translation",
        "seq2seq.dropout": 0.5,
        "training.device": device,
        "training.compile": "graphs" if device == "cuda" else "off",
    }
    trainer = start_tiny(tmp_path / "run", changes)
    if device == "cpu":
        trainer.update = CapturedStep(trainer._update, record_again)
    parts = trainer._parts()

    def loss(step: int) -> float:
        seed_dropout(0, step, ALONE)
        return float(trainer.update(parts)[0])

    # At the start the head is zero, and whatever is dropped makes no difference.
    trainer.optimiser.set_rate(0.01)
    for step in range(WARMUP + 1):
        loss(step)
    trainer.optimiser.set_rate(0.0)
    assert isinstance(trainer.update, CapturedStep)
    assert trainer.update.replay is not None
    losses = [loss(step) for step in (5, 6, 7, 5)]
    assert losses[3] == pytest.approx(losses[0], rel=1e-5)
    assert min(abs(a - b) for a, b in pairwise(losses)) > 1e-4
