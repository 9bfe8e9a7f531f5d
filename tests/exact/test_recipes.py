"""Options of training against closed forms: output prior, gates, normalised queries, weight decay."""

import math

import pytest
import torch
from languages import independent_logits, table
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.interpolation import token_likelihoods
from cdcd.diffusion.process import ProcessConfig, scale_input
from cdcd.networks.attention import Attention, RotaryEmbedding
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork, NetworkConfig
from cdcd.networks.layers import Block
from cdcd.networks.output_prior import OutputPrior
from cdcd.seeding import generator_for
from cdcd.training.optimiser import decayed_weights, make_optimiser

VOCAB, DIM, LENGTH = 6, 16, 5
SIZE = {"num_blocks": 2, "width": 16, "num_heads": 2, "time_units": 8}
PROCESS = ProcessConfig(t_min=0.5, t_max=50.0)
T = torch.tensor([0.5, 2.0, 10.0])
LEAST = math.sqrt(DIM / 50)
"""Noise level at which |e|²/t² is 50."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator_for(seed, *shape))


def network(**options: object) -> DiffusionTextNetwork:
    torch.manual_seed(0)
    config = NetworkConfig(**SIZE, **options)  # pyright: ignore[reportArgumentType]
    return DiffusionTextNetwork(
        config, EmbeddingConfig(dim=DIM), PROCESS, vocab_size=VOCAB, length=LENGTH
    )


def logits_of(model: DiffusionTextNetwork, x: Tensor, positions: Tensor | None = None) -> Tensor:
    zeros = torch.zeros_like(x)
    is_noisy = torch.ones(x.shape[:2], dtype=torch.bool)
    given = {"c": zeros, "x0_prev": zeros, "is_noisy": is_noisy}
    return model(scale_input(x, T), T, **given, positions=positions)


def test_likelihoods_are_those_of_the_gaussian_and_bounded():
    embeddings, x = table().float(), 3 * normal(3, LENGTH, DIM)
    exact = -(x[:, :, None] - embeddings).square().sum(-1) / (2 * T[:, None, None] ** 2)
    found = token_likelihoods(x, T, embeddings, most=1e6)
    torch.testing.assert_close(found.log_softmax(-1), exact.log_softmax(-1), atol=1e-3, rtol=1e-4)
    bounded = token_likelihoods(x, T, embeddings, most=50.0)
    level = T.clamp(min=LEAST)
    torch.testing.assert_close(bounded, independent_logits(x, level, embeddings, torch.ones(6)))
    assert not torch.allclose(bounded[0], found[0])


def test_with_the_output_prior_a_new_network_knows_independent_tokens():
    """Its own logits are zero: the posterior of tokens that are all as frequent is left."""
    model, x = network(output_prior=True), 3 * normal(3, LENGTH, DIM)
    assert model.prior is not None
    assert not logits_of(model, x).any()
    model.prior.warm_up(1, 4)
    half = logits_of(model, x)
    model.prior.warm_up(9, 4)
    exact = independent_logits(x, T.clamp(min=LEAST), model.embedding.table(), torch.ones(VOCAB))
    torch.testing.assert_close(logits_of(model, x), exact, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(half, exact / 2, atol=1e-4, rtol=1e-5)
    positions = torch.tensor([1, 7, 14])
    torch.testing.assert_close(
        logits_of(model, x, positions), exact.flatten(0, 1)[positions], atol=1e-4, rtol=1e-5
    )


def test_the_weight_of_the_output_prior_never_falls():
    prior, weights = OutputPrior(50.0), []
    for step in (0, 1, 3, 8, 0):
        prior.warm_up(step, 4)
        weights.append(float(prior.weight))
    assert weights == [0.25, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("time_units", [8, None])
def test_blocks_with_gates_change_nothing_at_first_and_learn(time_units):
    torch.manual_seed(0)
    h, time = normal(3, LENGTH, 16), None if time_units is None else normal(3, 8)
    rotary = RotaryEmbedding(8, LENGTH)
    gated = Block(16, 2, 4, time_units, zero_gates=True)
    assert torch.equal(gated(h, time, rotary), h)
    assert not torch.allclose(Block(16, 2, 4, time_units)(h, time, rotary), h)
    gated(h, time, rotary).square().sum().backward()
    for name, parameter in gated.named_parameters():
        if "gate" in name:
            assert parameter.grad is not None
            assert parameter.grad.abs().sum() > 0, name


def test_normalised_queries_and_keys_equal_a_naive_reference():
    torch.manual_seed(0)
    attention, rotary = Attention(16, 2, query_key_norm=True), RotaryEmbedding(8, LENGTH)
    assert attention.query_gain is not None
    assert attention.key_gain is not None
    with torch.no_grad():
        attention.query_gain.copy_(normal(8))
        attention.key_gain.copy_(normal(8, seed=1))
    h = normal(3, LENGTH, 16)
    q, k, v = attention.qkv(h).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    q = F.normalize(q, dim=-1) * 8**0.5 * attention.query_gain
    k = F.normalize(k, dim=-1) * 8**0.5 * attention.key_gain
    weights = (rotary(q) @ rotary(k).mT / 8**0.5).softmax(-1)
    naive = attention.out((weights @ v).transpose(1, 2).flatten(2))
    found = attention(h, rotary)
    torch.testing.assert_close(found, naive, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        attention.qkv.weight[:32] *= 7
        attention.qkv.bias[:32] *= 7
    torch.testing.assert_close(attention(h, rotary), found, atol=1e-4, rtol=1e-4)


def test_learnt_positions_tell_equal_inputs_apart_and_change_nothing_at_first():
    x = normal(1, 1, DIM).expand(3, LENGTH, DIM)
    model, plain = network(learnt_positions=True), network()
    assert model.positions is not None
    for each in (model, plain):
        nn.init.normal_(each.head.weight, generator=generator_for(1))
    logits = logits_of(plain, x)
    torch.testing.assert_close(logits_of(model, x), logits)
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))
    with torch.no_grad():
        model.positions.copy_(normal(LENGTH, 16))
    apart = logits_of(model, x)
    assert (apart[:, 1:] - apart[:, :-1]).abs().amax(-1).min() > 1e-2
    # A shorter sequence has the first positions.
    shorter = logits_of(model, x[:, :3])
    model.positions.detach()[3:] = 0.0
    torch.testing.assert_close(logits_of(model, x[:, :3]), shorter)


def test_weight_decay_is_that_of_adamw():
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3))

    ours, theirs = layers(), layers()
    optimiser = make_optimiser(ours, (0.9, 0.99), weight_decay=0.3)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.99))
    for step in range(4):
        rate = 0.1 / (step + 1)
        optimiser.set_rate(rate)
        for group in adamw.param_groups:
            group["lr"] = rate
        for model, each in ((ours, optimiser), (theirs, adamw)):
            model.zero_grad()
            model(normal(7, 5, seed=step)).square().sum().backward()
            each.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_what_muon_trains_decays_too():
    """Of zero gradients both make no update: what is left is the decay."""
    module = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(6, 6)]), "head": nn.Linear(6, 3)})
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimiser = make_optimiser(module, (0.9, 0.99), momentum=0.95, weight_decay=0.5)
    optimiser.set_rate(0.1)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in module.named_parameters():
        factor = 0.95 if name.endswith("weight") else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_embeddings_norms_gates_and_biases_do_not_decay():
    model = network(zero_gates=True, query_key_norm=True)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {names[parameter] for parameter in decayed_weights(model)}
    blocks = ("attention.qkv", "attention.out", "mlp_in", "mlp_out")
    expected = {f"blocks.{i}.{name}.weight" for i in range(2) for name in blocks}
    assert decayed == expected | {
        *("stack.weight", "head.weight", "time.mlp.0.weight", "time.mlp.2.weight")
    }
    tied = AutoregressiveTextNetwork(
        NetworkConfig(**SIZE, tied_head=True), vocab_size=VOCAB, length=LENGTH
    )
    assert all(parameter is not tied.embedding.weight for parameter in decayed_weights(tied))
