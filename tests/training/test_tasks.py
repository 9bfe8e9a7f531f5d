"""Autoregressive training: it learns, resumes bit for bit, as masked runs do, counts no padding; and early stopping."""

import json
import math
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interruptions import SEVEN, assert_same_run, stop_after
from tiny import (
    cdcd_main,
    contents,
    metrics,
    resume_tiny,
    silent,
    start_tiny,
    tiny_config,
    tiny_options,
    train_tiny,
)
from torch.nn import functional as F

import cdcd
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference.text_model import AutoregressiveTextModel
from cdcd.languages import tales
from cdcd.training import tasks
from cdcd.training.build import build_model
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.monitoring import Stopped
from cdcd.training.run import resume
from cdcd.training.tasks import AutoregressiveTextTask
from cdcd.training.trainer import Trainer
from cdcd.training.validation import TokenReport

AUTOREGRESSIVE, MASKED = {"model": "autoregressive"}, {"model": "masked"}


# Training


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"training.steps": 60, "training.log_every": 10, "training.learning_rate": 1e-2}
    return train_tiny(tmp_path_factory.mktemp("tasks") / "run", AUTOREGRESSIVE | changes)


def test_it_learns_from_a_uniform_start(run):
    rows = metrics(run)
    vocab_size = RunDirectory(run).vocab_size
    [validated] = [row for row in rows if "valid_loss" in row]
    assert validated["valid_loss"] < 0.7 * math.log(vocab_size)
    assert validated["validation"]["loss"] == validated["valid_loss"]
    first = start_tiny(run.parent / "first", AUTOREGRESSIVE)
    assert first.task.validate(first.valid).loss == pytest.approx(math.log(vocab_size), abs=1e-4)


RESUMED = [
    {},
    {"training.accumulate": 2},
    {"training.optimiser": "muon", "network.tied_head": True},
    {"data.layout": "stream"},
    MASKED,
    MASKED | {"training.accumulate": 2, "training.optimiser": "muon", "objective.masking": "none"},
]


@pytest.fixture(
    scope="module",
    params=RESUMED,
    ids=["adam", "accumulate", "muon and tied", "stream", "masked", "masked, accumulate, muon"],
)
def uninterrupted(request, tmp_path_factory):
    changes = SEVEN | AUTOREGRESSIVE | request.param
    return changes, train_tiny(tmp_path_factory.mktemp("uninterrupted") / "whole", changes)


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 6])
def test_stopped_and_resumed_is_uninterrupted(tmp_path, monkeypatch, uninterrupted, stop):
    changes, whole = uninterrupted
    trainer = start_tiny(tmp_path / "stopped", changes)
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Stopped, match=f"stopped at step {stop} and saved"):
            trainer.train()
    resume_tiny(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole)


def test_the_state_compared_covers_everything_that_trains(uninterrupted):
    _, whole = uninterrupted
    before, after = (RunDirectory(whole).load(step, with_optimiser=True) for step in (5, 7))
    parameters = [name for name in after.weights if not name.startswith("warp.")]
    assert parameters == list(after.weights), "only diffusion runs have a warp"
    still = [n for n in parameters if torch.equal(after.weights[n], before.weights[n])]
    assert all("rotary" in name for name in still), still


def one_step(monkeypatch, tmp_path: Path, parts: int, changes: dict) -> tuple[float, dict]:
    trainer = start_tiny(
        tmp_path / str(parts), AUTOREGRESSIVE | changes | {"training.accumulate": parts}
    )
    monkeypatch.setattr(trainer.optimiser, "step", lambda: None)
    loss, per_sequence, _ = trainer._update(trainer._parts())
    gradients = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    return float(loss), gradients | {"per sequence": per_sequence}


@pytest.mark.parametrize(
    "changes", [{"data.layout": "documents"}, {"data.layout": "stream"}, MASKED]
)
def test_parts_of_a_batch_have_the_loss_and_gradients_of_the_whole(monkeypatch, tmp_path, changes):
    """Also where the parts have different numbers of tokens: a mean of means would differ."""
    changes = {"data.length": 48} | changes
    (loss, whole), (loss_in_parts, parts) = (
        one_step(monkeypatch, tmp_path, n, changes) for n in (1, 4)
    )
    assert loss_in_parts == pytest.approx(loss, rel=1e-6)
    assert parts.keys() == whole.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.fixture(scope="module")
