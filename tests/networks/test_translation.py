"""The diffusion translator: what it must not depend on, and what both translators learn."""

import math
from dataclasses import replace

import pytest
import torch
from small_translators import (
    BATCH,
    DIM,
    LENGTH,
    RELATIVE,
    SMALL,
    SOURCE,
    SOURCE_LENGTHS,
    VOCAB,
    baseline,
    close,
    diffusion_model,
    inputs,
    normal,
    sources,
    targets,
)
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.estimator import Condition, Guided, Network, NetworkEstimator
from cdcd.diffusion.logits import noisy_positions, take
from cdcd.diffusion.objective import (
    Draws,
    ObjectiveConfig,
    training_loss,
)
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.autoregressive_text import token_losses
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.encoder_decoder import (
    Seq2SeqConfig,
    TokenInput,
    transformer_base,
    transformer_big,
    transformer_tiny,
)
from cdcd.networks.precision import with_bfloat16_weights
from cdcd.seeding import generator_for

# What the source does


def predictions(source: Tensor, is_dropped: Tensor | None = None) -> Tensor:
    model = diffusion_model()
    return model(**inputs(), condition=model.encode(source, is_dropped))


@torch.no_grad()
@pytest.mark.parametrize("more", [1, 3])
def test_padding_of_the_source_does_not_matter(more):
    source = sources()
    longer = F.pad(source, (0, more), value=PAD)
    close(predictions(longer), predictions(source))
    model, target = baseline(), targets()
    close(model(longer, target), model(source, target))


@torch.no_grad()
def test_every_token_of_the_source_matters_and_only_to_its_row():
    source = sources()
    plain = predictions(source)
    for row, length in enumerate(SOURCE_LENGTHS):
        for j in range(length):
            changed = source.clone()
            changed[row, j] = (changed[row, j] + 1) % VOCAB
            difference = (predictions(changed) - plain).abs().amax(2)
            assert (difference[row] > 1e-6).all()
            assert (difference.sum(1) > 0).sum() == 1


@torch.no_grad()
def test_a_dropped_row_does_not_depend_on_its_source():
    is_dropped = torch.tensor([True, False, True, False])
    found, other = (predictions(sources(seed), is_dropped) for seed in (0, 1))
    assert torch.equal(found[is_dropped], other[is_dropped])
    assert ((found - other)[~is_dropped].abs().amax((1, 2)) > 1e-4).all()
    # Nor on its length, and it is told so.
    shorter = sources()
    shorter[0, 2:] = PAD
    assert torch.equal(predictions(shorter, is_dropped)[0], found[0])
    kept = predictions(sources())
    close(found[~is_dropped], kept[~is_dropped])
    assert ((found - kept)[is_dropped].abs().amax((1, 2)) > 1e-4).all()


@torch.no_grad()
def test_the_length_of_the_source_is_a_condition_of_every_norm():
    """A change of a length's vector reaches the sources of that length, by the norms alone."""
    model, source = diffusion_model(), sources()
    plain = model(**inputs(), condition=model.encode(source))
    model.source_lengths.weight[SOURCE_LENGTHS[1]] += 1.0
    changed = (model(**inputs(), condition=model.encode(source)) - plain).abs().amax((1, 2))
    assert (changed > 1e-4).tolist() == [False, True, False, False]
    for module in model.modules():
        if hasattr(module, "modulation"):
            nn.init.zeros_(module.modulation.weight)
    still = model(**inputs(), condition=model.encode(source))
    model.source_lengths.weight[:] = 0.0
    close(model(**inputs(), condition=model.encode(source)), still)


def test_an_empty_source_is_read_as_one_token():
    empty = torch.full((BATCH, SOURCE), PAD)
    assert predictions(empty).isfinite().all()
    assert baseline()(empty, targets()).isfinite().all()


# Conditions


@torch.no_grad()
def test_some_rows_give_what_all_give():
    model, given, rows = diffusion_model(), inputs(), torch.tensor([1, 3])
    assert isinstance(model, Network)
    encoded = model.encode(sources())
    assert isinstance(encoded, Condition)
    everything = model(**given, condition=encoded)
    some = {name: tensor[rows] for name, tensor in given.items()}
    close(model(**some, condition=encoded.rows(rows)), everything[rows])
    # Power: other sources give other logits.
    others = model(**some, condition=encoded.rows(rows - 1))
    assert (others - everything[rows]).abs().amax((1, 2)).min() > 1e-4


