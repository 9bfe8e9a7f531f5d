"""Run directories: what is in them, what is refused, and what survives damage and full disks."""

import errno
import hashlib
import json
import os
import re
import shutil
from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file
from tiny import (
    cdcd_main,
    contents,
    metrics,
    resume_tiny,
    start_tiny,
    tiny_config,
    tiny_options,
    train_tiny,
)

import cdcd
from cdcd import files
from cdcd.config import RunConfig, TrainingConfig
from cdcd.settings import flatten, from_dict
from cdcd.training import checkpoint as checkpoints
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory

FILES = ("weights.safetensors", "optimiser.safetensors", "checkpoint.json")


@pytest.fixture(scope="module")
def wider(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("wider") / "run", {"network.width": 64})


# Contents


def test_contents(run):
    assert set(os.listdir(run)) == {"config.json", "tokenizer", "metrics.jsonl", "checkpoints"}
    described = json.loads((run / "config.json").read_text())
    assert from_dict(RunConfig, described["config"]) == tiny_config()
    assert described["cdcd_version"] == cdcd.__version__
    assert os.listdir(run / "tokenizer") == ["words.json"]
    assert sorted(os.listdir(run / "checkpoints")) == [f"step-0000000{s}" for s in (2, 4, 6)]
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4, 5, 6, 6]


def test_a_checkpoint_holds_weights_averages_warp_and_moments(run):
    folder = run / "checkpoints" / "step-00000006"
    assert sorted(os.listdir(folder)) == sorted(FILES)
    weights, optimiser = (load_file(folder / name) for name in FILES[:2])
    assert {name.split(".")[0] for name in weights} == {"model", "average", "warp"}
    parameters = [name[len("average.") :] for name in weights if name.startswith("average.")]
    assert {f"model.{name}" for name in parameters} <= set(weights)
    assert {f"model.adam.exp_avg.{name}" for name in parameters} <= set(optimiser)
    described = json.loads((folder / "checkpoint.json").read_text())
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES[:2]}
    assert described == {"step": 6, "sha256": sums, "belongs_to": RunDirectory(run).belongings()}


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (9, [0, 1, 2, 3, 4, 5])])
def test_the_last_checkpoints_are_kept(tmp_path, keep, left):
    changes = {"steps": 5, "checkpoint_every": 1, "keep_checkpoints": keep}
    run = train_tiny(tmp_path / "run", {f"training.{k}": v for k, v in changes.items()})
    assert RunDirectory(run).steps() == left
    assert len(os.listdir(run / "checkpoints")) == len(left)


def test_a_new_run_can_be_loaded_before_its_first_step(tmp_path):
    start_tiny(tmp_path / "run")
    assert RunDirectory(tmp_path / "run").steps() == [0]
    assert cdcd.load(tmp_path / "run").length == 24


def test_sampling_uses_the_averages(run):
    weights = load_file(run / "checkpoints/step-00000006/weights.safetensors")
    average, current = weights["average.head.weight"], weights["model.head.weight"]
    assert not torch.equal(average, current)
    assert torch.equal(cdcd.load(run).model.head.weight, average)


# Damage


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def not_json(path):
    path.write_text("{")


def not_an_object(path):
    path.write_text("[]")


def no_sums(path):
    path.write_text("{}")


DAMAGES = [
    *((name, damage) for name in FILES[:2] for damage in (truncate, flip_a_byte, os.remove)),
    *(("checkpoint.json", damage) for damage in (not_json, not_an_object, no_sums, os.remove)),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES, ids=[f"{n}-{d.__name__}" for n, d in DAMAGES])
def test_damage_is_named_and_the_previous_checkpoint_works(run, capsys, name, damage):
    folder = run / "checkpoints" / "step-00000006"
    damage(folder / name)
    before = contents(run)
    resume = ("train", "--resume", "--out", run, "--training.steps", 8)
    # Sampling needs no optimiser.
    for command in [resume] if name == "optimiser.safetensors" else [("sample", run), resume]:
        assert cdcd_main(*command) == 2
        message = capsys.readouterr().err
        assert f"the checkpoint {folder} is damaged" in message
        [offer] = re.findall(r"--checkpoint \d+", message)
        assert message.count("\n") == 1
        assert contents(run) == before
        assert cdcd_main(*command, *offer.split()) == 0


def test_damage_of_the_only_checkpoint_offers_nothing(tmp_path):
    start_tiny(tmp_path / "run")
    truncate(tmp_path / "run/checkpoints/step-00000000/weights.safetensors")
    with pytest.raises(ValueError, match="is damaged") as caught:
        cdcd.load(tmp_path / "run")
    assert "--checkpoint" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"config": {}}', '{"config": 3, "vocab_size": 9}']
)
def test_a_damaged_config_is_one_line(run, capsys, text):
    (run / "config.json").write_text(text)
    assert cdcd_main("sample", run) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "Traceback" not in message


