"""Samples of masked models: their own seeds alone, given tokens, steps, and settings that do not fit."""

import json

import pytest
import torch
from tiny import cdcd_main, train_tiny

import cdcd
from cdcd.inference.text_model import MaskedTextModel
from cdcd.inference.unmasking import UnmaskingStep

SETTINGS = [{}, {"order": "confidence"}, {"num_steps": 5, "temperature": 0.8, "nucleus": 0.9}]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"training.steps": 30, "training.log_every": 10, "training.learning_rate": 1e-2}
    return train_tiny(tmp_path_factory.mktemp("unmasking") / "run", {"model": "masked"} | changes)


@pytest.fixture(scope="module")
def model(run):
    loaded = cdcd.load(run)
    assert isinstance(loaded, MaskedTextModel)
    return loaded


def tokens_of(model, canvas, **arguments):
    return [each.tokens for each in model.generate(canvas, ignore_eos=True, **arguments)]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_sample_depends_on_its_seed_alone(model, settings):
    blank = model.prompt_canvas("")
    drawn = tokens_of(model, blank, num_samples=5, seed=7, **settings)
    assert len(set(drawn)) == 5
    for batch_size in (1, 3):
        again = tokens_of(model, blank, num_samples=5, seed=7, batch_size=batch_size, **settings)
        assert again == drawn
    assert not set(tokens_of(model, blank, num_samples=5, seed=8, **settings)) & set(drawn)
    # A neighbour with fewer tokens to draw takes fewer steps.
    beside = tokens_of(
        model, [model.prompt_canvas("Mia was at the old"), blank], seed=7, **settings
    )
    assert beside[1] == drawn[1]


def test_given_tokens_stay_and_gaps_are_filled(model):
    text = "One sunny day [3] at the old farm . [4]"
    canvas = model.infill_canvas(text)
    for seed, settings in enumerate(SETTINGS):
        [filled] = model.generate(canvas, seed=seed, ignore_eos=True, **settings)
        for found, given in zip(filled.tokens, canvas.tokens, strict=True):
            assert given is None or found == given
    assert model.infill(text, seed=3).startswith("One sunny day")


@pytest.mark.parametrize(("num_steps", "expected"), [(5, 5), (200, 24)])
def test_an_equal_share_is_drawn_in_each_step(model, num_steps, expected):
    seen: list[UnmaskingStep] = []
    canvas = model.prompt_canvas("")
    model.generate(canvas, num_samples=3, num_steps=num_steps, callback=seen.append)
    assert [info.index for info in seen] == list(range(expected))
    assert {info.num_steps for info in seen} == {expected}
    counts = torch.stack([info.is_masked.sum(1) for info in seen])
    assert (counts == counts[:, :1]).all()
    steps = -counts[:, 0].diff(append=torch.tensor([0]))
    assert steps.max() - steps.min() <= 1
    assert seen[0].t == 1.0
    for info in seen:
        probabilities = info.probabilities
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 24))
        certain = probabilities.amax(-1) == 1
        assert certain[~info.is_masked].all()
        assert torch.equal(probabilities.argmax(-1)[~info.is_masked], info.tokens[~info.is_masked])


def test_a_temperature_of_zero_by_confidence_draws_nothing(model):
    blank, settings = model.prompt_canvas(""), {"order": "confidence", "temperature": 0}
    drawn = tokens_of(model, blank, num_samples=3, **settings)
    assert len(set(drawn)) == 1


def test_nothing_to_fill_needs_no_step(model):
    tokens = torch.full((2, 24), 5)
    nothing = torch.zeros(2, 24, dtype=torch.bool)
    settings = model.settings({})
    assert torch.equal(model.fill(tokens, nothing, [(0, 0), (0, 1)], settings), tokens)


def test_generation_leaves_the_global_generator_alone(model):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model.complete("Mia was")
    assert torch.equal(torch.get_rng_state(), before)


def test_float64(run):
    exact = cdcd.load(run, dtype="float64")
    assert len(exact.complete("Mia was", num_samples=2)) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score_temperature": 0.9}, "is a setting of decoder ode, not of sampling of masked"),
        ({"top_k": 3}, "autoregressive sampling, not of .*; this is a masked model: leave it out"),
        ({"decoder": "ode"}, "decoder is for diffusion models; this is a masked model"),
        ({"order": "left"}, "unknown choice left; known: confidence, random"),
        ({"num_steps": 0}, "num_steps is 0, it must be at least 1"),
        ({"temperature": -1}, "temperature is -1"),
        ({"nucleus": 0}, "nucleus is 0"),
    ],
)
def test_settings_that_do_not_fit(model, settings, message):
    with pytest.raises(ValueError, match=message):
        model.complete("Mia", **settings)


def test_sample_and_infill_from_the_command_line(run, capsys):
    options = ("--num-steps", 4, "--order", "confidence", "--temperature", 0.5, "--json")
    assert cdcd_main("sample", run, "--prompt", "Mia was", "--num-samples", 2, *options) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert all(each["text"].startswith("Mia was") for each in samples)
    assert cdcd_main("infill", run, "Mia was [3].", *options) == 0
    assert len(json.loads(capsys.readouterr().out)["samples"]) == 1
