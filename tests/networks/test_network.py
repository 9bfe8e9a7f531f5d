"""The network: parity with naive attention, and what it must and must not depend on."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.estimator import NetworkEstimator
from cdcd.diffusion.logits import noisy_positions, take
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.attention import Attention, RotaryEmbedding
from cdcd.networks.diffusion_text import DiffusionTextNetwork, NetworkConfig
from cdcd.networks.layers import ConditionalLayerNorm, Head, TimeEmbedding
from cdcd.seeding import generator_for

BATCH, LENGTH, DIM, VOCAB = 3, 6, 8, 11
SMALL = NetworkConfig(num_blocks=2, width=16, num_heads=2, time_units=8)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator_for(seed, *shape))


def network(config: NetworkConfig = SMALL) -> DiffusionTextNetwork:
    """A network with nothing left at zero."""
    torch.manual_seed(0)
    process = ProcessConfig(t_min=0.5, t_max=50.0)
    model = DiffusionTextNetwork(
        config, EmbeddingConfig(dim=DIM), process, vocab_size=VOCAB, length=LENGTH
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * normal(*parameter.shape))
    return model


def inputs(seed: int = 0) -> dict[str, Tensor]:
    is_noisy = normal(BATCH, LENGTH, seed=seed) > -0.5
    return {
        "x": normal(BATCH, LENGTH, DIM, seed=seed + 1),
        "t": torch.tensor([0.7, 3.0, 20.0]),
        "c": normal(BATCH, LENGTH, DIM, seed=seed + 2),
        "x0_prev": normal(BATCH, LENGTH, DIM, seed=seed + 3),
        "is_noisy": is_noisy,
    }


@pytest.mark.parametrize("spare", [0, 3])
def test_selected_logits_and_their_gradients_are_those_of_all(spare):
    given = inputs()
    positions = noisy_positions(given["is_noisy"], int(given["is_noisy"].sum()) + spare)
    weights = normal(len(positions), VOCAB)
    gradients = []
    for chosen in (positions, None):
        model = network()
        logits = model(**given, positions=chosen)
        logits = logits if chosen is not None else take(logits, positions)
        (weights * logits).sum().backward()
        gradients.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.bfloat16, 2**-6)])
def test_the_head_is_a_linear_layer(dtype, error):
    head = Head(16, VOCAB).to(torch.float64 if dtype == torch.float64 else torch.float32)
    gradients = []
    for layer in (head.forward, lambda h: F.linear(h, head.weight.double(), head.bias.double())):
        kind = dtype if layer == head.forward else torch.float64
        h = normal(BATCH, LENGTH, 16).to(kind).requires_grad_()
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            logits = layer(h)
        assert logits.dtype == kind
        logits.backward(normal(BATCH, LENGTH, VOCAB).to(kind))
        gradients.append([logits, h.grad, head.weight.grad, head.bias.grad])
    for a, b in zip(*gradients, strict=True):
        assert (a.double() - b.double()).norm() / b.double().norm() < max(error, 1e-7)


def test_attention_equals_a_naive_one():
    attention, rotary = Attention(16, 2), RotaryEmbedding(8, LENGTH)
    h = normal(BATCH, LENGTH, 16)
    q, k, v = attention.qkv(h).view(BATCH, LENGTH, 3, 2, 8).unbind(2)

    def rotate(z: Tensor, position: int) -> Tensor:
        turned = z.clone()
        for i in range(4):
            angle = position * 10_000 ** -(2 * i / 8)
            a, b = z[..., i], z[..., i + 4]
            turned[..., i] = a * math.cos(angle) - b * math.sin(angle)
            turned[..., i + 4] = a * math.sin(angle) + b * math.cos(angle)
        return turned

    mixed = torch.zeros(BATCH, LENGTH, 2, 8)
    for i in range(LENGTH):
        scores = torch.stack(
            [(rotate(q[:, i], i) * rotate(k[:, j], j)).sum(-1) for j in range(LENGTH)]
        )
        weights = (scores / math.sqrt(8)).softmax(0)
        mixed[:, i] = sum(weights[j][..., None] * v[:, j] for j in range(LENGTH))  # pyright: ignore[reportArgumentType]
    expected = attention.out(mixed.flatten(2))
    torch.testing.assert_close(attention(h, rotary), expected, rtol=1e-4, atol=1e-5)


def test_every_position_sees_every_other():
    model, given = network(), inputs()
    x = given["x"].clone().requires_grad_()
    logits = model(**(given | {"x": x}))
    for position in (0, LENGTH - 1):
        (gradient,) = torch.autograd.grad(logits[0, position].square().sum(), x, retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all()
        assert (gradient[1:] == 0).all()


def test_conditional_layer_norm_starts_plain_then_shifts_and_scales():
    norm, h, time = ConditionalLayerNorm(16, 8), normal(BATCH, LENGTH, 16), normal(BATCH, 8)
    torch.testing.assert_close(norm(h, time), F.layer_norm(h, (16,)))
    with torch.no_grad():
        norm.modulation.weight.copy_(normal(32, 8))
    shift, scale = (time @ norm.modulation.weight.T).chunk(2, dim=-1)
    expected = F.layer_norm(h, (16,)) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(norm(h, time), expected)


@pytest.mark.parametrize("name", ["x", "c", "x0_prev", "is_noisy", "t"])
def test_every_input_matters(name):
    model, given = network(), inputs()
    changed = {
        "is_noisy": ~given["is_noisy"],
        "t": given["t"] * 2,
    }.get(name, given[name] + (1 if name != "is_noisy" else 0))
    assert (model(**given) - model(**(given | {name: changed}))).abs().max() > 1e-4


def test_without_time_input_the_noise_level_does_not_matter():
    model, given = network(replace(SMALL, time_input=False)), inputs()
    torch.testing.assert_close(model(**given), model(**(given | {"t": given["t"] * 3})))


def test_a_new_network_ignores_its_predictions_and_answers_uniformly():
    process = ProcessConfig()
    model = DiffusionTextNetwork(
        SMALL, EmbeddingConfig(dim=DIM), process, vocab_size=VOCAB, length=LENGTH
    )
    assert (model(**inputs()) == 0).all()
    torch.nn.init.normal_(model.head.weight)
    given = inputs()
    other = given | {"x0_prev": given["x0_prev"] + 1}
    torch.testing.assert_close(model(**given), model(**other))


def test_time_features_separate_near_levels_and_do_not_wrap():
    """Neighbouring levels are alike, distant ones are not, over the whole range of t."""
    embed = TimeEmbedding(256, 1.0, 300.0)
    captured = []
    embed.mlp.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    embed(torch.tensor([1.0, 1.02, 20.0, 20.4, 299.0, 293.0]))
    features = F.normalize(captured[0], dim=-1)
    alike = features @ features.T
    assert min(float(alike[0, 1]), float(alike[2, 3]), float(alike[4, 5])) > 0.97
    assert max(float(alike[0, 2]), float(alike[0, 4]), float(alike[2, 4])) < 0.6


def estimator(**settings) -> tuple[NetworkEstimator, Tensor, Tensor]:
    model = network().double()
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator_for(1))
    given = inputs()
    made = NetworkEstimator(
        network=model,
        table=model.embedding.table().detach(),
        tokens=tokens,
        is_noisy=given["is_noisy"],
        **settings,
    )
    return made, given["x"].double() * 5, given["t"].double()


def test_given_positions_keep_their_embedding_and_hide_x():
    made, x, t = estimator()
    with torch.no_grad():
        found = made(x, t, None)
        elsewhere = made(torch.where(made.is_noisy[..., None], x, 77.0), t, None)
    torch.testing.assert_close(found.logits, elsewhere.logits)
    given = ~made.is_noisy
    torch.testing.assert_close(found.x0_hat[given], made.table[made.tokens[given]])


def test_tokens_at_noisy_positions_do_not_leak():
    made, x, t = estimator()
    others = torch.where(made.is_noisy, (made.tokens + 1) % VOCAB, made.tokens)
    with torch.no_grad():
        torch.testing.assert_close(
            made(x, t, None).logits, replace(made, tokens=others).__call__(x, t, None).logits
        )


def test_dropped_conditioning_hides_the_given_tokens_but_not_the_mask():
    made, x, t = estimator()
    made = replace(made, is_dropped=torch.ones(len(x), dtype=torch.bool))
    others = replace(made, tokens=(made.tokens + 1) % VOCAB)
    flipped = replace(made, is_noisy=torch.ones_like(made.is_noisy))
    with torch.no_grad():
        hidden = made(x, t, None).logits
        torch.testing.assert_close(hidden, others(x, t, None).logits)
        assert (hidden - flipped(x, t, None).logits).abs().max() > 1e-4
        kept = replace(made, is_dropped=None)
        assert (hidden - kept(x, t, None).logits).abs().max() > 1e-4


def test_state_is_the_plain_prediction_never_tempered_or_truncated():
    plain, x, t = estimator()
    shaped = replace(plain, softmax_temperature=0.5, nucleus=0.8)
    with torch.no_grad():
        a, b = plain(x, t, None), shaped(x, t, None)
        torch.testing.assert_close(a.state, b.state)
        torch.testing.assert_close(a.state, a.logits.softmax(-1) @ plain.table)
        assert (a.x0_hat - b.x0_hat).abs().max() > 1e-3
        # The state is used, and can be switched off.
        assert (plain(x, t, a.state).logits - a.logits).abs().max() > 1e-4
        assert replace(plain, self_conditioning=False)(x, t, None).state is None


@pytest.mark.parametrize("shape", [{}, {"softmax_temperature": 0.5, "nucleus": 0.8}])
def test_noisy_positions_alone_are_predicted_as_with_the_others(shape):
    made, x, t = estimator()
    made = replace(made, **shape)
    is_noisy = made.is_noisy
    assert 0 < is_noisy.sum() < is_noisy.numel()
    with torch.no_grad():
        whole = made(x, t, None)
        alone = replace(made, only_noisy=True)(x, t, None)
    torch.testing.assert_close(alone.logits[is_noisy], whole.logits[is_noisy])
    assert not alone.logits[~is_noisy].any()
    torch.testing.assert_close(alone.x0_hat, whole.x0_hat)
    torch.testing.assert_close(alone.state[is_noisy], whole.state[is_noisy])
