"""The denoising score in use: the best of several texts, and the choice among translations."""

import json

import numpy as np
import pytest
import torch
from test_translator import make_translator, texts
from tiny import cdcd_main, train_tiny

import cdcd
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.likelihood import denoising_score
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.inference.denoising_score import UNIFORM_TIMES, as_target
from cdcd.metrics.bleu import utility_for
from cdcd.metrics.mbr import mbr_by_count
from cdcd.networks.capture import Recorder, record_nothing

FEW = {"num_steps": 2}
DRAWN = {"decoder": "mask-predict", "num_rounds": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"training.steps": 60, "training.checkpoint_every": 0, "training.log_every": 50}
    return train_tiny(tmp_path_factory.mktemp("score") / "run", changes)


@pytest.fixture(scope="module")
def model(run):
    return cdcd.load(run, dtype="float64")


@pytest.fixture
def canvas(model):
    return model.prompt_canvas("One")


# Texts


def test_the_best_of_several_is_shown(model, canvas):
    """Of samples 0, 1, 2 one, of samples 3, 4, 5 another: the first of the highest score of each."""
    best = model.generate(canvas, num_samples=2, best_of=3, **DRAWN)
    drawn = model.generate(canvas, num_samples=6, **DRAWN)
    assert [each.seed[1] // 3 for each in best] == [0, 1]
    scores = all_scores(model, canvas, 6)
    assert len(set(scores)) == 6
    for group, each in enumerate(best):
        of_group = scores[3 * group : 3 * group + 3]
        assert each.score == pytest.approx(max(of_group))
        chosen = drawn[3 * group + int(np.argmax(of_group))]
        assert (each.text, each.seed) == (chosen.text, chosen.seed)


def filled_canvas(model, canvas, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of a canvas, and where they were generated."""
    tokens = torch.tensor([[PAD if token is None else token for token in canvas.tokens]] * count)
    is_noisy = torch.tensor([canvas.is_noisy] * count)
    seeds = [(0, i) for i in range(count)]
    return model.fill(tokens, is_noisy, seeds, model.settings(DRAWN)), is_noisy


def all_scores(model, canvas, count: int, seed: int = 0) -> list[float]:
    return model.scores(*filled_canvas(model, canvas, count), seed).tolist()


def test_scores_are_of_the_generated_tokens_at_low_noise(model, canvas, monkeypatch):
    tokens, is_noisy = filled_canvas(model, canvas, 3)
    estimator = model.sampler.estimator(tokens, is_noisy, SamplingConfig())
    schedule, table, seen = model.sampler.warp.schedule(), model.sampler.table, []

    def watched(x, t, state):
        seen.append((float(schedule.uniform_time(t.float())[0]), (x - table[tokens]) / t[0]))
        return estimator(x, t, state)

    monkeypatch.setattr(model.sampler, "estimator", lambda *_: watched)
    found = model.scores(tokens, is_noisy, 0)
    # Two calls for a prediction, each draw with both signs.
    assert [u for u, _ in seen[::8]] == pytest.approx(UNIFORM_TIMES, abs=2e-3)
    eps = torch.stack([each[0] for _, each in seen[:4:2]])
    levels = schedule.noise_levels(torch.tensor(UNIFORM_TIMES)).to(table)
    expected = denoising_score(estimator, table, tokens, is_noisy, levels, eps)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(seen[0][1][0], seen[0][1][2])


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_score_depends_on_the_text_and_the_seed_alone(model, canvas, batch_size):
    asked = {"num_samples": 2, "best_of": 3, **DRAWN}
    one, other = (model.generate(canvas, batch_size=size, **asked) for size in (64, batch_size))
    assert [each.tokens for each in one] == [each.tokens for each in other]
    assert [each.score for each in one] == pytest.approx([each.score for each in other])
    assert all_scores(model, canvas, 4) == all_scores(model, canvas, 4)
    assert all_scores(model, canvas, 4) != pytest.approx(all_scores(model, canvas, 4, seed=1))


def test_recorded_calls_give_the_same_scores(run, canvas, model):
    recorded = cdcd.load(run, dtype="float64")
    recorded.sampler.recorder = Recorder(record_nothing)
    assert all_scores(recorded, canvas, 4) == pytest.approx(all_scores(model, canvas, 4))


def test_a_single_sample_has_no_score(model, canvas):
    assert [each.score for each in model.generate(canvas, **DRAWN)] == [None]


def test_a_model_without_masks_sees_all_tokens_in_noise(tmp_path):
    run = train_tiny(tmp_path / "run", {"objective.masking": "none"})
    model = cdcd.load(run)
    asked = {"num_samples": 1, "best_of": 2, "replacement": True, **FEW}
    [best] = model.generate(model.prompt_canvas("One"), **asked)
    assert best.score is not None


def test_the_command_shows_the_score_as_json(run, capsys):
    options = ("--num-steps", 2, "--num-samples", 2, "--best-of", 2, "--json")
    assert cdcd_main("sample", run, *options) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert len(samples) == 2
    assert all(each["score"] < 0 for each in samples)
    assert cdcd_main("sample", run, "--num-steps", 2, "--json") == 0
    assert "score" not in json.loads(capsys.readouterr().out)["samples"][0]


def test_an_autoregressive_model_has_no_score(tmp_path, capsys):
    run = train_tiny(tmp_path / "run", {"model": "autoregressive"})
    assert cdcd_main("sample", run, "--best-of", 2) == 2
    assert "best_of needs a denoising score" in capsys.readouterr().err


# Translations


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def test_targets_are_scored_up_to_their_end():
    tokens = torch.tensor([[7, 8, EOS, 9, EOS], [7, 8, 9, 7, 8]])
    targets, is_text = as_target(tokens)
    assert targets.tolist() == [[7, 8, EOS, PAD, PAD], [7, 8, 9, 7, 8]]
    assert is_text.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_translate_chooses_by_likeness_and_score(translator):
    given, asked = texts(4), {"num_samples": 5, **FEW}
    drawn = translator.scored_samples(given, score_weight=1.0, **asked)
    assert np.shape(drawn.scores) == (4, 5)
    assert drawn.bonuses == drawn.scores
    best = [t[int(np.argmax(s))] for t, s in zip(drawn.texts, drawn.scores, strict=True)]
    assert translator.translate(given, **asked, score_weight=1e6) == best
    alike = [t[mbr_by_count(t, utility=utility_for("bleu", "de"))[0]] for t in drawn.texts]
    assert translator.translate(given, **asked) == alike


def test_scores_of_translations_do_not_depend_on_their_batch(translator):
    given, asked = [*texts(3), ""], {"num_samples": 3, "score_weight": 1.0, **FEW}
    at_once = translator.scored_samples(given, **asked)
    parts = translator.scored_samples(given, batch_size=2, **asked)
    np.testing.assert_allclose(at_once.scores, parts.scores)
    assert at_once.scores[3] == [0.0] * 3
    assert np.max(at_once.scores[:3]) < 0
    assert translator.samples(given, num_samples=3, **FEW) == at_once.texts


@pytest.mark.parametrize(
    ("model", "asked", "message"),
    [
        ("diffusion", {"num_samples": 1}, "score_weight chooses among several samples"),
        ("autoregressive", {"num_samples": 2}, "score_weight needs a denoising score"),
    ],
)
def test_a_weight_of_no_effect_is_refused(model, asked, message):
    with pytest.raises(ValueError, match=message):
        make_translator(model).translate(texts(1), score_weight=2.0, **asked)
