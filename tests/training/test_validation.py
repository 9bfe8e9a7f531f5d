"""Validation by noise level: what is padding, what moves with the warp, and what training stops by."""

import math
from statistics import fmean

import pytest
import torch
from tiny import start_tiny, tiny_config

from cdcd.data.vocabulary import PAD
from cdcd.diffusion.warping import TimeWarp
from cdcd.training.tasks import DiffusionTask
from cdcd.training.validation import LevelReport, ValidationReport, validate

VOCAB = 6
CONFIG = tiny_config({"objective.masking": "none", "embedding.dim": 4})
TOKENS = torch.tensor([[3, 4, 5, PAD, PAD, PAD], [4, 4, PAD, PAD, PAD, PAD]])


def constant_network(strength):
    """Says PAD, whatever it sees, with logits that may depend on the noise level."""

    def network(x, t, *, c, x0_prev, is_noisy, selection):
        logits = torch.zeros(*x.shape[:2], VOCAB)
        logits[..., PAD] = strength(t)[:, None]
        return selection.take(logits)

    return network


def report(strength, warp: TimeWarp | None = None) -> ValidationReport:
    schedule = (warp or TimeWarp(CONFIG.warp, CONFIG.process)).schedule()
    table = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(0))
    return validate(constant_network(strength), table, TOKENS, schedule, CONFIG)


def test_the_loss_without_padding_is_that_of_the_other_tokens():
    found = report(lambda t: torch.full_like(t, 2.0))
    text = math.log(math.exp(2) + VOCAB - 1)
    padding = text - 2
    assert found.text_loss == pytest.approx(text, abs=1e-5)
    assert found.loss == pytest.approx((5 * text + 7 * padding) / 12, abs=1e-5)
    for level in found.levels:
        assert (level.loss, level.text_loss) == pytest.approx((found.loss, found.text_loss))
        assert level.accuracy == pytest.approx(7 / 12)


def test_what_training_stops_by_does_not_move_with_the_warp():
    moved = TimeWarp(CONFIG.warp, CONFIG.process)
    with torch.no_grad():
        # Only one of the two sides: the same on both is no warp at all.
        first = next(moved.parameters())
        first.copy_(torch.linspace(-2, 2, first.numel()))
        for _ in range(200):
            moved.update_average()
    plain, other = report(torch.log), report(torch.log, moved)
    assert plain.loss != pytest.approx(other.loss, abs=1e-3)
    assert plain.compared == other.compared
    assert plain.compared == pytest.approx(fmean(level.text_loss for level in plain.levels))


def test_early_stopping_follows_the_fixed_levels(tmp_path, monkeypatch):
    """The loss over uniform time falls all the while; that at fixed levels is best at step 4."""
    changes = {"training.steps": 12, "training.validate_every": 2, "training.patience": 3}
    trainer = start_tiny(tmp_path / "run", changes)
    at_levels = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5, 10: 2.6, 12: 2.7}

    def faked(*_):
        level = LevelReport(1.0, 9.0, 0.5, 1.0, at_levels[trainer.step])
        return ValidationReport(9.0 - trainer.step, 9.0, [level])

    monkeypatch.setattr(DiffusionTask, "validate", faked)
    assert trainer.train() == 1.0
    assert trainer.step == 10
    assert trainer.run.steps()[-1] == 4