def task():
    config = tiny_config(AUTOREGRESSIVE)
    model = build_model(config, 20)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return AutoregressiveTextTask(config, model, device=torch.device("cpu"), dtype=torch.float32)


PADDED = torch.tensor([[5, 6, 7, EOS, PAD, PAD], [5, EOS, PAD, PAD, PAD, PAD], [5, 6, 7, 8, 9, 10]])


def test_padding_is_not_counted_and_the_end_is(task):
    assert int(task.num_targets(PADDED, None)) == 4 + 2 + 6
    found, per_sequence = task.loss(PADDED, None)
    expected = []
    for row in PADDED:
        text = row[row != PAD][None]
        expected.append(F.cross_entropy(task.model(text)[0], text[0], reduction="sum").item())
    total, counts = sum(expected), torch.tensor([4, 2, 6])
    assert found.item() == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(per_sequence, torch.tensor(expected) / counts)
    assert not per_sequence.requires_grad
    report = task.validate(PADDED)
    assert (report.loss, report.num_tokens) == (pytest.approx(total / 12, rel=1e-5), 12)
    changed = torch.where(PADDED == PAD, 11, PADDED)
    assert task.loss(changed, None)[0].item() > total + 1


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_validation_does_not_depend_on_the_batch(task, batch_size):
    config = replace(
        task.config, training=replace(task.config.training, batch_size=batch_size, accumulate=1)
    )
    other = AutoregressiveTextTask(
        config, task.model, device=torch.device("cpu"), dtype=torch.float32
    )
    assert other.validate(PADDED).loss == pytest.approx(task.validate(PADDED).loss, rel=1e-6)


def test_padding_has_no_gradient(task):
    task.loss(PADDED, None)[0].backward()
    head = task.model.head.weight.grad
    assert head[PAD].abs().max() > 0, "the softmax pushes the padding down"
    embedded = task.model.embedding.weight.grad
    assert embedded[PAD].abs().max() == 0
    task.model.zero_grad()


def test_a_tied_head_is_the_embedding(tmp_path):
    plain, tied = (
        train_tiny(tmp_path / str(on), AUTOREGRESSIVE | {"network.tied_head": on})
        for on in (False, True)
    )
    weights = RunDirectory(tied).load().weights
    assert not [name for name in weights if "head" in name]
    assert [name for name in RunDirectory(plain).load().weights if "head" in name]
    model = cdcd.load(tied)
    tokens = torch.randint(3, 100, (2, 24))
    expected = model.model.states(tokens)[:, :-1] @ model.model.embedding.weight[:-1].T
    torch.testing.assert_close(model.model(tokens), expected)


def test_a_loss_that_is_not_finite_names_the_step_and_no_noise_level(tmp_path, monkeypatch):
    losses_of, calls = tasks.token_losses, []

    def poisoned(*arguments):
        calls.append(0)
        factor = torch.nan if len(calls) == 3 else 1.0
        return tuple(factor * losses for losses in losses_of(*arguments))

    monkeypatch.setattr(tasks, "token_losses", poisoned)
    with pytest.raises(ValueError, match="the loss is not finite at step 2; the last good"):
        train_tiny(tmp_path / "run", AUTOREGRESSIVE)


def test_fine_tuning_starts_from_the_other_runs_weights(tmp_path, run):
    changes = ["--training.steps", 1, "--init-from", run, "--data", "tales", "--preset", "demo"]
    changes += ["--data.num-documents", 200, "--training.valid-sequences", 4]
    changes += ["--data.length", 24, "--training.optimiser", "adam"]
    changes += ["--training.learning-rate", 1e-9, "--training.batch-size", 8]
    assert cdcd_main("train", "--out", tmp_path / "new", *changes) == 0
    found, expected = cdcd.load(tmp_path / "new"), cdcd.load(run)
    assert isinstance(found, AutoregressiveTextModel)
    tokens = torch.randint(3, 100, (2, 24))
    torch.testing.assert_close(found.model(tokens), expected.model(tokens), rtol=1e-4, atol=1e-4)


