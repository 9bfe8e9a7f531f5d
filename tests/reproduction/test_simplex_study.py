"""The study of simplex diffusion (App. B.3): its corruption is exact, its models are comparable."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import special, stats
from tiny import cdcd_main

from cdcd.diffusion.estimator import Inputs, NetworkEstimator, predict_logits
from cdcd.diffusion.solvers import Slope, euler_step
from cdcd.reproduction import simplex
from cdcd.reproduction.simplex import CPU, Study, finding, gaps, parts_of, perform_study
from cdcd.reproduction.simplex_models import (
    Model,
    OnEmbeddings,
    config_of,
    language,
    train_and_judge,
)
from cdcd.reproduction.simplex_noise import DIM, NUM_POSITIONS, corrupt_embeddings, corrupt_shares
from cdcd.seeding import generator_for

QUIET = Console(quiet=True)
MICRO = Study(noise_vocabularies=(4,), vocabularies=(4, 6), seeds=1, steps=2)


def uniform_tokens(vocab_size):
    return torch.randint(vocab_size, (NUM_POSITIONS,), generator=generator_for("tokens"))


def bound(share):
    return 5 * (share * (1 - share) / NUM_POSITIONS) ** 0.5


# Corruption


@pytest.mark.parametrize(("vocab_size", "a"), [(30, 1 / 30), (30, 1.0), (400, 1 / 400)])
def test_the_share_of_wrong_tokens_is_exact_on_the_simplex(vocab_size, a):
    """A token is right if its component, Gamma(a + Poisson(s)), is larger than all others, Gamma(a)."""

    def exact(t):
        rng = np.random.default_rng(0)
        own = rng.gamma(a + rng.poisson(1 / np.expm1(t), 40_000))
        return 1 - float((special.gammainc(a, own) ** (vocab_size - 1)).mean())

    tokens, t = uniform_tokens(vocab_size), 0.3
    found = corrupt_shares(tokens, vocab_size, a, t, generator_for(1))
    assert abs(found["wrong"] - exact(t)) < bound(exact(t)) + 0.005
    assert abs(found["wrong"] - exact(1.5 * t)) > bound(exact(t)) + 0.005


@pytest.mark.parametrize("vocab_size", [30, 400])
def test_the_share_of_wrong_tokens_is_exact_on_embeddings(vocab_size):
    """The angle to any other embedding of the sphere has a Beta distribution."""

    def exact(t):
        rng, half = np.random.default_rng(0), (DIM - 1) / 2
        along = DIM**0.5 + t * rng.standard_normal(40_000)
        across = t**2 * rng.chisquare(DIM - 1, 40_000)
        cosine = along / np.sqrt(along**2 + across)
        others = stats.beta(half, half).cdf((1 + cosine) / 2) ** (vocab_size - 1)
        return 1 - float(others.mean())

    tokens, t = uniform_tokens(vocab_size), (DIM / (2 * math.log(vocab_size))) ** 0.5
    found = corrupt_embeddings(tokens, vocab_size, t, generator_for(1))
    # All positions share one table.
    assert abs(found["wrong"] - exact(t)) < bound(exact(t)) + 0.02
    assert abs(found["wrong"] - exact(1.3 * t)) > bound(exact(t)) + 0.02
    assert found["distance"] == pytest.approx(t / 2**0.5, rel=0.02)


def test_uncertainty_is_that_of_the_mixture_of_two_tokens():
    """With V = 2 and a = 1 the posterior's entropy is an integral over both components."""
    t, s = 0.5, 1 / math.expm1(0.5)
    rng = np.random.default_rng(0)
    own, other = rng.gamma(1.0 + rng.poisson(s, 100_000)), rng.gamma(1.0, size=100_000)
    # I_0(2 sqrt z) = ₀F₁(1, z).
    evidence = special.i0(2 * np.sqrt(s * np.stack([own, other])))
    exact = stats.entropy(evidence).mean() / math.log(2)
    found = corrupt_shares(uniform_tokens(2), 2, 1.0, t, generator_for(2))
    assert abs(found["uncertainty"] - exact) < 0.1
    assert 0.2 < exact < 0.8


# Models


def test_the_gaussian_model_is_the_papers():
    """Its logits and its steps are those of the library, with nothing given."""
    torch.manual_seed(0)
    model = Model("Gaussian", config_of("Gaussian", 10, 1, 0), CPU)
    torch.nn.init.normal_(model.network.head.weight)
    diffusion = model.diffusion
    assert isinstance(diffusion, OnEmbeddings)
    state, t = torch.randn(3, 8, 32), torch.tensor([0.7, 2.0, 9.0])
    is_noisy = torch.ones(3, 8, dtype=torch.bool)
    logits = model.logits(diffusion, state, t)
    inputs = Inputs(state, t, torch.zeros_like(state), is_noisy=is_noisy)
    expected = predict_logits(model.network, inputs, x0_prev=None, positions=None)
    torch.testing.assert_close(logits.flatten(0, 1), expected)
    estimator = NetworkEstimator(
        network=model.network,
        table=diffusion.table,
        tokens=torch.zeros(3, 8, dtype=torch.long),
        is_noisy=is_noisy,
        self_conditioning=False,
    )
    high, low = torch.tensor(5.0), torch.tensor(3.0)
    step = euler_step(Slope(estimator), state, high, low, None)
    logits = model.logits(diffusion, state, high.expand(3))
    ours = diffusion.step(state, high.expand(3), low.expand(3), logits)
    torch.testing.assert_close(ours, step.x)