@torch.no_grad()
def test_several_rows_a_source():
    model, copies = diffusion_model(), 3
    given = [inputs(seed) for seed in range(copies)]
    rows = {
        name: torch.stack([each[name] for each in given], dim=1).flatten(0, 1) for name in given[0]
    }
    encoded = model.encode(sources())
    logits = model(**rows, condition=encoded)
    for i, each in enumerate(given):
        close(logits[i::copies], model(**each, condition=encoded))


@pytest.mark.parametrize("spare", [0, 3])
def test_selected_logits_and_their_gradients_are_those_of_all(spare):
    given = inputs()
    positions = noisy_positions(given["is_noisy"], int(given["is_noisy"].sum()) + spare)
    weights = normal(len(positions), VOCAB)
    results = []
    for chosen in (positions, None):
        model = diffusion_model()
        encoded = model.encode(sources(), torch.arange(BATCH) == 1)
        logits = model(**given, condition=encoded, positions=chosen)
        logits = logits if chosen is not None else take(logits, positions)
        (weights * logits).sum().backward()
        trained = [p.grad for name, p in model.named_parameters() if name != "embedding.weight"]
        assert all(gradient is not None for gradient in trained)
        results.append([logits.detach(), *trained])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
@pytest.mark.parametrize("name", ["x", "c", "x0_prev", "is_noisy", "t"])
def test_every_input_matters(name):
    model, given = diffusion_model(), inputs()
    encoded = model.encode(sources())
    changed = given | {name: ~given[name] if name == "is_noisy" else given[name] + 1.0}
    difference = model(**given, condition=encoded) - model(**changed, condition=encoded)
    assert difference.abs().max() > 1e-4


