"""Options of training in whole runs: dropout, random lengths, output prior, the best checkpoint."""

import re
from pathlib import Path

import pytest
import torch
from test_tasks import LOSSES, PATIENT, checkpoints, fake_losses
from tiny import cdcd_main, metrics, resume_tiny, start_tiny, tiny_config, tiny_options, train_tiny

from cdcd.cli.effects import effects
from cdcd.inference.load import load
from cdcd.settings import refuse_without_effect
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory

OPTIONS = {
    "dropout": {"network.dropout": 0.3},
    "random lengths": {"data.random_length_share": 0.5},
    "output prior": {"network.output_prior": True, "network.output_prior_warmup": 5},
    "weight decay": {"training.weight_decay": 0.1},
    "gates and norms": {"network.zero_gates": True, "network.query_key_norm": True},
}


def same_weights(left: Path, right: Path) -> bool:
    one, two = (RunDirectory(run).load().weights for run in (left, right))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("model", ["diffusion", "autoregressive"])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_the_run_and_resumes_exactly(name, model, tmp_path):
    if name == "output prior" and model == "autoregressive":
        pytest.skip("it has no noisy input")
    changes = OPTIONS[name] | {"model": model, "training.optimiser": "muon"}
    whole = train_tiny(tmp_path / "whole", changes)
    parts = train_tiny(tmp_path / "parts", changes | {"training.steps": 4})
    resume_tiny(parts, changes={"training.steps": 6})
    assert same_weights(whole, parts)
    plain = train_tiny(tmp_path / "plain", {"model": model, "training.optimiser": "muon"})
    losses = [[row.get("loss") for row in metrics(run)] for run in (whole, plain)]
    assert losses[0] != losses[1]


def test_dropout_spares_validation_and_sampling(tmp_path):
    trainer = start_tiny(tmp_path / "run", {"network.dropout": 0.9})
    trainer.train_step()
    trainer.model.eval()
    first, second = (trainer.task.validate(trainer.valid).loss for _ in range(2))
    assert first == second
    trainer.model.train()
    third = trainer.task.validate(trainer.valid).loss
    assert third != first
    trainer.run.unlock()
    assert not load(tmp_path / "run").model.training


def test_random_lengths_are_those_of_their_share_and_of_all_lengths(tmp_path):
    changes = {"data.random_length_share": 0.3, "objective.prefix_length": 10}
    task = start_tiny(tmp_path / "run", changes).task
    lengths = [task.length_at(step) for step in range(2000)]
    short = [length for length in lengths if length < 24]
    # A random length is the whole one in 1 of 14 cases.
    assert len(short) / 2000 == pytest.approx(0.3 * 13 / 14, abs=0.04)
    assert {*lengths} == {*range(11, 25)}
    assert lengths[:50] == [task.length_at(step) for step in range(50)]
    whole = start_tiny(tmp_path / "whole").task
    assert {whole.length_at(step) for step in range(100)} == {24}


def test_cut_batches_have_draws_of_their_length(tmp_path):
    trainer = start_tiny(tmp_path / "run", {"data.random_length_share": 1.0})
    for step in range(5):
        [(tokens, draws)] = trainer._parts()
        assert tokens.shape[1] == draws.is_noisy.shape[1] == trainer.task.length_at(step)
        trainer.train_step()


def test_a_tuned_run_keeps_the_weight_of_its_output_prior(tmp_path):
    changes = {"network.output_prior": True, "network.output_prior_warmup": 4}
    parent = train_tiny(tmp_path / "parent", changes)
    config = runs.inherited_config(tiny_config({"training.steps": 1}), parent)
    runs.start(config, tmp_path / "child", init_from=parent).train()
    weights = RunDirectory(tmp_path / "child").load().weights
    assert float(weights["model.prior.weight"]) == 1.0


KEPT = PATIENT | {"training.patience": 0, "training.keep_best": True}
BEST_EARLY = LOSSES | {16: 3.0, 18: 3.0, 20: 3.0}


def test_the_best_checkpoint_is_what_a_whole_run_ends_with(tmp_path, monkeypatch):
    fake_losses(monkeypatch, BEST_EARLY)
    trainer = start_tiny(tmp_path / "run", KEPT)
    assert trainer.train() == 2.0
    assert trainer.step == 20
    assert checkpoints(tmp_path / "run") == ["set-aside-step-00000020", "step-00000008"]
    # It is finished all the same.
    assert runs.is_finished(RunDirectory(tmp_path / "run"), {})
    assert not runs.is_finished(RunDirectory(tmp_path / "run"), {"training.steps": 30})


def test_the_best_of_an_interrupted_run_is_the_same(tmp_path, monkeypatch):
    fake_losses(monkeypatch, BEST_EARLY)
    trainer = start_tiny(tmp_path / "run", KEPT | {"training.steps": 10})
    trainer.train()
    resume_tiny(tmp_path / "run", changes={"training.steps": 20})
    assert checkpoints(tmp_path / "run")[-1] == "step-00000008"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.dropout": 1.0}, "network.dropout is 1.0, it must be below 1"),
        ({"training.weight_decay": -1.0}, "training.weight_decay is -1.0, it must be at least 0"),
        (
            {"network.output_prior_clip": 0.0},
            "network.output_prior_clip is 0.0, it must be above 0",
        ),
        (
            {"training.keep_best": True},
            "training.keep_best compares validations: set training.validate_every above 0",
        ),
        (
            {"network.output_prior": True, "embedding.normalise": False},
            "network.output_prior needs embeddings of one norm: set embedding.normalise true, or "
            "network.output_prior false",
        ),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tiny_config(changes)


@pytest.mark.parametrize("name", ["output_prior_warmup", "output_prior_clip"])
def test_settings_of_an_output_prior_that_is_off_are_refused(name):
    names = [f"network.{name}"]
    with pytest.raises(ValueError, match=r"it needs network\.output_prior true"):
        refuse_without_effect(names, effects(tiny_config()))
    refuse_without_effect(names, effects(tiny_config({"network.output_prior": True})))
    config = tiny_config({"model": "autoregressive"})
    with pytest.raises(ValueError, match="it needs model diffusion"):
        refuse_without_effect(["network.output_prior"], effects(config))


def test_the_options_are_those_of_the_command(tmp_path):
    changes = {name: value for each in OPTIONS.values() for name, value in each.items()}
    changes = {name: "true" if value is True else value for name, value in changes.items()}
    options = tiny_options() + [
        word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    assert cdcd_main("train", *options, "--data", "tales", "--out", tmp_path / "run") == 0