@pytest.mark.parametrize("changes", [{"network.width": 64}, {"warp.num_bins": 20}])
def test_a_checkpoint_of_another_size_is_refused(run, tmp_path, changes):
    other = train_tiny(tmp_path / "other", changes)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    with pytest.raises(ValueError, match=r"checkpoint of step 6 in .* is of another model size"):
        cdcd.load(run)
    with pytest.raises(ValueError, match="is of another model size"):
        resume_tiny(run, changes={"training.steps": 8})


# A full disk


def full_disk(monkeypatch, name, *, times=1):
    """Writing a file of this name fails the `times`-th time, after half of it is written."""
    write, seen = checkpoints.write_durably, []

    def failing(path, content):
        if path.name.endswith(name):
            seen.append(path)
        if path.name.endswith(name) and len(seen) == times:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    for module in (checkpoints, files):
        monkeypatch.setattr(module, "write_durably", failing)


@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_fills_up_while_training(tmp_path, monkeypatch, capsys, name):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk(patch, name, times=3)
        assert cdcd_main("train", "--out", run, *tiny_options()) == 2
    message = capsys.readouterr().err
    assert "could not save the checkpoint of step 4" in message
    assert "No space left on device; the checkpoint of step 2 is safe" in message
    assert f"cdcd train --resume --out {run}" in message
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000000", "step-00000002"]
    assert cdcd.load(run).complete()
    assert cdcd_main("train", "--resume", "--out", run) == 0


@pytest.mark.parametrize("name", ["config.json", *FILES])
def test_a_disk_that_is_full_at_the_start(tmp_path, monkeypatch, capsys, name):
    full_disk(monkeypatch, name)
    assert cdcd_main("train", "--out", tmp_path / "run", *tiny_options()) == 2
    message = capsys.readouterr().err
    assert f"could not create the run {tmp_path / 'run'}: No space left on device" in message
    assert "building" not in message
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["config.json.writing", "metrics.jsonl.writing"])
def test_a_disk_that_is_full_on_resuming(run, monkeypatch, capsys, name):
    before = contents(run)
    full_disk(monkeypatch, name)
    assert cdcd_main("train", "--resume", "--out", run, "--training.steps", 8) == 2
    assert "No space left on device" in capsys.readouterr().err
    after = contents(run)
    assert set(after) == set(before)
    assert after["metrics.jsonl"] == before["metrics.jsonl"]
    assert cdcd.load(run).complete()


@pytest.mark.parametrize(
    ("owner", "name"), [(runs, "Trainer"), (checkpoints, "write_durably"), (runs, "load_corpus")]
)
def test_nothing_is_left_of_a_run_that_cannot_start(tmp_path, monkeypatch, capsys, owner, name):
    def refusing(*_, **__):
        raise ValueError("not like this")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refusing)
        assert cdcd_main("train", "--out", tmp_path / "new" / "run", *tiny_options()) == 2
    assert "not like this" in capsys.readouterr().err
    assert contents(tmp_path) == {}
    assert cdcd_main("train", "--out", tmp_path / "new" / "run", *tiny_options()) == 0


# Starting, resuming and fine-tuning


def test_an_existing_run_is_refused_and_unchanged(run, capsys):
    before = contents(run)
    assert cdcd_main("train", "--out", run, *tiny_options()) == 2
    assert "already holds a run; go on with it (--resume)" in capsys.readouterr().err
    assert contents(run) == before


def test_another_folder_is_refused_and_unchanged(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert cdcd_main("train", "--out", tmp_path, *tiny_options()) == 2
    assert "already exists and is not a run" in capsys.readouterr().err
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--network.width", 64), "network.width is fixed at 32 by the run"),
        (("--data", "markov"), "data.source is fixed at tales by the run"),
        (("--training.seed", 1), "another seed splits the corpus in another way"),
        (("--training.batch-size", 4), "would be read from another position: step × batch size"),
        (("--training.optimiser", "muon"), "holds the state of the other optimiser"),
        (("--training.average-decay", 0), "the run keeps a moving average of its weights"),
        (("--training.momentum", 0.5), "has no effect here: it needs training.optimiser muon"),
        (("--training.device", "cuda"), "there is no CUDA device"),
        (("--preset", "demo"), "leave out --preset"),
        (("--checkpoint", 5), "holds no checkpoint of step 5, only of 2, 4, 6"),
        (("--checkpoint", 99), "holds no checkpoint of step 99"),
    ],
)
def test_a_resume_that_is_refused_changes_nothing(run, capsys, change, message):
    if "cuda" in change and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    before = contents(run)
    more = () if "--checkpoint" in change else ("--checkpoint", 4)
    assert cdcd_main("train", "--resume", "--out", run, *more, *change) == 2
    assert message in capsys.readouterr().err
    assert contents(run) == before


OTHER_TRAINING = {
    **{"steps": 9, "accumulate": 2, "strategy": "ddp", "learning_rate": 1e-3, "beta1": 0.8},
    **{"beta2": 0.9, "momentum": 0.8, "label_smoothing": 0.1, "schedule": "inverse_sqrt"},
    **{"warmup_steps": 5, "decay_steps": 3, "clip_norm": 2.0, "average_decay": 0.9},
    **{"device": "cpu", "dtype": "bfloat16", "compile": "on", "log_every": 3},
    **{"validate_every": 2, "valid_sequences": 2, "checkpoint_every": 3, "keep_checkpoints": 2},
    **{"patience": 2, "keep_best": True, "weight_decay": 0.1, "tracker": "off"},
    **{"optimiser": "muon", "batch_size": 16, "seed": 5},
}