@pytest.mark.parametrize("name", ["Gaussian", "simplex"])
def test_a_model_learns_the_language(name):
    """Samples are likelier than those of a network that predicts nothing, and as diverse as the language."""
    result = train_and_judge(name, 4, 150, 0, CPU)
    untrained = train_and_judge(name, 4, 0, 0, CPU)
    assert result["nll"] < 0.3 * result["real_nll"] + 0.7 * untrained["nll"]
    assert abs(result["entropy"] - result["real_entropy"]) < 0.15


def test_synonyms_leave_the_words_as_they_are():
    """The NLL of tokens is that of their words and of a uniform choice of 1 in 8."""
    words, tokens = language(16), language(128)
    sample = tokens.sample(50, 6, generator=generator_for(1))
    expected = words.log_prob(sample % 16) - 6 * math.log(8)
    torch.testing.assert_close(tokens.log_prob(sample), expected)


# The study


def model(process, vocab_size, seed, nll):
    return {"process": process, "vocabulary": vocab_size, "seed": seed, "nll": nll, "real_nll": 0.5}


def models_with(low, high):
    """Gaussian models at NLL 1, those of the simplex further behind by these."""
    return [
        each
        for vocab_size, excess in ((16, low), (1024, high))
        for seed, gap in enumerate(excess)
        for each in (
            model("Gaussian", vocab_size, seed, 1.0),
            model("simplex", vocab_size, seed, 1 + gap),
        )
    ]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        ((0.1, 0.2, 0.1), (1.1, 1.2, 1.0), "reproduced"),
        ((0.1, 0.2, 0.1), (0.1, 0.1, 0.2), "undecided"),
        ((1.1, 1.2, 1.0), (0.1, 0.2, 0.1), "not reproduced"),
        ((-0.5, -0.6, -0.5), (-0.1, -0.2, -0.1), "not reproduced"),
        ((0.1, 0.2), (1.1, 1.2), "undecided"),
    ],
)
def test_the_finding_needs_both_a_gap_and_its_growth(low, high, verdict):
    models = models_with(low, high)
    assert finding(models, {"16": 2.0, "1024": 2.0})["verdict"] == verdict
    # The Gaussian models are 0.5 from the language: further than half of the way to shuffled tokens.
    assert finding(models, {"16": 2.0, "1024": 0.9})["verdict"] == "undecided"
    assert gaps(models) == {16: pytest.approx([*low]), 1024: pytest.approx([*high])}


def test_a_study_is_filed_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    written = perform_study(MICRO, tmp_path, QUIET)
    assert [path.name for path in written] == [
        "simplex.json",
        "simplex_noise.png",
        "simplex_models.png",
    ]
    parts = parts_of(MICRO)
    assert len(parts) == 5
    before = {part.name: part.result(tmp_path) for part in parts}
    for part in parts[2:4]:
        part.path(tmp_path).unlink()
    # A thread here, since processes import torch anew, and seeds of a process are for one thread.
    threads = []
    monkeypatch.setattr(
        simplex,
        "ProcessPoolExecutor",
        lambda count, mp_context: threads.append(count) or ThreadPoolExecutor(1),
    )
    perform_study(MICRO, tmp_path, QUIET, workers=2)
    assert threads == [2]
    for part in parts:
        after = part.result(tmp_path)
        assert (after == before[part.name]) == (part not in parts[2:4])
        own = {"seconds", "environment"}
        assert {n: v for n, v in after.items() if n not in own} == {
            n: v for n, v in before[part.name].items() if n not in own
        }
    with pytest.raises(ValueError, match="was measured with steps 2, not 3; choose another --out"):
        perform_study(replace(MICRO, steps=3), tmp_path, QUIET)


def test_the_command_lists_the_study(tmp_path, capfd):
    out = ("--out", tmp_path)
    assert cdcd_main("reproduce", "simplex", "--list", "--seeds", 2, *out) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 * 2 * 2
    assert lines[1] == "to do    simplex Gaussian.V=16.0"
    assert cdcd_main("reproduce", "simplex", "--steps", 0, *out) == 2
    assert "--steps: it is 0, it must be at least 1" in capfd.readouterr().err
