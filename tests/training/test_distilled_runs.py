"""Runs that distil another: what they keep of it, how they go on, and what they are refused for."""

import re

import pytest
import torch
from tiny import cdcd_main, resume_tiny, silent, tiny_config, train_tiny

from cdcd.inference.load import load
from cdcd.inference.text_model import Canvas
from cdcd.languages import markov_chain
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory, without_prefix
from cdcd.training.trainer import Trainer

SHORT = {
    "distillation.teacher_steps": 8,
    "distillation.num_steps": 2,
    "distillation.round_steps": 3,
    "training.average_decay": 0.9,
    "training.checkpoint_every": 1,
    "training.keep_checkpoints": 10,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    changes = {"training.average_decay": 0.9, "data.source": "markov"}
    return train_tiny(tmp_path_factory.mktemp("runs") / "teacher", changes)


def start(teacher, out, **changes) -> Trainer:
    return runs.distil(teacher, out, changes=SHORT | changes, console=silent())


@pytest.fixture(scope="module")
def student(teacher, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "student"
    start(teacher, out).train()
    return out


def weights(run, group, step=None):
    return without_prefix(group, RunDirectory(run).load(step).weights)


def equal(left, right) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_the_student_begins_as_its_teacher_samples(teacher, student):
    sampling = weights(teacher, "model") | weights(teacher, "average")
    for group in ("model", "teacher"):
        assert equal(weights(student, group, 0), sampling), group
    assert not equal(weights(student, "model"), sampling)


def test_embeddings_and_warp_stay_those_of_the_teacher(teacher, student):
    name = "embedding.weight"
    for group in ("model", "average", "teacher"):
        assert torch.equal(weights(student, group)[name], weights(teacher, "average")[name])
    assert equal(weights(student, "warp"), weights(teacher, "warp"))


def test_after_a_round_the_student_is_the_teacher(student):
    first = weights(student, "teacher", 0)
    assert equal(weights(student, "teacher", 3), first)
    averaged = weights(student, "model", 3) | weights(student, "average", 3)
    assert equal(weights(student, "teacher", 4), averaged)
    # The last round goes on with its teacher.
    assert equal(weights(student, "teacher", 6), averaged)


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_distillation_is_the_uninterrupted_one(teacher, student, tmp_path, stop):
    decay = RunDirectory(student).config.training.decay_steps
    out = tmp_path / "stopped"
    start(teacher, out, **{"training.steps": stop, "training.decay_steps": 0}).train()
    whole = start(teacher, tmp_path / "whole", **{"training.decay_steps": 0})
    whole.train()
    assert decay == 1
    resume_tiny(out, changes={"training.steps": 6})
    for group in ("model", "average", "teacher", "warp"):
        assert equal(weights(out, group), weights(tmp_path / "whole", group))


def test_each_round_draws_the_levels_of_its_grid(teacher, tmp_path):
    task = start(teacher, tmp_path / "run", **{"training.batch_size": 64}).task
    found = [{*draws.t.tolist()} for step in (0, 3) for draws in task.draw(step)]
    assert [len(levels) for levels in found] == [5, 3]
    # Both ends are in every grid, and the coarse one is part of the fine one.
    assert found[1] < found[0]
    assert {task.config.process.t_min, task.config.process.t_max} < found[1]


def test_it_samples_in_its_few_steps(student):
    model = load(student, device="cpu")
    assert model.settings({}).num_steps == 2
    calls = []
    model.complete("", seed=0, callback=lambda info: calls.append(info.index))
    assert calls == [0, 1]


def test_the_commands(teacher, tmp_path, capsys):
    out = tmp_path / "run"
    options = ["--distillation.teacher-steps", 4, "--distillation.num-steps", 2]
    options += ["--distillation.round-steps", 2, "--training.checkpoint-every", 0]
    assert cdcd_main("distill", teacher, "--out", out, *options) == 0
    assert "cdcd sample" in capsys.readouterr().out
    assert cdcd_main("sample", out) == 0
    assert cdcd_main("info", out) == 0
    assert "distillation.teacher_steps" in capsys.readouterr().out
    assert cdcd_main("train", "--resume", "--out", out, "--training.steps", 3) == 0
    again = ["--distillation.round-steps", 1]
    assert cdcd_main("distill", out, "--out", tmp_path / "again", *again) == 0
    config = RunDirectory(tmp_path / "again").config
    assert (config.distillation.teacher_steps, config.sampling.num_steps) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"distillation.teacher_steps": 12},
            "distillation.teacher_steps (12) must be distillation.num_steps (2) doubled once or more: "
            "4, 8, 16, 32, …",
        ),
        (
            {"distillation.squared_error_weight": 0.0, "distillation.divergence_weight": 0.0},
            "distillation.squared_error_weight and distillation.divergence_weight are both 0: set one "
            "above 0",
        ),
        (
            {"training.strategy": "fsdp"},
            "distilled models are not sharded (fsdp): choose ddp",
        ),
    ],
)
def test_mistakes_are_refused(teacher, tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        start(teacher, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_other_models_are_refused(tmp_path):
    baseline = train_tiny(tmp_path / "baseline", {"model": "autoregressive", "training.steps": 1})
    with pytest.raises(ValueError, match="what can be distilled are diffusion models of text"):
        start(baseline, tmp_path / "run")
    clamped = train_tiny(tmp_path / "clamped", {"embedding.clamp": True, "training.steps": 1})
    with pytest.raises(ValueError, match="distil a run without them"):
        start(clamped, tmp_path / "run")
    config = tiny_config({"distillation.teacher_steps": 16})
    with pytest.raises(ValueError, match="needs a teacher: cdcd distill RUN"):
        runs.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert cdcd_main("train", "--distillation.teacher-steps", 16, "--out", tmp_path / "run") == 2


def test_a_run_that_was_moved_asks_for_its_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"word{i % 7} and word{i % 5} again" for i in range(200)))
    changes = {"data.source": str(text), "data.tokenizer": "words", "data.layout": "documents"}
    train_tiny(tmp_path / "teacher", changes | {"training.steps": 1})
    (tmp_path / "teacher").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="was made elsewhere"):
        start(tmp_path / "moved", tmp_path / "run")
    start(tmp_path / "moved", tmp_path / "run", **{"data.source": str(text)})


