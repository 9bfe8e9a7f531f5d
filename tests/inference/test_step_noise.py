"""Samples of solvers that put noise back depend on their own seed alone; settings of what a network is told."""

import json

import pytest
import torch
from tiny import cdcd_main

from cdcd.diffusion.step_noise import step_noise


def estimates(model, prompt, **settings):
    """The predictions of every step."""
    seen = []
    canvas = model.prompt_canvas(prompt)
    model.generate(canvas, callback=lambda info: seen.append(info.x0_hat), **settings)
    return torch.stack(seen)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"solver": "bridge", "guidance_scale": 2.0},
            "solver bridge draws tokens, which guidance does not change",
        ),
        ({"eta": 2.0}, "eta has no effect here: it needs solver ancestral or bridge"),
        (
            {"solver": "dpm++", "noise_above": 2.0},
            "noise_above has no effect here: it needs solver ancestral or bridge",
        ),
        (
            {"solver": "bridge", "exact_temperature": True},
            "exact_temperature has no effect here: it needs solver euler or heun",
        ),
    ],
)
def test_settings_that_do_not_go_together(model, settings, message):
    with pytest.raises(ValueError, match=message):
        model.complete("Mia", **settings)


@pytest.mark.parametrize("settings", [{"eta": 0.7}, {"eta": 5.0, "score_temperature": 0.8}])
@pytest.mark.parametrize("solver", ["ancestral", "bridge"])
def test_noise_that_is_put_back_depends_on_the_seed_and_not_on_the_batch(
    model, blank, solver, settings
):
    asked = {"num_samples": 3, "num_steps": 9, "solver": solver, **settings}
    whole, alone, other = (
        [each.tokens for each in model.generate(blank, **asked, **more)]
        for more in ({}, {"batch_size": 1}, {"seed": 1})
    )
    assert whole == alone
    assert len({*whole, *other}) > 3


@pytest.mark.parametrize("solver", ["ancestral", "bridge"])
def test_other_noise_gives_other_samples(model, monkeypatch, solver):
    """Power: the initial noise alone does not make them."""
    asked = {"solver": solver, "num_steps": 9}
    before = estimates(model, "Mia", **asked)
    other = lambda keys, step, like: step_noise(keys + 1, step, like)  # noqa: E731
    monkeypatch.setattr("cdcd.inference.model.step_noise", other)
    assert not torch.equal(estimates(model, "Mia", **asked), before)


@pytest.mark.parametrize("scale", [1.3, 10.0])
def test_the_network_is_told_another_noise_level(model, monkeypatch, scale):
    told, network = {}, model.sampler.network
    for name, settings in (("plain", {}), ("scaled", {"stated_noise_scale": scale})):
        levels = told[name] = []

        def noted(x, t, levels=levels, **more):
            levels.append(float(t[0]))
            return network(x, t, **more)

        monkeypatch.setattr(model.sampler, "network", noted)
        model.complete("Mia", num_steps=6, **settings)
    t_max = model.config.process.t_max
    expected = [min(scale * t, t_max) for t in told["plain"]]
    assert told["scaled"] == pytest.approx(expected)


def test_the_command_line_puts_noise_back(model, run, blank, capsys):
    asked = {"solver": "ancestral", "eta": 2.0, "noise_below": 9.0, "num_steps": 9}
    options = [str(o) for n, v in asked.items() for o in (f"--{n.replace('_', '-')}", v)]
    assert cdcd_main("sample", run, *options, "--num-samples", 2, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"] == asked
    expected = model.generate(blank, num_samples=2, **asked)
    assert [each["text"] for each in printed["samples"]] == [each.text for each in expected]
