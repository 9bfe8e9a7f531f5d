"""Recorded evaluations: replayed on fixed memory they give the texts that plain ones give."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recordings import overwritten
from tiny import tiny_config

from cdcd.benchmarks.shapes import synthetic_tokenizer
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.text_model import DiffusionTextModel
from cdcd.networks import capture
from cdcd.networks.capture import (
    Captured,
    Recorder,
    make_recorder,
    settings_of,
    tensors_of,
    with_tensors,
)
from cdcd.networks.precision import choose_device, choose_dtype, with_bfloat16_weights
from cdcd.training.build import build_model

SMALL = {"data.vocab_size": 60, "data.length": 12, "network.num_blocks": 2, "embedding.dim": 16}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make_model(changes=None, *, mode="off"):
    """A model with nothing left at zero: a new network does not look at its last prediction."""
    config = tiny_config({"training.device": "cpu"} | SMALL | (changes or {}))
    device = choose_device(config.training.device)
    model, generator = build_model(config, 60), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return DiffusionTextModel(
        config,
        synthetic_tokenizer(60),
        model.to(device),
        TimeWarp(config.warp, config.process).to(device),
        dtype=choose_dtype(config.training.dtype, device),
        compile=mode,
    )


def fill(model, *, seed=0, batch=3, given=4, callback=None, **settings):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 60, (batch, 12), generator=generator)
    is_noisy = (torch.arange(12) >= given).expand(batch, -1)
    places = [(seed, i) for i in range(batch)]
    tokens, is_noisy = tokens.to(model.device), is_noisy.to(model.device)
    return model.fill(tokens, is_noisy, places, model.settings(settings), callback=callback).cpu()


def traced(model, **arguments):
    """The tokens, and every step's prediction, kept to the end."""
    seen = []

    def note(info):
        seen.append((info.x0_hat, info.probabilities, info.t))

    tokens = fill(model, callback=note, **arguments)
    return tokens, seen