# The command line with an autoregressive run


def test_train(tmp_path, capsys):
    options = tiny_options(AUTOREGRESSIVE | {"network.tied_head": "true"})
    assert cdcd_main("train", "--out", tmp_path / "run", *options) == 0
    assert re.search(r"validation loss \d\.\d+; try: cdcd sample", capsys.readouterr().out)
    config = RunDirectory(tmp_path / "run").config
    assert (config.model, config.network.tied_head) == ("autoregressive", True)


def test_info(run, capsys):
    assert cdcd_main("info", run, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == "autoregressive"
    assert shown["parameters"] == sum(p.numel() for p in cdcd.load(run).model.parameters())
    assert cdcd_main("info", run) == 0
    assert "autoregressive" in capsys.readouterr().out


def test_plot(run, tmp_path, capsys):
    assert cdcd_main("plot", run, "--out", tmp_path / "a") == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "a/training.png")]
    assert (tmp_path / "a/training.png").read_bytes().startswith(b"\x89PNG")


def test_sample_equals_python(run, capsys):
    options = ("--prompt", "One sunny day", "--num-samples", 3, "--seed", 5, "--nucleus", 0.9)
    assert cdcd_main("sample", run, *options) == 0
    texts = cdcd.load(run).complete("One sunny day", num_samples=3, seed=5, nucleus=0.9)
    assert capsys.readouterr().out == "".join(text + "\n" for text in texts)
    assert all(text.startswith("One sunny day") for text in texts)
    assert len(set(texts)) == 3


def assert_refused(capsys, message: str, *arguments: object) -> None:
    assert cdcd_main(*arguments) == 2
    shown = capsys.readouterr()
    assert re.search(message, shown.err), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith(f"cdcd {arguments[0]}: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("infill", "Mia [3] home."), "an autoregressive model cannot fill gaps"),
        (
            ("sample", "--score-temperature", 0.9),
            "score_temperature is a setting of decoder ode, not of",
        ),
        (
            ("sample", "--num-steps", 9),
            "num_steps is a setting of decoder ode and sampling of masked models, not of",
        ),
        (("sample", "--guidance-scale", 2), "guidance_scale is a setting of decoder ode, not of"),
        (("sample", "--temperature", -1), "temperature is -1.0, it must be at least 0.001, or 0"),
        (("sample", "--nucleus", 0), "nucleus is 0.0, it must be above 0"),
    ],
)
def test_what_an_autoregressive_model_cannot_do(run, capsys, arguments, message):
    verb, *rest = arguments
    assert_refused(capsys, message, verb, run, *rest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.tied_head": "true"}, "network.tied_head is for autoregressive models"),
        ({"model": "autoregresive"}, "unknown choice autoregresive; did you mean autoregressive"),
        (AUTOREGRESSIVE | {"data.split": "judge"}, "data.split judge needs a prepared data set"),
        (
            AUTOREGRESSIVE | {"training.patience": 2},
            "training.patience counts validations: set training.validate_every above 0",
        ),
        ({"training.patience": -1}, "training.patience is -1, it must be at least 0"),
    ],
)
def test_bad_settings(tmp_path, capsys, changes, message):
    assert_refused(capsys, message, "train", "--out", tmp_path / "run", *tiny_options(changes))
    assert not (tmp_path / "run").exists()


# Early stopping

PATIENT = AUTOREGRESSIVE | {
    "training.steps": 20,
    "training.validate_every": 2,
    "training.checkpoint_every": 3,
    "training.keep_checkpoints": 1,
    "training.patience": 3,
}
LOSSES = {2: 5.0, 4: 3.0, 6: 4.0, 8: 2.0, 10: 2.5, 12: 2.0, 14: 2.1, 16: 1.0, 18: 1.0, 20: 1.0}
"""The best so far at 2, 4, 8; then 10, 12 (no better: equal) and 14 are waited for."""