def test_every_position_of_the_target_sees_every_other():
    model, given = diffusion_model(), inputs()
    x = given["x"].clone().requires_grad_()
    logits = model(**(given | {"x": x}), condition=model.encode(sources()))
    for position in (0, LENGTH - 1):
        (gradient,) = torch.autograd.grad(logits[0, position].square().sum(), x, retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all()
        assert (gradient[1:] == 0).all()


@pytest.mark.parametrize("which", range(SMALL.num_decoder_blocks))
@torch.no_grad()
def test_relative_positions_tell_each_block_the_order_of_the_target(which):
    """Without learnt positions a block knows no order, unless it is told of relative positions."""
    order = torch.randperm(LENGTH, generator=generator_for(0, "order"))
    given = inputs()
    mixed = {name: v if name == "t" else v[:, order] for name, v in given.items()}
    for config in (SMALL, RELATIVE):
        model = diffusion_model(config)
        model.positions.zero_()
        for place, block in enumerate(model.blocks):
            if place != which:
                block.attention.out.weight.zero_()
        encoded = model.encode(sources())
        logits = model(**given, condition=encoded)
        difference = (model(**mixed, condition=encoded) - logits[:, order]).abs()
        if config.relative_positions:
            assert (difference.amax((1, 2)) > 1e-3).all()
        else:
            close(difference, torch.zeros_like(difference))


def test_a_new_network_ignores_its_predictions_and_answers_uniformly():
    sizes = {"vocab_size": VOCAB, "source_length": SOURCE, "length": LENGTH}
    model = DiffusionTranslationNetwork(
        SMALL, EmbeddingConfig(dim=DIM), ProcessConfig(), **sizes
    ).double()
    given, encoded = inputs(), model.encode(sources())
    assert (model(**given, condition=encoded) == 0).all()
    nn.init.normal_(model.head.weight)
    changed = given | {"x0_prev": given["x0_prev"] + 1}
    close(model(**given, condition=encoded), model(**changed, condition=encoded))


@torch.no_grad()
def test_guidance_of_a_network_with_sources():
    """Both branches in one call: every source twice, the second time dropped."""
    model, given = diffusion_model(), inputs()
    is_dropped = torch.arange(2 * BATCH) >= BATCH
    settings = {
        "table": model.embedding.table(),
        "self_conditioning": False,
    }

    def estimator(source: Tensor, is_dropped: Tensor) -> NetworkEstimator:
        tokens = torch.zeros(len(source), LENGTH, dtype=torch.long)
        is_noisy = torch.ones_like(tokens, dtype=torch.bool)
        condition = model.encode(source, is_dropped)
        return NetworkEstimator(
            network=model, tokens=tokens, is_noisy=is_noisy, condition=condition, **settings
        )

    both = estimator(torch.cat([sources(), sources()]), is_dropped)
    found = Guided(both, 3.0)(given["x"], given["t"], None).x0_hat
    conditional, unconditional = (
        estimator(sources(), torch.full((BATCH,), dropped))(given["x"], given["t"], None).x0_hat
        for dropped in (False, True)
    )
    close(found, unconditional + 3.0 * (conditional - unconditional))


# Training


def draws(is_dropped: Tensor, seed: int = 0) -> Draws:
    batch = len(is_dropped)
    generator = generator_for(seed, "draws")
    return Draws(
        t=0.5 * 100 ** torch.rand(batch, generator=generator),
        eps=torch.randn(batch, LENGTH, DIM, generator=generator),
        is_noisy=torch.ones(batch, LENGTH, dtype=torch.bool),
        is_dropped=is_dropped,
        self_conditioned=torch.arange(1, batch, 2),
    )


def diffusion_loss(
    model: DiffusionTranslationNetwork, source: Tensor, target: Tensor, drawn: Draws
) -> Tensor:
    """Mean cross-entropy of a training step."""
    losses = training_loss(
        model,
        model.embedding.table(),
        target,
        drawn,
        objective=ObjectiveConfig(masking="none"),
        embedding=EmbeddingConfig(dim=DIM),
        condition=model.encode(source, drawn.is_dropped),
    )
    return losses.total / losses.num_noisy


def test_a_training_step_reads_the_source_once_and_trains_everything():
    model, calls = diffusion_model().float(), []
    model.encoder.register_forward_hook(lambda *_: calls.append("source"))
    model.head.register_forward_hook(lambda *_: calls.append("target"))
    is_dropped = torch.tensor([True, False, False, True])
    diffusion_loss(model, sources(), targets(), draws(is_dropped)).backward()
    assert calls == ["source", "target", "target"]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name


def test_dropout_is_in_training_only():
    for build in (diffusion_model, baseline):
        model, plain = build(replace(SMALL, dropout=0.5)), build()

        def answer(model: nn.Module) -> Tensor:
            if isinstance(model, DiffusionTranslationNetwork):
                return model(**inputs(), condition=model.encode(sources()))
            return model(sources(), targets())

        assert (answer(model) - answer(plain)).abs().max() > 1e-2
        close(answer(model.eval()), answer(plain.eval()))
        count = sum(isinstance(module, nn.Dropout) for module in model.modules())
        assert count == 2 + SMALL.num_encoder_blocks + SMALL.num_decoder_blocks


def reversal(batch: int, step: int) -> tuple[Tensor, Tensor]:
    """Sources of four letters or fewer, and the same letters backwards, each with its end."""
    generator = generator_for(step, "reversal")
    letters = torch.randint(3, VOCAB, (batch, 4), generator=generator)
    lengths = torch.randint(1, 5, (batch, 1), generator=generator)
    places = torch.arange(LENGTH)
    padded = F.pad(letters, (0, LENGTH - 4))
    source = padded.masked_fill(places == lengths, EOS).masked_fill(places > lengths, PAD)
    backwards = padded.gather(1, (lengths - 1 - places).clamp(min=0))
    target = backwards.masked_fill(places == lengths, EOS).masked_fill(places > lengths, PAD)
    return source[:, :SOURCE], target


LEARNER = replace(SMALL, num_encoder_blocks=1, width=32, hidden=64, dropout=0.0)


def test_the_diffusion_model_learns_to_reverse():
    """From pure noise it predicts nearly all, and without the source no more than can be known."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "source_length": SOURCE, "length": LENGTH}
    process = ProcessConfig(t_min=0.5, t_max=50.0)
    model = DiffusionTranslationNetwork(LEARNER, EmbeddingConfig(dim=DIM), process, **sizes)
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=5e-3), []
    for step in range(240):
        source, target = reversal(64, step)
        is_dropped = torch.arange(64) % 8 == 0
        drawn = draws(is_dropped, step)
        loss = diffusion_loss(model, source, target, drawn)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCAB), abs=0.01)
    source, target = reversal(256, -1)
    at_the_top = replace(draws(torch.zeros(256, dtype=torch.bool)), t=torch.full((256,), 50.0))
    unaware = replace(at_the_top, is_dropped=torch.ones(256, dtype=torch.bool))
    with torch.no_grad():
        known, unknown = (
            float(diffusion_loss(model, source, target, drawn)) for drawn in (at_the_top, unaware)
        )
    assert known < 0.4
    # Of 1 to 4 letters, 8 to choose from.
    assert unknown > (math.log(4) + 2.5 * math.log(8)) / LENGTH


def test_the_baseline_learns_to_reverse():
    torch.manual_seed(0)
    model = AutoregressiveTranslationNetwork(
        LEARNER, vocab_size=VOCAB, source_length=SOURCE, length=LENGTH
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(200):
        source, target = reversal(64, step)
        loss = token_losses(model(source, target), target, 0.1)[0].sum() / (target != PAD).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    source, target = reversal(256, -1)
    with torch.no_grad():
        losses = token_losses(model(source, target), target)
    nll = float(losses[1].sum() / (target != PAD).sum())
    assert nll < 0.3


# Precision, compilation, sizes


@torch.no_grad()
def test_bfloat16_by_autocast():
    source, target, given = sources(), targets(), inputs()
    single = {name: v.float() if v.is_floating_point() else v for name, v in given.items()}
    model, translator = diffusion_model().float(), baseline().float()
    expected = model(**single, condition=model.encode(source))
    with torch.autocast("cpu", torch.bfloat16):
        encoded = model.encode(source, torch.zeros(BATCH, dtype=torch.bool))
        found = model(**single, condition=encoded)
        rounded = with_bfloat16_weights(model)
        assert isinstance(rounded, DiffusionTranslationNetwork)
        assert torch.equal(rounded(**single, condition=rounded.encode(source)), found)
        logits = translator(source, target)
        losses = token_losses(logits, target, 0.1)
        caches = translator.new_caches(BATCH, LENGTH)
        first = translator.next_logits(
            translator.start(BATCH), torch.arange(1), translator.encode(source), caches
        )
    assert {each.dtype for each in (found, logits, first)} == {torch.bfloat16}
    assert caches[0].keys.dtype == encoded.keys.dtype == torch.bfloat16
    assert losses[0].dtype == losses[1].dtype == torch.float32
    assert (found.float() - expected).abs().mean() < 0.1 * expected.abs().mean()
    exact = translator(source, target)
    assert (logits.float() - exact).abs().mean() < 0.1 * exact.abs().mean()
    assert (first.float() - exact[:, 0]).abs().mean() < 0.1 * exact.abs().mean()


def test_sizes_are_those_of_the_original():
    """Without embeddings, Transformer base has 44M parameters and big 176M (Vaswani et al., 2017)."""
    for config, expected in ((transformer_base(), 44.1e6), (transformer_big(), 176.2e6)):
        with torch.device("meta"):
            sizes = {"vocab_size": 32_768, "source_length": 160, "length": 160}
            model = AutoregressiveTranslationNetwork(config, **sizes)
            DiffusionTranslationNetwork(config, EmbeddingConfig(), ProcessConfig(), **sizes)
        inside = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
        assert inside == pytest.approx(expected, rel=0.005)
    assert transformer_tiny().width < transformer_base().width


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="sources have 9 tokens, the model reads at most 8"):
        baseline().encode(torch.ones(1, SOURCE + 4, dtype=torch.long))
    for settings, message in (
        ({"width": 20, "num_heads": 8}, r"seq2seq.width \(20\) must be even and a multiple"),
        ({"width": 9, "num_heads": 3}, "must be even"),
        ({"width": 18, "num_heads": 6, "relative_positions": True}, "for relative positions"),
        ({"dropout": 1.0}, "seq2seq.dropout is 1.0"),
        ({"hidden": 0}, "seq2seq.hidden is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Seq2SeqConfig(**settings)


def test_source_dropout_hides_whole_tokens_and_no_positions():
    layer = TokenInput(16, 8, 0.0, 0.5)
    table = torch.randn(5, 16, generator=generator_for(0, "table"))
    tokens = torch.randint(1, 5, (64, 8), generator=generator_for(0, "tokens"))
    torch.manual_seed(0)
    found = (layer(tokens, table) - layer.positions) / layer.scale
    kept = (found.abs() > 1e-6).all(-1)
    assert torch.equal(kept, (found.abs() > 1e-6).any(-1))
    assert 0.4 < float(kept.float().mean()) < 0.6
    assert torch.allclose(found[kept], 2 * table[tokens][kept], atol=1e-5)
    layer.eval()
    expected = layer.scale * table[tokens] + layer.positions
    assert torch.equal(layer(tokens, table), expected)