STEPS = 4
CHAIN = {
    **{"data.source": "markov", "data.num_states": 8, "data.length": 12},
    **{"data.num_documents": 20_000, "process.t_min": 0.3, "process.t_max": 30.0},
    **{"embedding.dim": 16, "embedding.init_scale": 0.1, "warp.num_bins": 30},
    **{"network.width": 32, "network.num_blocks": 2, "network.num_heads": 4},
    **{"network.time_units": 16, "training.optimiser": "muon", "training.momentum": 0.9},
    **{"training.learning_rate": 8e-3, "training.beta2": 0.98, "training.batch_size": 64},
    **{"training.steps": 400, "training.warmup_steps": 20, "training.decay_steps": 150},
    **{"training.average_decay": 0.98, "training.checkpoint_every": 0},
}
FEW = {
    **{"distillation.teacher_steps": 16, "distillation.num_steps": STEPS},
    **{"distillation.round_steps": 100, "training.learning_rate": 2.4e-3},
}


def exact_nll(run) -> torch.Tensor:
    """Nats a token of samples in few steps, under the chain itself; seeds are the same for all runs."""
    model, chain = load(run, device="cpu"), markov_chain(8)
    canvas = Canvas((None,) * model.length)
    found = model.generate(canvas, num_samples=1_000, batch_size=1_000, num_steps=STEPS)
    states = [[int(word[1:]) for word in each.text.split()] for each in found]
    return torch.stack([-chain.log_prob(torch.tensor([each]))[0] / len(each) for each in states])


@pytest.mark.slow
def test_a_distilled_model_samples_better_in_few_steps_than_its_teacher(tmp_path):
    """A network that learnt a chain, which knows how likely the samples are."""
    teacher = train_tiny(tmp_path / "teacher", CHAIN)
    runs.distil(teacher, tmp_path / "student", changes=FEW, console=silent()).train()
    gains = exact_nll(teacher) - exact_nll(tmp_path / "student")
    assert float(gains.mean()) > 3 * float(gains.std()) / 1_000**0.5
