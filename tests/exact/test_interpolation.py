"""Score interpolation (§3.1): the interpolated score is the gradient of the log-density."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import independent_logits, noise, oracle, table

from cdcd.diffusion import interpolation
from cdcd.diffusion.embedding import Projection, nearest_token, normalise_rows
from cdcd.diffusion.interpolation import (
    expected_embedding,
    interpolate,
    probabilities,
    score,
    truncate_to_nucleus,
)
from cdcd.diffusion.process import add_noise, scale_input


@pytest.mark.parametrize("given_tokens", [{}, {0: 1}, {3: 2, 7: 0}])
@pytest.mark.parametrize("level", [0.5, 2.0, 10.0])
def test_interpolated_score_is_the_gradient_of_the_log_density(level, given_tokens):
    exact = oracle(4, given=given_tokens)
    t = torch.full((4,), level).double()
    x = (noise(4) * level).requires_grad_()
    (gradient,) = torch.autograd.grad(exact.log_density(x, t).sum(), x)
    logits = exact(x.detach(), t).logits
    found = score(interpolate(probabilities(logits), table()), x.detach(), t)
    found = found * exact.is_noisy[..., None]
    torch.testing.assert_close(found, gradient, rtol=1e-8, atol=1e-10)


def test_score_is_that_of_a_single_gaussian_for_a_certain_token():
    x0, x, t = noise(2, 3, 4), noise(2, 3, 4, seed=1), torch.tensor([0.5, 3.0]).double()
    x.requires_grad_()
    normal = torch.distributions.Normal(x0, t[:, None, None])
    (gradient,) = torch.autograd.grad(normal.log_prob(x).sum(), x)
    torch.testing.assert_close(score(x0, x, t), gradient)


def test_softmax_temperature_divides_the_logits():
    logits = noise(2, 3, 7)
    expected = (logits * 2).softmax(-1)
    torch.testing.assert_close(probabilities(logits, softmax_temperature=0.5), expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.floats(0.05, 0.999))
def test_nucleus_is_the_smallest_set_that_reaches_the_mass(seed, nucleus):
    probs = noise(1, 1, 9, seed=seed).mul(2).softmax(-1)[0, 0]
    kept = truncate_to_nucleus(probs, nucleus)
    inside = kept > 0
    assert float(kept.sum()) == pytest.approx(1.0)
    assert float(probs[inside].sum()) >= nucleus - 1e-12
    assert float(probs[inside].sum() - probs[inside].min()) < nucleus
    if not inside.all():
        assert float(probs[inside].min()) >= float(probs[~inside].max())
    torch.testing.assert_close(kept[inside], probs[inside] / probs[inside].sum())


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_expected_embedding_of_bfloat16_logits(monkeypatch, spread, rounded):
    monkeypatch.setattr("cdcd.diffusion.logits.PART", 7)
    if rounded:  # as on a GPU
        monkeypatch.setattr(interpolation, "product_dtype", lambda _: torch.float16)
    generator = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(4, 5, 3000, generator=generator)).bfloat16()
    # Embeddings that have much in common: their mean is large, and must not overflow.
    embeddings = normalise_rows(torch.randn(3000, 64, generator=generator) + 5.0)
    exact = probabilities(logits.double()) @ embeddings.double()
    found = expected_embedding(logits, embeddings)
    assert found.dtype == torch.float32
    # Three roundings to 11 bits, of numbers that are about 1; in float32 none that matters.
    assert (found - exact).norm() / exact.norm() < (2**-11 if rounded else 2**-20)
    plain = expected_embedding(logits.float(), embeddings)
    assert torch.equal(plain, interpolate(probabilities(logits.float()), embeddings))


@pytest.mark.parametrize("rounded", [True, False])
def test_expected_embedding_shapes_bfloat16_logits_in_float32(monkeypatch, rounded):
    monkeypatch.setattr("cdcd.diffusion.logits.PART", 7)
    if rounded:  # as on a GPU
        monkeypatch.setattr(interpolation, "product_dtype", lambda _: torch.float16)
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(4, 5, 300, generator=generator)).bfloat16()
    embeddings = normalise_rows(torch.randn(300, 64, generator=generator))
    shape = {"softmax_temperature": 0.7, "nucleus": 0.8}
    exact = interpolate(probabilities(logits.float(), **shape), embeddings)
    found = expected_embedding(logits, embeddings, **shape)
    assert (found - exact).norm() / exact.norm() < 2**-10
    # Power: a temperature applied in bfloat16 would be noticed.
    coarse = interpolate(probabilities((logits / 0.7).float(), nucleus=0.8), embeddings)
    assert (coarse - exact).norm() / exact.norm() > 2**-9
    plain = expected_embedding(logits.float(), embeddings, **shape)
    assert torch.equal(plain, exact)


def test_rows_have_length_sqrt_d_and_inputs_unit_variance():
    rows = normalise_rows(noise(1, 400, 64)[0])
    torch.testing.assert_close(rows.norm(dim=-1), torch.full((400,), 8.0).double())
    t = torch.logspace(-1, 2, 20).double()
    x = add_noise(rows.expand(20, -1, -1), t, noise(20, 400, 64, seed=1))
    variance = scale_input(x, t).var(dim=(1, 2))
    torch.testing.assert_close(variance, torch.ones(20).double(), rtol=0.05, atol=0)


def test_transition_lies_near_the_predicted_noise_level():
    """Independent equiprobable tokens are recognised below t = sqrt(d / (2 ln V)), not above (§4)."""
    dim, vocab, count = 64, 32, 400
    embeddings = table(vocab, dim)
    tokens = torch.arange(vocab).repeat(count)[None, :count]
    level = math.sqrt(dim / (2 * math.log(vocab)))
    accuracies = []
    for factor in (0.4, 2.5):
        t = torch.tensor([level * factor]).double()
        x = add_noise(embeddings[tokens], t, noise(1, count, dim))
        logits = independent_logits(x, t, embeddings, torch.full((vocab,), 1 / vocab).double())
        accuracies.append(float((logits.argmax(-1) == tokens).double().mean()))
    assert accuracies[0] > 0.95
    assert accuracies[1] < 0.4


def test_nearest_token_and_projections():
    embeddings = table(20, 8)
    x = noise(3, 5, 8) * 3
    distances = (x[:, :, None] - embeddings).norm(dim=-1)
    assert torch.equal(nearest_token(x, embeddings), distances.argmin(-1))
    # Rows of unequal length: the nearest is not the most aligned.
    unequal = embeddings * torch.linspace(0.1, 4, 20)[:, None]
    distances = (x[:, :, None] - unequal).norm(dim=-1)
    assert torch.equal(nearest_token(x, unequal), distances.argmin(-1))
    clamped = Projection(clamp=True)(x, embeddings)
    torch.testing.assert_close(clamped, embeddings[nearest_token(x, embeddings)])
    spherical = Projection(renormalise=True)(x, embeddings)
    torch.testing.assert_close(spherical.norm(dim=-1), torch.full((3, 5), math.sqrt(8)).double())
    torch.testing.assert_close(Projection()(x, embeddings), x)
