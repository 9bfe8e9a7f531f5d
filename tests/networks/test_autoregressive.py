"""The autoregressive baseline: parity with a naive one, its cache, its decoding, and what it learns."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.config import DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.interpolation import truncate_to_nucleus
from cdcd.diffusion.logits import cross_entropies
from cdcd.inference.decoding import decode, draw, invert, keep_top_k
from cdcd.languages import markov_chain
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork, is_predicted
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.seeding import generator_for

BATCH, LENGTH, VOCAB = 3, 7, 11
SMALL = NetworkConfig(num_blocks=2, width=16, num_heads=2)
BOTH = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


def network(*, tied: bool = False) -> AutoregressiveTextNetwork:
    """A network in double precision with nothing left at zero, and logits that are far from equal."""
    torch.manual_seed(0)
    size = replace(SMALL, tied_head=tied)
    model = AutoregressiveTextNetwork(size, vocab_size=VOCAB, length=LENGTH).double()
    generator = generator_for(0, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return model.requires_grad_(False)


def random_tokens(seed: int = 0, batch: int = BATCH) -> Tensor:
    return torch.randint(VOCAB, (batch, LENGTH), generator=generator_for(seed, "tokens"))


def uniform(batch: int, seed: int = 0) -> Tensor:
    return torch.rand(batch, LENGTH, generator=generator_for(seed, "uniform"))


def prefixes(*lengths: int) -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(lengths)[:, None]


# The network


def naive_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias


def naive_attention(xs: list[Tensor], attention: nn.Module, num_heads: int) -> list[Tensor]:
    """Attention of each position to itself and those before it, by loops."""
    width = len(xs[0])
    size = width // num_heads
    q, k, v = (
        [(attention.qkv.weight @ x + attention.qkv.bias)[part * width :][:width] for x in xs]
        for part in range(3)
    )

    def turned(vector: Tensor, head: int, position: int) -> Tensor:
        parts, half = vector[head * size :][:size], size // 2
        pairs = torch.complex(parts[:half], parts[half:])
        angles = [position * 10_000 ** -(2 * i / size) for i in range(half)]
        rotated = pairs * torch.polar(torch.ones(half).double(), torch.tensor(angles).double())
        return torch.cat([rotated.real, rotated.imag])

    results = []
    for i in range(len(xs)):
        heads = []
        for head in range(num_heads):
            scores = [
                float(turned(q[i], head, i) @ turned(k[j], head, j)) / math.sqrt(size)
                for j in range(i + 1)
            ]
            total = sum(math.exp(each) for each in scores)
            heads.append(
                sum(math.exp(s) / total * v[j][head * size :][:size] for j, s in enumerate(scores))
            )
        results.append(attention.out.weight @ torch.cat(heads) + attention.out.bias)
    return results


def naive_nll(model: AutoregressiveTextNetwork, row: list[int]) -> list[float]:
    """−ln p of each token of one sequence, from the weights alone."""
    table = model.embedding.weight
    xs = [table[i] for i in [VOCAB, *row[:-1]]]
    for block in model.blocks:
        normed = [naive_norm(x, block.attention_norm) for x in xs]
        mixed = naive_attention(normed, block.attention, SMALL.num_heads)
        xs = [x + m for x, m in zip(xs, mixed, strict=True)]
        for i, x in enumerate(xs):
            inner = block.mlp_in.weight @ naive_norm(x, block.mlp_norm) + block.mlp_in.bias
            inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
            xs[i] = x + block.mlp_out.weight @ inner + block.mlp_out.bias
    weight, bias = (
        (table[:VOCAB], torch.zeros(VOCAB))
        if model.head is None
        else (model.head.weight, model.head.bias)
    )
    losses = []
    for x, token in zip(xs, row, strict=True):
        logits = (weight @ naive_norm(x, model.norm) + bias).tolist()
        losses.append(math.log(sum(math.exp(each) for each in logits)) - logits[token])
    return losses


@BOTH
def test_loss_equals_a_naive_one(tied):
    model, tokens = network(tied=tied), random_tokens()
    expected = [naive_nll(model, row) for row in tokens.tolist()]
    found = cross_entropies(model(tokens), tokens)
    # The model's rotary angles were rounded to float32.
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-6)


@BOTH
def test_logits_do_not_see_their_token_or_later_ones(tied):
    model, tokens = network(tied=tied), random_tokens()
    logits = model(tokens)
    for j in range(LENGTH):
        changed = tokens.clone()
        changed[:, j] = (changed[:, j] + 1) % VOCAB
        difference = (model(changed) - logits).abs().amax((0, 2))
        assert (difference[: j + 1] == 0).all()
        assert (difference[j + 1 :] > 1e-4).all()


@BOTH
def test_reading_piece_by_piece_equals_reading_at_once(tied):
    model, tokens = network(tied=tied), random_tokens()
    logits, inputs = model(tokens), model.inputs(tokens)
    positions = torch.arange(LENGTH)
    for sizes in ([1] * LENGTH, [4, 1, 2], [LENGTH]):
        caches, start = model.new_caches(BATCH, LENGTH), 0
        for size in sizes:
            part = slice(start, start + size)
            found = model.next_logits(inputs[:, part], positions[part], caches)
            start += size
            torch.testing.assert_close(found, logits[:, start - 1], rtol=0, atol=1e-10)


def test_states_have_read_the_tokens_before_them_and_nothing_after():
    model, tokens = network(), random_tokens()
    states = model.states(tokens)
    assert states.shape == (BATCH, LENGTH + 1, SMALL.width)
    for j in range(LENGTH):
        changed = tokens.clone()
        changed[:, j] = (changed[:, j] + 1) % VOCAB
        difference = (model.states(changed) - states).abs().amax(2)
        assert (difference[:, : j + 1] == 0).all()
        assert (difference[:, j + 1 :] > 1e-4).all()
    torch.testing.assert_close(model.states(tokens[:, :4]), states[:, :5])
    torch.testing.assert_close(model.head(states[:, :-1]), model(tokens))


def test_tying_saves_the_head():
    counts = {
        tied: sum(p.numel() for p in network(tied=tied).parameters()) for tied in (False, True)
    }
    assert counts[False] - counts[True] == VOCAB * SMALL.width + VOCAB
    shared = (VOCAB + 1) * SMALL.width
    block = 12 * SMALL.width**2 + 13 * SMALL.width
    assert counts[True] == shared + SMALL.num_blocks * block + 2 * SMALL.width


@BOTH
@pytest.mark.parametrize(("width", "num_blocks", "vocab"), [(32, 1, 5), (64, 2, 300), (256, 6, 50)])
def test_a_new_model_answers_almost_uniformly(tied, width, num_blocks, vocab):
    torch.manual_seed(0)
    size = NetworkConfig(num_blocks=num_blocks, width=width, num_heads=2, tied_head=tied)
    model = AutoregressiveTextNetwork(size, vocab_size=vocab, length=32)
    model.requires_grad_(False)
    tokens = torch.randint(vocab, (16, 32), generator=generator_for(0))
    loss = float(cross_entropies(model(tokens), tokens).mean())
    assert loss == pytest.approx(math.log(vocab), abs=0.05)
    # Text that repeats its words is no easier and no harder.
    same = tokens[:, :1].expand(-1, 32)
    assert float(cross_entropies(model(same), same).mean()) == pytest.approx(
        math.log(vocab), abs=0.3
    )


def test_padding_is_not_counted_and_the_end_is():
    tokens = torch.tensor([[5, EOS, PAD, PAD], [5, 6, 7, 8]])
    assert is_predicted(tokens).tolist() == [[True, True, False, False], [True] * 4]


def test_loss_of_bfloat16_logits_is_computed_in_float32():
    logits = torch.randn(2, 3, VOCAB, generator=generator_for(0)).bfloat16()
    tokens = torch.ones(2, 3, dtype=torch.long)
    found = cross_entropies(logits, tokens)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, -logits.float().log_softmax(-1)[..., 1])


# Decoding


def distribution(logits: Tensor, config: DecodingConfig) -> Tensor:
    """The probabilities that `config` asks for, by loops."""
    rows = []
    for row in (logits / config.temperature).softmax(-1).tolist():
        order = sorted(range(len(row)), key=lambda token: -row[token])
        order = order[: config.top_k or len(row)]
        total, mass, kept = sum(row[token] for token in order), 0.0, []
        for token in order:
            if mass < config.nucleus:
                kept.append(token)
                mass += row[token] / total
        part = sum(row[token] for token in kept)
        rows.append([row[token] / part if token in kept else 0.0 for token in range(len(row))])
    return torch.tensor(rows, dtype=torch.float64)


SETTINGS = {
    "plain": DecodingConfig(),
    "cold": DecodingConfig(temperature=0.5),
    "top-k": DecodingConfig(top_k=3),
    "nucleus": DecodingConfig(nucleus=0.8),
    "all": DecodingConfig(temperature=1.5, top_k=6, nucleus=0.7),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies_are_the_probabilities(name):
    """A chi-square test at 10⁻⁴ and its power: every other setting fails it."""
    config, count = SETTINGS[name], 20_000
    logits = 1.5 * torch.randn(1, VOCAB, generator=generator_for(3), dtype=torch.float64)
    u = torch.rand(count, generator=generator_for(4))
    drawn = draw(logits.expand(count, -1), u, config)
    observed = drawn.bincount(minlength=VOCAB).double()

    def passes(other: DecodingConfig) -> bool:
        probs = distribution(logits, other)[0]
        inside = probs > 0
        if observed[~inside].any():
            return False
        expected = count * probs[inside]
        statistic = float(((observed[inside] - expected).square() / expected).sum())
        return statistic < chi2.ppf(1 - 1e-4, max(int(inside.sum()) - 1, 1))

    assert passes(config)
    assert not any(passes(other) for key, other in SETTINGS.items() if key != name)
    assert set(drawn.tolist()) == set(distribution(logits, config)[0].nonzero()[:, 0].tolist())


def test_top_k_and_nucleus_keep_what_they_say():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert keep_top_k(logits, 2).tolist() == [[-math.inf, 3.0, -math.inf, 2.0]]
    for k in (0, 4, 9):
        assert keep_top_k(logits, k) is logits
    assert keep_top_k(torch.zeros(1, 4), 2).isfinite().sum() == 2
    # As in diffusion sampling: the smallest set that reaches the mass, and at least one token.
    probs = torch.tensor([[0.5, 0.25, 0.25]])
    for nucleus, size in ((1e-6, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3)):
        assert (truncate_to_nucleus(probs, nucleus) > 0).sum() == size
        levels = torch.linspace(0, 0.999, 200)
        config = DecodingConfig(nucleus=nucleus)
        drawn = draw(probs.log().expand(200, -1), levels, config)
        assert drawn.unique().tolist() == list(range(size))


def test_inversion_never_draws_what_has_no_probability():
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    below_one = 1 - 2**-24
    u = torch.tensor([0.0, 0.29, 0.31, below_one])
    assert invert(probs.expand(4, -1), u).tolist() == [1, 1, 3, 3]
    u = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert invert((probs.double() / 3).expand(2, -1), u).tolist() == [1, 3]


@BOTH
def test_greedy_decoding_takes_the_most_likely_token(tied):
    model, lengths = network(tied=tied), (0, 2, 5)
    tokens, is_given = random_tokens(), prefixes(*lengths)
    found = decode(model, tokens, is_given, uniform(BATCH), DecodingConfig(temperature=0))
    for row, (given, length) in enumerate(zip(tokens, lengths, strict=True)):
        expected = given[:length].tolist()
        while len(expected) < LENGTH:
            padded = torch.tensor([[*expected, 0]])
            expected.append(int(model(padded)[0, -1].argmax()))
        assert found[row].tolist() == expected


def test_each_token_inverts_the_distribution_given_those_before_it():
    model, tokens, u = network(), random_tokens(), uniform(BATCH)
    config, is_given = SETTINGS["all"], prefixes(0, 3, LENGTH)
    found = decode(model, tokens, is_given, u, config)
    assert (found[is_given] == tokens[is_given]).all()
    logits = model(found)
    for row, i in (~is_given).nonzero().tolist():
        cdf = distribution(logits[row, i : i + 1], config)[0].cumsum(0).tolist()
        assert int(found[row, i]) == next(
            j for j, mass in enumerate(cdf) if mass > float(u[row, i])
        )


@pytest.mark.parametrize("lengths", [(0, 0, 0), (2, 2, 2), (1, 4, 6)])
def test_a_row_depends_on_its_own_numbers_alone(lengths):
    """Also where a common beginning is read at once, and whatever stands where nothing is given."""
    model, tokens, is_given, u = network(), random_tokens(), prefixes(*lengths), uniform(BATCH)
    together = decode(model, tokens, is_given, u, DecodingConfig())
    elsewhere = torch.where(is_given, tokens, 1)
    for row in range(BATCH):
        part = slice(row, row + 1)
        alone = decode(model, elsewhere[part], is_given[part], u[part], DecodingConfig())
        assert (alone == together[part]).all()
    other = decode(model, tokens, is_given, uniform(BATCH, seed=1), DecodingConfig())
    assert ((other != together).any(1)).all()


def test_suppressed_tokens_are_never_drawn_but_can_be_given():
    model, batch = network(), 200
    tokens = torch.full((batch, LENGTH), EOS)
    is_given, u = prefixes(*[2] * batch), uniform(batch)
    for config in (*SETTINGS.values(), DecodingConfig(temperature=0)):
        found = decode(model, tokens, is_given, u, config, suppress=[EOS, PAD])
        assert (found[:, :2] == EOS).all()
        assert (found[:, 2:] > 1).all()
    free = decode(model, tokens, is_given, u, DecodingConfig())
    assert (free[:, 2:] == EOS).any()
    assert (free[:, 2:] == PAD).any()


def test_callback_and_sequences_that_are_given_whole():
    model, tokens, seen = network(), random_tokens(), []
    whole = decode(model, tokens, prefixes(7, 7, 7), uniform(BATCH), DecodingConfig())
    assert (whole == tokens).all()
    decode(model, tokens, prefixes(2, 3, 7), uniform(BATCH), DecodingConfig(), callback=seen.append)
    assert [step.index for step in seen] == [2, 3, 4, 5, 6]


def test_mistakes_are_explained():
    model, tokens, u = network(), random_tokens(), uniform(BATCH)
    gap, config = prefixes(3, 3, 3), DecodingConfig()
    gap[1, 1] = False
    with pytest.raises(ValueError, match="given tokens must come first"):
        decode(model, tokens, gap, u, config)
    for settings in ({"temperature": -1.0}, {"top_k": -1}, {"nucleus": 0.0}, {"nucleus": 1.1}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} is "):
            DecodingConfig(**settings)


# Learning


@BOTH
def test_it_learns_a_markov_chain_to_its_entropy(tied):
    """The exact likelihood is the floor: the loss comes near it and is nowhere below it."""
    chain, length = markov_chain(8), 12
    torch.manual_seed(0)
    size = NetworkConfig(num_blocks=1, width=32, num_heads=2, mlp_ratio=2, tied_head=tied)
    model = AutoregressiveTextNetwork(size, vocab_size=8, length=length)
    optimiser, generator = torch.optim.Adam(model.parameters()), generator_for(0, "chain")
    steps = 400
    data = chain.sample(64 * steps, length, generator=generator)
    for step, tokens in enumerate(data.split(64)):
        optimiser.param_groups[0]["lr"] = 5e-3 * min(1.0, (step + 1) / 20, 2 * (1 - step / steps))
        optimiser.zero_grad()
        cross_entropies(model(tokens), tokens).mean().backward()
        optimiser.step()
    tokens = chain.sample(2_000, length, generator=generator)
    exact = -F.pad(chain.transitions.log()[tokens[:, :-1], tokens[:, 1:]], (1, 0))
    exact[:, 0] = -chain.initial.log()[tokens[:, 0]]
    torch.testing.assert_close(-exact.sum(1), chain.log_prob(tokens))
    with torch.no_grad():
        excess = cross_entropies(model(tokens), tokens) - exact
    assert 0 < float(excess.mean()) < 0.03
    error = excess.std(0) / math.sqrt(len(excess))
    assert (excess.mean(0) > -4 * error).all()
    # Power: the chain's marginal alone is far above the floor.
    marginal = (tokens.flatten().bincount(minlength=8) / tokens.numel()).log()
    assert float((-marginal[tokens] - exact).mean()) > 0.3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@BOTH
def test_on_a_gpu_compiled_and_in_bfloat16(tied):
    model, tokens = network(tied=tied).float().cuda(), random_tokens(batch=64).cuda()
    expected = model(tokens)
    compiled = torch.compile(model, dynamic=False)
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(compiled(tokens).float(), expected, rtol=0.1, atol=0.3)
        is_given, u = prefixes(*[2] * 64).cuda(), uniform(64).cuda()
        found = decode(model, tokens, is_given, u, DecodingConfig(nucleus=0.9, top_k=5))
    assert (found[:, :2] == tokens[:, :2]).all()
    torch.testing.assert_close(compiled(tokens), expected, rtol=1e-3, atol=1e-3)
    exact = decode(model, tokens, is_given, u, DecodingConfig())
    on_cpu = decode(model.cpu(), tokens.cpu(), is_given.cpu(), u.cpu(), DecodingConfig())
    assert (exact.cpu() == on_cpu).float().mean() > 0.95
