"""Validation at fixed noise levels: no padding in its loss, no move with the warp, early stopping."""

import json
import math
from statistics import fmean

import pytest
import torch
from tiny import metrics, start_tiny, tiny_config

from cdcd.data.vocabulary import PAD
from cdcd.diffusion.logits import take
from cdcd.diffusion.warping import TimeWarp
from cdcd.training.logging import read_metrics
from cdcd.training.tasks import DiffusionTextTask
from cdcd.training.validation import LevelReport, ValidationReport, validate

VOCAB = 6
CONFIG = tiny_config({"objective.masking": "none", "embedding.dim": 4})
TOKENS = torch.tensor([[3, 4, 5, PAD, PAD, PAD], [4, 4, PAD, PAD, PAD, PAD]])


def constant_network(strength):
    """Returns a network that predicts PAD, with logits that may depend on the noise level."""

    def network(x, t, *, c, x0_prev, is_noisy, positions=None):
        logits = torch.zeros(*x.shape[:2], VOCAB)
        logits[..., PAD] = strength(t)[:, None]
        return logits if positions is None else take(logits, positions)

    return network


def report(strength, warp: TimeWarp | None = None) -> ValidationReport:
    schedule = (warp or TimeWarp(CONFIG.warp, CONFIG.process)).schedule()
    table = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(0))
    return validate(constant_network(strength), table, TOKENS, schedule, CONFIG)


def test_the_loss_without_padding_is_that_of_the_other_tokens():
    result = report(lambda t: torch.full_like(t, 2.0))
    text = math.log(math.exp(2) + VOCAB - 1)
    padding = text - 2
    assert result.loss == pytest.approx(text, abs=1e-5)
    assert result.text_loss_at_warp == pytest.approx(text, abs=1e-5)
    assert result.loss_at_warp == pytest.approx((5 * text + 7 * padding) / 12, abs=1e-5)
    for level in result.levels:
        expected = (result.loss_at_warp, result.text_loss_at_warp)
        assert (level.loss, level.text_loss) == pytest.approx(expected)
        assert level.accuracy == pytest.approx(7 / 12)


def test_the_loss_does_not_move_with_the_warp():
    moved = TimeWarp(CONFIG.warp, CONFIG.process)
    with torch.no_grad():
        # Only one of the two sides: the same on both is no warp at all.
        first = next(moved.parameters())
        first.copy_(torch.linspace(-2, 2, first.numel()))
        for _ in range(200):
            moved.update_average()
    plain, other = report(torch.log), report(torch.log, moved)
    assert plain.loss_at_warp != pytest.approx(other.loss_at_warp, abs=1e-3)
    assert plain.loss == other.loss
    assert plain.loss == pytest.approx(fmean(level.text_loss for level in plain.levels))


def test_early_stopping_and_the_log_follow_the_fixed_levels(tmp_path, monkeypatch):
    """Lets the loss at the warp's levels fall all the while, and that at fixed levels up to step 4."""
    changes = {"training.steps": 12, "training.validate_every": 2, "training.patience": 3}
    trainer = start_tiny(tmp_path / "run", changes)
    at_levels = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5, 10: 2.6, 12: 2.7}

    def faked(*_):
        level = LevelReport(1.0, 9.0, 0.5, 1.0, at_levels[trainer.step])
        return ValidationReport([level], 9.0 - trainer.step, 9.0)

    monkeypatch.setattr(DiffusionTextTask, "validate", faked)
    assert trainer.train() == 1.0
    assert trainer.step == 10
    assert trainer.run.steps()[-1] == 4
    rows = [row for row in metrics(trainer.run.path) if "valid_loss" in row]
    assert {row["step"]: row["valid_loss"] for row in rows} == {
        s: at_levels[s] for s in (2, 4, 6, 8, 10)
    }
    assert [row["validation"]["loss_at_warp"] for row in rows] == [7.0, 5.0, 3.0, 1.0, -1.0]


LEVELS = [{"t": 1.0, "loss": 0.5}, {"t": 9.0, "loss": 2.5}]
TEXT_LEVELS = [level | {"text_loss": 2 * level["loss"]} for level in LEVELS]


@pytest.mark.parametrize(
    ("row", "loss", "at_warp"),
    [
        ({"valid_loss": 7.0, "validation": {"loss": 7.0, "levels": LEVELS}}, 1.5, 7.0),
        ({"valid_loss": 7.0, "validation": {"loss": 7.0, "levels": TEXT_LEVELS}}, 3.0, 7.0),
        (
            {
                "valid_loss": 7.0,
                "compared": 3.0,
                "validation": {"loss": 7.0, "text_loss": 8.0, "levels": TEXT_LEVELS},
            },
            3.0,
            7.0,
        ),
        ({"valid_loss": 7.0, "compared": 7.0, "validation": {"loss": 7.0}}, 7.0, None),
    ],
    ids=["levels alone", "without padding", "compared", "autoregressive"],
)
def test_old_metrics_are_read_at_fixed_levels(tmp_path, row, loss, at_warp):
    """Reads rows of earlier versions, whose `valid_loss` is at the levels of the warp."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 2} | row) + "\n")
    [converted] = read_metrics(tmp_path / "metrics.jsonl")
    assert converted["valid_loss"] == converted["validation"]["loss"] == loss
    assert converted["validation"].get("loss_at_warp") == at_warp
    # What is read and written again, as on resuming, is read the same.
    (tmp_path / "metrics.jsonl").write_text(json.dumps(converted) + "\n")
    assert read_metrics(tmp_path / "metrics.jsonl") == [converted]
