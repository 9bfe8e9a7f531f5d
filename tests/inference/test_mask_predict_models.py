"""Mask-predict decoding by translators and language models: lengths, sources, recordings, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from recordings import overwritten
from small_translators import perturbed
from test_pieces import TEXTS as SPELT
from test_pieces import pieces
from test_translator import make_translator, texts
from tiny import train_tiny

import cdcd
from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference import translator as module
from cdcd.inference.mask_predict import ends_at, mask_predict
from cdcd.inference.translator import DiffusionTranslator
from cdcd.metrics.bleu import utility_for
from cdcd.metrics.mbr import mbr_by_count
from cdcd.networks.capture import Recorder
from cdcd.settings import override
from cdcd.training.build import build_model

PLAIN = {"decoder": "mask-predict", "num_rounds": 6}
DRAWN = PLAIN | {"temperature": 1.0}
SEVERAL = PLAIN | {"temperature": 0.8, "num_lengths": 3}


def masked_translator():
    return make_translator(**{"objective.masking": "random", "data.length": 12})


def targets(translator, given, num_samples=1, **settings):
    """Token sequences of samples, one a row."""
    source = torch.tensor([translator.encode(text) for text in given])
    places = [(0, i, j) for i in range(len(given)) for j in range(num_samples)]
    chosen = translator.settings(settings)
    return translator.fill(source, places, chosen, lambda _: None).tokens


def test_the_end_is_where_padding_begins():
    """Probabilities of padding are the distribution of the length."""
    p = torch.tensor([[0.0, 0.1, 0.1, 0.6, 0.5, 0.9]]).double()
    logits = torch.stack([p, (1 - p) / 2, (1 - p) / 2], dim=-1).log()
    assert PAD == 0
    for quantile, end in ((0.05, 0), (0.3, 2), (0.5, 2), (0.6, 2), (0.7, 4), (0.95, 5)):
        assert int(ends_at(logits, torch.tensor([quantile]).double())) == end


def test_lengths_at_a_temperature():
    """Their probabilities to the power 1/temperature, in a distribution that was worked out by hand."""
    p = torch.tensor([[0.0, 0.1, 0.3, 0.7, 0.9]]).double()
    logits = torch.stack([p, (1 - p) / 2, (1 - p) / 2], dim=-1).log()
    likely = [0.1, 0.2, 0.4, 0.2, 0.1]  # of the ends 0, 1, … 4
    for temperature in (0.5, 1.0, 2.0):
        powers = [each ** (1 / temperature) for each in likely]
        for end in range(5):
            below, width = sum(powers[:end]) / sum(powers), powers[end] / sum(powers)
            for share in (0.01, 0.99):
                quantile = torch.tensor([below + share * width]).double()
                assert int(ends_at(logits, quantile, temperature)) == end
    for quantile in (0.01, 0.99):  # near none, the likeliest, though its power rounds to nothing
        assert int(ends_at(logits.float(), torch.tensor([quantile]), 1e-3)) == 2


def test_nothing_at_all_still_has_an_end():
    logits = torch.zeros(1, 4, 3)
    logits[..., PAD] = 50.0
    assert int(ends_at(logits, torch.tensor([0.5]))) == 0


@pytest.mark.parametrize("settings", [PLAIN, DRAWN, SEVERAL])
def test_a_target_has_one_end_and_padding_behind_it(settings):
    found = targets(masked_translator(), texts(4), 2, **settings)
    assert found.shape == (8, 12)
    for row in found.tolist():
        end = row.index(EOS)
        assert PAD not in row[:end]
        assert row[end + 1 :] == [PAD] * (11 - end)


def test_several_lengths_and_the_best_is_taken(monkeypatch):
    """Made one by one and compared, they give what is made together."""
    translator, given, kept = masked_translator(), texts(5), []

    def keep(*args, **kwargs):
        kept.append(mask_predict(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(module, "mask_predict", keep)
    for part in range(4):
        monkeypatch.setattr(
            module, "ends_at", lambda _, q, __, end=2 * part + 3: 0 * q[:, None] + end
        )
        targets(translator, given, **PLAIN)
    best = torch.stack([each.confidence for each in kept]).argmax(0)
    assert len(best.unique()) > 1
    expected = torch.stack([each.tokens for each in kept])[best, torch.arange(5)]
    monkeypatch.setattr(module, "ends_at", lambda _, q, __: (8 * q + 2)[:, None])
    assert torch.equal(targets(translator, given, **PLAIN, num_lengths=4), expected)


@pytest.mark.parametrize("settings", [PLAIN, DRAWN, SEVERAL])
def test_only_noisy_positions_are_predicted(monkeypatch, settings):
    """The network computes no other logits, and the samples are those of all logits."""
    translator, given, asked, kept = masked_translator(), texts(3), [], []
    estimator = translator.sampler.estimator

    def watch(tokens, is_noisy, **options):
        made = estimator(tokens, is_noisy, **options)
        asked.append(made)
        return made

    def keep(*args, **kwargs):
        kept.append(mask_predict(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(module, "mask_predict", keep)
    monkeypatch.setattr(translator.sampler, "estimator", watch)
    found = targets(translator, given, 2, **settings)
    assert len(asked) > 2
    assert all(made.only_noisy for made in asked)
    assert asked[-1].is_noisy.sum() < asked[1].is_noisy.sum() < asked[0].is_noisy.sum()
    monkeypatch.setattr(
        translator.sampler,
        "estimator",
        lambda *a, **o: replace(estimator(*a, **o), only_noisy=False),
    )
    assert torch.equal(targets(translator, given, 2, **settings), found)
    torch.testing.assert_close(kept[0].confidence, kept[1].confidence)


@pytest.mark.parametrize("settings", [PLAIN, DRAWN, SEVERAL])
def test_decoding_starts_from_noise(monkeypatch, settings):
    """At t_max, with the prediction that gave the length, and lengths in equal parts of their distribution."""
    translator, given, asked, started = masked_translator(), texts(3), [], []
    drawn = translator.sampler.draw([(0, i, 0) for i in range(3)])
    tries = settings.get("num_lengths", 1)

    def ask(logits, quantiles, temperature):
        asked.append((quantiles, temperature))
        return ends_at(logits, quantiles, temperature)

    def start(given, tokens, is_noisy, x, t, *args, **kwargs):
        first = given(tokens, torch.ones_like(is_noisy))(x, t, None)
        started.append((x, t, kwargs["state"], first.state))
        return mask_predict(given, tokens, is_noisy, x, t, *args, **kwargs)

    monkeypatch.setattr(module, "ends_at", ask)
    monkeypatch.setattr(module, "mask_predict", start)
    targets(translator, given, **settings)
    within = drawn.u_length if "temperature" in settings else torch.full((3,), 0.5).double()
    expected = (torch.arange(tries) + within[:, None]).flatten() / tries
    torch.testing.assert_close(asked[0][0], expected)
    assert asked[0][1] == settings.get("temperature", 1.0)
    x, t, state, first = started[0]
    assert set(t.tolist()) == {translator.config.process.t_max}
    noise = drawn.noise.repeat_interleave(tries, 0)
    torch.testing.assert_close(x, translator.config.process.t_max * noise)
    torch.testing.assert_close(state, first)


def test_no_end_inside_a_text(monkeypatch):
    """However likely it is there."""
    translator = masked_translator()
    translator.model.head.bias[EOS] += 1e3
    monkeypatch.setattr(module, "ends_at", lambda _, q, __: 0 * q[:, None] + 5)
    for row in targets(translator, texts(2), **PLAIN).tolist():
        assert row.index(EOS) == 5


@pytest.mark.parametrize("settings", [DRAWN, SEVERAL])
def test_a_sample_depends_on_its_text_and_place_alone(settings):
    translator, given = masked_translator(), texts(3)
    whole = translator.samples(given, num_samples=3, seed=5, **settings)
    assert len({text for each in whole for text in each}) == 9
    for size in (2, 5):
        again = translator.samples(given, num_samples=3, seed=5, batch_size=size, **settings)
        assert again == whole
    assert translator.samples(given, num_samples=3, seed=6, **settings) != whole
    assert translator.samples(given[::-1], num_samples=3, seed=5, **settings)[1] == whole[1]


def spelling_translator(alpha=0.2):
    """One that was trained with sources whose words were split at random."""
    changes = {"objective.masking": "random", "data.length": 12, "data.source_length": 48}
    translator = make_translator(**changes, **{"data.subword_sampling": alpha})
    translator.tokenizer = pieces()
    config = override(
        translator.config, {"decoder": "mask-predict", "mask_predict.num_rounds": "6"}
    )
    model = perturbed(build_model(config, translator.tokenizer.vocab_size))
    return DiffusionTranslator(
        config, translator.tokenizer, model, translator.sampler.warp, dtype=torch.float64
    )


def read_sources(translator, monkeypatch):
    """What the encoder is given from now on."""
    seen, encode = [], translator.model.encode

    def remember(source, *rest):
        seen.append(source)
        return encode(source, *rest)

    monkeypatch.setattr(translator.model, "encode", remember)
    return seen


def test_further_samples_read_sources_that_are_split_anew(monkeypatch):
    translator, given = spelling_translator(), SPELT[:3]
    seen = read_sources(translator, monkeypatch)
    whole = translator.samples(given, num_samples=4, seed=2)
    rows = seen[0].unflatten(0, (3, 4)).tolist()
    spelt = {tuple(translator.encode(text)): text for text in given}
    for first, *further in rows:
        text = spelt[tuple(first)]
        assert [translator.tokenizer.decode(row) for row in further] == [text] * 3
    assert sum(row != first for first, *further in rows for row in further) >= 6
    # A sample depends on its text and place alone.
    for size in (3, 5):
        assert translator.samples(given, num_samples=4, seed=2, batch_size=size) == whole
    assert [each[:2] for each in whole] == translator.samples(given, num_samples=2, seed=2)
    seen.clear()
    translator.samples(given, num_samples=4, seed=3)
    assert seen[0].unflatten(0, (3, 4)).tolist() != rows


def test_one_sample_reads_its_source_as_it_is(monkeypatch):
    translator = spelling_translator()
    seen = read_sources(translator, monkeypatch)
    translator.samples(SPELT[:2], seed=2)
    assert sorted(seen[0].tolist()) == sorted(map(translator.encode, SPELT[:2]))
    plain = spelling_translator(alpha=0.0)
    seen = read_sources(plain, monkeypatch)
    plain.samples(SPELT[:2], num_samples=3, seed=2)
    assert len(seen[0]) == 2  # a source is encoded once for all samples


def test_samples_of_the_ode_read_sources_as_they_are(monkeypatch):
    translator = spelling_translator()
    seen = read_sources(translator, monkeypatch)
    translator.samples(SPELT[:2], num_samples=3, decoder="ode", num_steps=2)
    assert sorted(seen[0].tolist()) == sorted(map(translator.encode, SPELT[:2]))


def test_settings_of_several_samples():
    translator = spelling_translator()
    own = {"num_lengths": 4}
    assert translator.settings(own).num_lengths == 4
    several = translator.settings({}, 2)
    assert (several.temperature, several.num_lengths) == (0.0, 1)
    assert translator.settings(own, 2).num_lengths == 4
    assert translator.settings({"temperature": 0.3}, 2).temperature == 0.3


def test_lengths_of_several_samples_are_spread_evenly(monkeypatch):
    translator, asked = spelling_translator(), []

    def ask(logits, quantiles, temperature):
        asked.append((quantiles, temperature))
        return ends_at(logits, quantiles, temperature)

    monkeypatch.setattr(module, "ends_at", ask)
    for count in (10, 100):
        translator.samples(SPELT[:1], num_samples=count, batch_size=count)
        quantiles, temperature = asked.pop()
        assert temperature == 1.0
        assert quantiles[0] == 0.5
        gaps = torch.cat([torch.zeros(1), quantiles.sort().values, torch.ones(1)]).diff()
        assert gaps.max() < 2 / count


@pytest.mark.parametrize("settings", [PLAIN, SEVERAL])
def test_the_confidence_is_that_of_the_sample_which_was_taken(monkeypatch, settings):
    translator, given, kept = masked_translator(), texts(3), []

    def keep(*args, **kwargs):
        kept.append(mask_predict(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(module, "mask_predict", keep)
    found = translator.scored_samples(given, num_samples=2, **settings)
    tries = settings.get("num_lengths", 1)
    best = kept[0].confidence.unflatten(0, (-1, tries)).max(1).values
    flat = [value for each in found.confidence for value in each]
    assert sorted(flat) == pytest.approx(sorted(best.tolist()))
    assert max(flat) < 0
    assert found.texts == translator.samples(given, num_samples=2, **settings)


def test_translate_chooses_by_likeness_and_confidence():
    translator, given = masked_translator(), texts(4)
    drawn = translator.scored_samples(given, num_samples=5, **DRAWN)
    best = [t[int(np.argmax(s))] for t, s in zip(drawn.texts, drawn.confidence, strict=True)]
    asked = {"num_samples": 5, **DRAWN}
    assert translator.translate(given, **asked, confidence_weight=1e6) == best
    alike = [t[mbr_by_count(t, utility=utility_for("bleu", "de"))[0]] for t in drawn.texts]
    assert translator.translate(given, **asked, confidence_weight=0.0) == alike
    assert alike != best


def test_other_decoders_have_no_confidence():
    translator = masked_translator()
    sampled = translator.scored_samples(texts(2), num_samples=2, decoder="ode", num_steps=2)
    assert sampled.confidence == [[0.0, 0.0]] * 2
    drawn = make_translator("autoregressive").scored_samples(texts(2), num_samples=2)
    assert drawn.confidence == [[0.0, 0.0]] * 2


def test_several_samples_are_drawn():
    translator, given = masked_translator(), texts(1)
    assert translator.settings(PLAIN).temperature == 0
    assert translator.settings(PLAIN, 2).temperature == 0.5
    assert translator.settings(DRAWN, 2).temperature == 1.0
    assert translator.settings(PLAIN | {"temperature": 0.0}, 2).temperature == 0
    drawn = translator.samples(given, num_samples=4, **PLAIN)
    assert drawn == translator.samples(given, num_samples=4, **PLAIN, temperature=0.5)
    assert len(set(drawn[0])) > 1


@pytest.mark.parametrize("settings", [PLAIN, SEVERAL])
def test_recorded_calls_give_the_same(settings):
    """What is given changes from round to round in one recording a shape."""
    plain, recorded = masked_translator(), masked_translator()
    recorded.sampler.recorder = Recorder(overwritten)
    for count, samples in ((3, 2), (2, 3), (3, 2)):
        given = texts(count)
        asked = {"num_samples": samples, **settings}
        assert recorded.samples(given, **asked) == plain.samples(given, **asked)
    assert len(recorded.sampler.recorder.kept) == 2


def test_predictions_are_fed_back():
    """Between the rounds, and from the first call, which tells the length."""
    translator, given = masked_translator(), texts(8)
    fed = targets(translator, given, **PLAIN)
    objective = replace(translator.config.objective, self_conditioning=False)
    translator.sampler.run = replace(translator.config, objective=objective)
    assert not torch.equal(targets(translator, given, **PLAIN), fed)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return cdcd.load(train_tiny(tmp_path_factory.mktemp("model") / "run"))


def test_a_language_model_fills_the_rest(language_model):
    prompt = "One day"
    first = language_model.complete(prompt, num_samples=2, seed=0, **DRAWN)
    assert all(text.startswith(prompt) for text in first)
    assert language_model.complete(prompt, num_samples=2, seed=0, **DRAWN) == first
    assert language_model.complete(prompt, num_samples=2, seed=1, **DRAWN) != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            PLAIN | {"guidance_scale": 2.0},
            "guidance_scale is a setting of decoder ode, not of",
        ),
        (PLAIN | {"rho": 2.0}, "rho is a setting of decoder ode, not of decoder mask-predict"),
        (PLAIN | {"score_temperature": 0.9}, "score_temperature is a setting of decoder ode"),
        (PLAIN | {"solver": "heun"}, "solver is a setting of decoder ode"),
        ({"num_rounds": 3}, "num_rounds is a setting of decoder mask-predict, not of decoder ode"),
        ({"solver": "settle"}, "unknown choice settle; it is decoder mask-predict now"),
        ({"decoder": "euler"}, "unknown choice euler; known: mask-predict, ode"),
        (PLAIN | {"confidence_weight": 2.0}, "confidence_weight has no effect here: .* several"),
        ({"warp": False, "rho": 2.0, "warp_temperature": 2.0}, "it needs warp true"),
    ],
)
def test_settings_without_effect_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        masked_translator().settings(changes)


def test_a_model_without_masks_is_refused():
    with pytest.raises(ValueError, match=r"for models trained with masks \(objective.masking\)"):
        make_translator().samples(texts(1), **PLAIN)


@pytest.mark.parametrize("setting", ["num_lengths", "confidence_weight"])
def test_lengths_are_for_translators(language_model, setting):
    with pytest.raises(ValueError, match=f"{setting} has no effect here: it needs a translator"):
        language_model.complete("One day", **PLAIN, **{setting: 2})


def test_a_language_model_takes_its_own_decoder(language_model):
    """Without `decoder` a call uses the run's."""
    asked = {"num_samples": 2, "seed": 0}
    config = override(language_model.config, {"decoder": "mask-predict"})
    expected = language_model.complete("One day", **asked, decoder="mask-predict")
    assert language_model.complete("One day", **asked) != expected
    language_model.config = config
    assert language_model.complete("One day", **asked) == expected