SETTINGS = {
    "euler": {},
    "heun": {"solver": "heun"},
    "guidance": {"guidance_scale": 3.0},
    "guidance by heun": {"guidance_scale": 3.0, "solver": "heun"},
    "no self-conditioning": {"self_conditioning": False},
    "no self-conditioning, guidance": {"self_conditioning": False, "guidance_scale": 3.0},
    "shaped": {"softmax_temperature": 0.7, "nucleus": 0.8},
    "multistep": {"solver": "dpm++", "score_temperature": 0.7},
    "noise put back": {"solver": "ancestral", "eta": 2.0, "guidance_scale": 3.0},
    "tokens drawn": {"solver": "bridge", "nucleus": 0.9},
    "another noise level": {"stated_noise_scale": 1.2},
    "nearest": {"final_prediction": "nearest", "solver": "heun"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_replays_give_what_plain_calls_give(settings):
    """Twice, with other prompts and noise, from one recording."""
    plain = make_model()
    recorded = make_model()
    recorded.sampler.recorder = Recorder(overwritten)
    texts = set()
    for seed in (1, 2, 1):
        expected, steps = traced(plain, seed=seed, num_steps=6, **settings)
        found, replayed = traced(recorded, seed=seed, num_steps=6, **settings)
        assert torch.equal(found, expected)
        for one, other in zip(steps, replayed, strict=True):
            assert all(
                torch.equal(torch.as_tensor(a), torch.as_tensor(b))
                for a, b in zip(one, other, strict=True)
            )
        texts.add(tuple(expected.flatten().tolist()))
    assert len(texts) == 2
    assert len(recorded.sampler.recorder.kept) == 1


def test_replacement_is_recorded_with_its_noise():
    plain, recorded = (make_model({"objective.masking": "none"}) for _ in range(2))
    recorded.sampler.recorder = Recorder(overwritten)
    for seed in (1, 2):
        expected, steps = traced(plain, seed=seed, replacement=True)
        found, replayed = traced(recorded, seed=seed, replacement=True)
        assert torch.equal(found, expected)
        assert torch.equal(replayed[-1][0], steps[-1][0])
    assert len(recorded.sampler.recorder.kept) == 1


@pytest.mark.parametrize("kept", ["x0_hat", "state"])
def test_a_missing_copy_is_noticed(monkeypatch, kept):
    """Power: Heun holds a slope over the next call, a callback its predictions."""

    class Careless(Captured):
        def __call__(self, x, t, state):
            found = super().__call__(x, t, state)
            return replace(found, **{kept: getattr(self.shared, kept)})

        def _start(self, x, t):
            replay = super()._start(x, t)
            self.shared = replay()
            return replay

    monkeypatch.setattr(capture, "Captured", Careless)
    plain, recorded = make_model(), make_model()
    recorded.sampler.recorder = Recorder(overwritten)
    arguments = {"solver": "heun", "num_steps": 6, "seed": 1}
    seen = {"plain": [], "recorded": []}
    for name, model in (("plain", plain), ("recorded", recorded)):
        fill(
            model, callback=lambda i, n=name: seen[n].append(getattr(i.estimate, kept)), **arguments
        )
    same = [torch.equal(a, b) for a, b in zip(seen["plain"], seen["recorded"], strict=True)]
    assert not all(same)


@pytest.mark.parametrize("settings", [{}, {"guidance_scale": 3.0}, {"self_conditioning": False}])
def test_no_state_is_a_state_of_zeros(settings):
    model = make_model()
    tokens = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    is_noisy = (torch.arange(12) >= 4).expand(2, -1)
    noise = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(1))
    estimator = model.sampler.estimator(tokens, is_noisy, model.settings(settings), noise=noise)
    t = torch.full((2,), 3.0)
    none = estimator(3.0 * noise, t, None)
    branches = 2 if "guidance_scale" in settings else 1
    zeros = estimator(3.0 * noise, t, torch.zeros(branches * 2, 12, 16))
    assert torch.equal(none.logits, zeros.logits)
    assert torch.equal(none.x0_hat, zeros.x0_hat)


def test_recordings_are_by_shape_and_settings_and_few():
    model = make_model()
    model.sampler.recorder = Recorder(overwritten)
    made = []
    for arguments in (
        {},
        {"num_steps": 3, "solver": "heun"},
        {"batch": 2},
        {"guidance_scale": 2.0},
    ):
        fill(model, **arguments)
        made.append(list(model.sampler.recorder.kept.values()))
    assert [len(each) for each in made] == [1, 1, 2, 2]
    assert made[1] == made[0]
    assert made[3][0] is made[2][1]
    # Guidance without anything given is none.
    before = list(model.sampler.recorder.kept)
    fill(model, batch=2, given=0, guidance_scale=1.0)
    assert list(model.sampler.recorder.kept)[-1] == before[0]


def test_the_parts_of_an_estimator():
    """Every setting that changes an answer is in the key; every tensor can be exchanged."""
    model = make_model()
    tokens, is_noisy = torch.zeros(2, 12).long(), torch.arange(12).expand(2, -1) > 3
    noise = torch.zeros(2, 12, 16)

    def key(**settings):
        chosen = model.settings(settings)
        return settings_of(model.sampler.estimator(tokens, is_noisy, chosen, noise=noise))

    assert key() == key(num_steps=7, solver="heun", rho=3.0, warp=False, final_prediction="nearest")
    different = (
        {"nucleus": 0.5},
        {"guidance_scale": 2.0},
        {"self_conditioning": False},
        {"stated_noise_scale": 1.1},
    )
    assert len({key(), *(key(**settings) for settings in different)}) == 5
    estimator = model.sampler.estimator(tokens, is_noisy, model.settings({}), noise=noise)
    others = [tensor + 1 for tensor in tensors_of(estimator) if tensor.dtype != torch.bool]
    changed = with_tensors(estimator, iter([*others, ~is_noisy]))
    assert torch.equal(changed.tokens, tokens + 1)
    assert settings_of(changed) == settings_of(estimator)


def test_modes():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert make_recorder("auto", cpu) is None
    assert make_recorder("off", cuda) is None
    eager = make_recorder("auto", cuda)
    assert eager is not None
    assert (eager.record, eager.evaluate) == (capture.record_graph, capture.evaluate)
    compiled = make_recorder("on", cpu)
    assert compiled is not None
    assert compiled.record is capture.record_nothing
    assert compiled.evaluate is not capture.evaluate
    with pytest.raises(ValueError, match="choose on or off"):
        make_recorder("graphs", cpu)
    with pytest.raises(ValueError, match="'fast', it must be one of auto, on"):
        make_recorder("fast", cpu)


# Precision


def test_bfloat16_weights_are_those_of_autocast():
    model = make_model().model
    rounded = with_bfloat16_weights(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert rounded.head.weight.dtype == torch.bfloat16
    assert rounded.embedding.weight.dtype == rounded.time.frequencies.dtype == torch.float32
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
    inputs = {"c": x, "x0_prev": x, "is_noisy": torch.ones(2, 12, dtype=torch.bool)}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        t = torch.tensor([2.0, 20.0])
        assert torch.equal(model(x, t, **inputs), rounded(x, t, **inputs))


def test_only_the_network_is_in_bfloat16():
    model = make_model({"training.dtype": "bfloat16"})
    seen = []
    fill(model, callback=seen.append, nucleus=0.9)
    assert {info.estimate.logits.dtype for info in seen} == {torch.bfloat16}
    assert {info.probabilities.dtype for info in seen} == {torch.float32}
    kept = (tensor for info in seen for tensor in (info.x0_hat, info.estimate.state))
    assert {tensor.dtype for tensor in kept} == {torch.float32}


# Compiled: in a process of its own, since torch cannot compile the tests' checks of shapes


def in_new_process(call):
    command = f"import test_capture; test_capture.{call}"
    folders = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def compile_whole():
    """An evaluation is one graph without breaks, which serves other prompts and numbers of steps."""
    graphs = []
    backend = lambda graph, _: graphs.append(1) or graph.forward  # noqa: E731
    compiled = torch.compile(capture.evaluate, dynamic=False, fullgraph=True, backend=backend)
    plain, other = make_model(), make_model()
    other.sampler.recorder = Recorder(capture.record_nothing, compiled)
    for count, settings in enumerate(({}, {"guidance_scale": 3.0}, {"nucleus": 0.8}), start=1):
        for steps in (3, 4):
            arguments = {"seed": steps, "num_steps": steps, **settings}
            assert torch.equal(fill(other, **arguments), fill(plain, **arguments))
        assert len(graphs) == count


def test_an_evaluation_is_compiled_whole():
    in_new_process("compile_whole()")


# On a GPU


def check_captured(mode, **settings):
    changes = {"training.device": "cuda", "training.dtype": "float32"}
    plain, captured = make_model(changes), make_model(changes, mode=mode)
    assert captured.sampler.recorder is not None
    for seed in (1, 2):
        expected, steps = traced(plain, seed=seed, num_steps=6, **settings)
        found, replayed = traced(captured, seed=seed, num_steps=6, **settings)
        assert (found == expected).float().mean() > 0.95
        torch.testing.assert_close(replayed[-1][0], steps[-1][0], rtol=1e-3, atol=1e-3)


def check_captured_in_bfloat16(mode):
    changes = {"training.device": "cuda", "training.dtype": "bfloat16"}
    plain, captured = make_model(changes), make_model(changes, mode=mode)
    for seed in (1, 2):
        expected, steps = traced(plain, seed=seed, num_steps=6, solver="heun")
        found, replayed = traced(captured, seed=seed, num_steps=6, solver="heun")
        torch.testing.assert_close(replayed[0][0], steps[0][0], rtol=0.05, atol=0.2)
        assert (found == expected).float().mean() > 0.75


@needs_cuda
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_captured_on_a_gpu(settings):
    check_captured("auto", **settings)


@needs_cuda
def test_captured_in_bfloat16_on_a_gpu():
    check_captured_in_bfloat16("auto")


@needs_cuda
@pytest.mark.parametrize("mode", ["on", "graphs"])
def test_compiled_on_a_gpu(mode):
    in_new_process(f"check_captured({mode!r}, solver='heun', guidance_scale=3.0)")
    in_new_process(f"check_captured_in_bfloat16({mode!r})")