def fake_losses(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    """Let validations say these losses, by step."""
    validate = Trainer._validate

    def faked(trainer: Trainer, *arguments):
        report = TokenReport(losses[trainer.step], 1)
        with monkeypatch.context() as patch:
            patch.setattr(AutoregressiveTextTask, "validate", lambda *_: report)
            return validate(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_validate", faked)


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_it_stops_after_waiting_and_the_best_is_what_loads(tmp_path, monkeypatch):
    fake_losses(monkeypatch, LOSSES)
    trainer = start_tiny(tmp_path / "run", PATIENT)
    assert trainer.train() == 2.0
    assert trainer.step == 14
    steps = [row["step"] for row in metrics(tmp_path / "run") if "valid_loss" in row]
    assert steps == [2, 4, 6, 8, 10, 12, 14]
    # The best is kept against keep_checkpoints, what came after it is set aside.
    assert checkpoints(tmp_path / "run") == ["set-aside-step-00000012", "step-00000008"]
    plain = train_tiny(tmp_path / "plain", PATIENT | {"training.steps": 8, "training.patience": 0})
    best = RunDirectory(tmp_path / "run").load()
    for name, tensor in RunDirectory(plain).load().weights.items():
        assert torch.equal(best.weights[name], tensor), name


def test_without_patience_it_goes_on_and_keeps_the_last(tmp_path, monkeypatch):
    fake_losses(monkeypatch, LOSSES)
    trainer = start_tiny(tmp_path / "run", PATIENT | {"training.patience": 0})
    assert trainer.train() == LOSSES[20]
    assert checkpoints(tmp_path / "run") == ["step-00000020"]


def test_with_enough_patience_it_reaches_the_end_and_keeps_the_best(tmp_path, monkeypatch):
    fake_losses(monkeypatch, LOSSES)
    trainer = start_tiny(tmp_path / "run", PATIENT | {"training.patience": 4})
    assert trainer.train() == 1.0
    assert trainer.step == 20
    assert checkpoints(tmp_path / "run") == ["set-aside-step-00000020", "step-00000016"]


def test_a_best_last_validation_is_the_last_checkpoint(tmp_path, monkeypatch):
    fake_losses(monkeypatch, {step: 1 / step for step in LOSSES})
    trainer = start_tiny(tmp_path / "run", PATIENT)
    assert trainer.train() == 1 / 20
    assert checkpoints(tmp_path / "run") == ["step-00000020"]


@pytest.mark.parametrize("stop", [1, 7, 8, 9, 10, 13, 14])
def test_waiting_goes_on_after_an_interruption(tmp_path, monkeypatch, stop):
    fake_losses(monkeypatch, LOSSES)
    whole = train_tiny(tmp_path / "whole", PATIENT)
    trainer = start_tiny(tmp_path / "run", PATIENT)
    with monkeypatch.context() as patch:
        stop_after(patch, stop, signal.SIGINT)
        with pytest.raises(Stopped):
            trainer.train()
    assert (8 in RunDirectory(tmp_path / "run").steps()) == (stop >= 8)
    resume_tiny(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert RunDirectory(tmp_path / "run").steps() == [8]


def test_interrupted_twice(tmp_path, monkeypatch):
    fake_losses(monkeypatch, LOSSES)
    whole = train_tiny(tmp_path / "whole", PATIENT)
    trainer = start_tiny(tmp_path / "run", PATIENT)
    for stop in (9, 11):
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(Stopped):
                trainer.train()
        trainer = resume(tmp_path / "run", console=silent())
    trainer.train()
    assert_same_run(tmp_path / "run", whole)


def test_patience_that_comes_later_never_loses_the_run(tmp_path, monkeypatch):
    """The best loss was seen when nobody kept its weights: it cannot be what loads."""
    fake_losses(monkeypatch, {**LOSSES, 2: 0.1, 7: 4.5})
    run = train_tiny(tmp_path / "run", PATIENT | {"training.patience": 0, "training.steps": 7})
    assert RunDirectory(run).steps() == [7]
    resume_tiny(run, changes={"training.steps": 20, "training.patience": 3})
    assert RunDirectory(run).steps() == [8]
    assert cdcd.load(run).complete()


def test_an_early_stopped_run_can_go_on_with_more_patience(tmp_path, monkeypatch):
    fake_losses(monkeypatch, LOSSES)
    run = train_tiny(tmp_path / "run", PATIENT)
    resume_tiny(run, changes={"training.patience": 4})
    assert RunDirectory(run).steps() == [16]
    rows = [row["step"] for row in metrics(run) if "valid_loss" in row]
    assert rows == list(range(2, 21, 2))


def test_a_real_validation_loss_that_rises_stops_training(tmp_path):
    """Ten documents learnt by heart: the held-out loss turns, and its lowest point is kept."""
    changes = AUTOREGRESSIVE | {
        "data.num_documents": 10,
        "training.steps": 2_000,
        "training.validate_every": 5,
        "training.learning_rate": 1e-2,
        "training.patience": 4,
        "training.log_every": 50,
        "training.checkpoint_every": 0,
    }
    trainer = start_tiny(tmp_path / "run", changes)
    best = trainer.train()
    rows = {r["step"]: r["valid_loss"] for r in metrics(tmp_path / "run") if "valid_loss" in r}
    assert best == min(rows.values())
    [step] = [step for step, loss in rows.items() if loss == best]
    assert trainer.step == step + 4 * 5 < 2_000
    model = cdcd.load(tmp_path / "run")
    again = start_tiny(tmp_path / "again", changes)
    again.model.load_state_dict(model.model.state_dict())
    assert again.task.validate(again.valid).loss == pytest.approx(best, rel=1e-6)


# Prepared data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    (place / "corpus.txt").write_text("\n".join(tales.stories(300, seed=1)) + "\n")
    config = PrepareConfig(
        source=str(place / "corpus.txt"),
        tokenizer="words",
        valid_share=0.1,
        judge_share=0.4,
        workers=1,
    )
    prepare(config, place / "set")
    return place / "set"


def test_runs_on_a_prepared_data_set_resume(tmp_path, monkeypatch, dataset):
    changes = SEVEN | AUTOREGRESSIVE | {"data.source": str(dataset), "data.split": "judge"}
    whole = train_tiny(tmp_path / "whole", changes)
    trainer = start_tiny(tmp_path / "run", changes)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            trainer.train()
    resume_tiny(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_the_split_is_what_is_trained_on(tmp_path, dataset):
    trainers = {
        split: start_tiny(
            tmp_path / split,
            AUTOREGRESSIVE | {"data.source": str(dataset), "data.split": split},
        )
        for split in ("train", "judge")
    }
    sets = {
        split: {tuple(row) for row in t.data.sequences.rows(torch.arange(100)).tolist()}
        for split, t in trainers.items()
    }
    assert not sets["train"] & sets["judge"]
    assert torch.equal(trainers["train"].valid, trainers["judge"].valid)


def test_a_data_set_of_another_tokenizer_is_refused_on_resuming(tmp_path, capsys, dataset):
    (tmp_path / "corpus.txt").write_text("a b c\nd e f\n" * 60)
    source = str(tmp_path / "corpus.txt")
    own = PrepareConfig(source=source, tokenizer="symbols", valid_share=0.2, workers=1)
    prepare(own, tmp_path / "set")
    changes = AUTOREGRESSIVE | {"data.source": str(tmp_path / "set"), "data.length": 4}
    start_tiny(tmp_path / "run", changes).run.unlock()
    (tmp_path / "set").rename(tmp_path / "old")
    prepare(replace(own, tokenizer=str(dataset)), tmp_path / "set")
    before = contents(tmp_path)
    capsys.readouterr()
    assert_refused(
        capsys, "has another tokenizer .* than the run", "train", "--resume", "--out",
        tmp_path / "run",
    )  # fmt: skip
    assert contents(tmp_path) == before