def is_accepted(run, changes):
    try:
        runs.changed_config(RunDirectory(run), changes)
    except ValueError as error:
        assert "is fixed at" in str(error)  # noqa: PT017
        return False
    return True


def test_the_settings_that_a_resumed_run_can_change(run):
    """Tries another value of every setting: of `training` all but three, and none of the model and data."""
    config = RunDirectory(run).config
    assert set(OTHER_TRAINING) == {f.name for f in fields(TrainingConfig)}
    needs = {"training.warmup_steps": 4, "training.validate_every": 1}
    for name, value in OTHER_TRAINING.items():
        assert value != getattr(config.training, name), name
        expected = name not in ("optimiser", "batch_size", "seed")
        assert is_accepted(run, needs | {f"training.{name}": value}) == expected, name
    for name, value in flatten(config).items():
        if isinstance(value, float) and name.split(".")[0] in ("warp", "objective", "data"):
            assert is_accepted(run, {name: value}), name
            assert not is_accepted(run, {name: value * 0.97 + 0.0007}), name


def test_averages_and_early_stopping_fix_more_settings(tmp_path):
    changes = {"training.average_decay": 0, "training.patience": 2, "training.validate_every": 1}
    run = train_tiny(tmp_path / "run", changes)
    assert not is_accepted(run, {"training.average_decay": 0.5})
    assert not is_accepted(run, {"training.valid_sequences": 2})
    assert is_accepted(run, {"training.average_decay": 0.0, "training.valid_sequences": 4})


def test_a_finished_run_says_how_to_go_on_and_does(run, capsys):
    assert cdcd_main("train", "--resume", "--out", run) == 2
    message = capsys.readouterr().err
    assert "has already been trained for its 6 steps" in message
    [more] = re.findall(r"--resume (--training\.steps \d+)", message)
    assert cdcd_main("train", "--resume", "--out", run, *more.split()) == 0
    assert RunDirectory(run).steps()[-1] == 12
    assert RunDirectory(run).config == tiny_config({"training.steps": 12})


def test_an_earlier_checkpoint_sets_later_ones_aside(run, trained):
    resume_tiny(run, checkpoint=2)
    names = sorted(os.listdir(run / "checkpoints"))
    steps = ["step-00000002", "step-00000004", "step-00000006"]
    assert names == sorted([*steps, *(f"set-aside-{name}" for name in steps[1:])])
    assert metrics(run) == metrics(trained)
    for name in steps:
        assert contents(run / "checkpoints" / name) == contents(trained / "checkpoints" / name)


def test_the_first_checkpoint_can_be_resumed_from(tmp_path, trained):
    run = train_tiny(tmp_path / "run", {"training.keep_checkpoints": 9})
    resume_tiny(run, checkpoint=0)
    last = "checkpoints/step-00000006"
    assert contents(run / last) == contents(trained / last)


def test_fine_tuning_starts_from_the_averages_and_the_tokenizer(tmp_path, run):
    out = tmp_path / "tuned"
    options = ["--preset", "demo", "--training.steps", 2]
    options += ["--training.batch-size", 4, "--training.keep-checkpoints", 9]
    assert cdcd_main("train", "--out", out, "--init-from", run, *options) == 0
    before, first = RunDirectory(run).load(), RunDirectory(out).load(0)
    assert RunDirectory(out).steps() == [0, 2]
    for name in (n for n in before.weights if n.startswith("average.")):
        assert torch.equal(first.weights[name], before.weights[name])
        assert torch.equal(first.weights[f"model.{name[len('average.') :]}"], before.weights[name])
    for name in (n for n in before.weights if n.startswith("warp.")):
        assert torch.equal(first.weights[name], before.weights[name])
    assert contents(out / "tokenizer") == contents(run / "tokenizer")
    assert RunDirectory(out).config.network == RunDirectory(run).config.network
    assert RunDirectory(out).config.training.batch_size == 4


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_fine_tuning_with_and_without_averages(tmp_path, decay):
    """The other run has averages where the new one has none, and the other way round."""
    other = train_tiny(tmp_path / "other", {"training.average_decay": 0.9 - decay})
    config = runs.inherited_config(tiny_config({"training.average_decay": decay}), other)
    runs.start(config, tmp_path / "new", init_from=other)
    wanted = cdcd.load(other).model.state_dict()
    found = cdcd.load(tmp_path / "new").model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert any(n.startswith("average.") for n in RunDirectory(tmp_path / "new").load().weights) == (
        decay > 0
    )


def test_fine_tuning_another_size_is_refused(tmp_path, run, wider, capsys):
    with pytest.raises(ValueError, match="is of another model size"):
        runs.start(tiny_config(), tmp_path / "new", init_from=wider)
    overridden = ("--init-from", run, "--preset", "demo", "--network.width", 64)
    assert cdcd_main("train", "--out", tmp_path / "new", *overridden) == 2
    assert "is of another model size" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
