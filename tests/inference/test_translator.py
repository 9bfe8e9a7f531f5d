"""Translators in training and in use: what they learn from, what their samples depend on."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import SEVEN, assert_same_run, stop_after
from recordings import overwritten
from rich.console import Console
from tiny import contents, metrics, resume_tiny, start_tiny, tiny_translation, train_tiny
from torch import Tensor
from torch.nn import functional as F

import cdcd
from cdcd.config import BeamConfig, DecodingConfig
from cdcd.data.pairs import PreparedPairs
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.tokenizers import numerals_tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.objective import training_loss
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.beam import beam_search
from cdcd.inference.translator import AutoregressiveTranslator, DiffusionTranslator, Samples
from cdcd.languages import numerals
from cdcd.networks.capture import Recorder
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.presets import preset
from cdcd.seeding import generator_for
from cdcd.training import corpora
from cdcd.training import run as runs
from cdcd.training.build import build_model, make_task
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.distributed import World
from cdcd.training.monitoring import Stopped
from cdcd.training.optimiser import learning_rate_at
from cdcd.training.tasks import seed_dropout

MODELS = ("diffusion", "autoregressive")
TRANSLATION = {"task": "translation"}
LEARNING = TRANSLATION | {
    "training.steps": 30,
    "training.learning_rate": 1e-2,
    "training.log_every": 5,
    "training.checkpoint_every": 0,
}
DROPOUT = TRANSLATION | {"seq2seq.dropout": 0.3}
CPU = torch.device("cpu")


def perturbed(model: Any) -> Any:
    """With nothing left at zero: a new network looks at neither the source nor its last prediction."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=generator_for("perturbed", place))
            parameter.add_(0.3 * noise)
    return model


def make_translator(
    model: str = "diffusion", *, dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """An untrained translator that looks at everything."""
    config = tiny_translation(TRANSLATION | {"model": model, "training.compile": "off"} | changes)
    tokenizer = numerals_tokenizer()
    network = perturbed(build_model(config, tokenizer.vocab_size))
    if model == "autoregressive":
        return AutoregressiveTranslator(config, tokenizer, network, dtype=dtype)
    warp = TimeWarp(config.warp, config.process)
    return DiffusionTranslator(config, tokenizer, network, warp, dtype=dtype)


def make_translation_task(
    model: str = "diffusion", *, dtype: torch.dtype = torch.float32, **changes: Any
) -> tuple[Any, Tensor]:
    """A task that looks at everything, and a batch."""
    config = tiny_translation(TRANSLATION | {"model": model} | changes)
    corpus = corpora.load_corpus(config)
    size = corpus.tokenizer.vocab_size
    task = make_task(config, size, device=CPU, dtype=dtype)
    perturbed(task.model)
    return task, corpus.train.rows(torch.arange(config.training.batch_size))


def texts(count: int, *, seed: int = 0) -> list[str]:
    return [english for english, _ in numerals.sample_pairs(count, seed=seed)]


# Training


def assert_learns(run: Path) -> None:
    losses = [row["loss"] for row in metrics(run) if "loss" in row]
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize("languages", ["en-de", "de-en"])
@pytest.mark.parametrize("model", MODELS)
def test_it_learns_from_numerals(tmp_path, model, languages):
    changes = LEARNING | {"model": model, "data.languages": languages}
    trainer = start_tiny(tmp_path / "run", changes)
    rows, tokenizer = trainer.valid.tolist(), numerals_tokenizer()
    source, target = languages.split("-")
    for row in rows:
        sides = [tokenizer.decode(side) for side in (row[:32], row[32:])]
        assert numerals.parse(sides[0], source)
        assert numerals.check(sides[0], sides[1], languages) == "right"
    trainer.train()
    assert_learns(tmp_path / "run")
    translator = cdcd.load_translator(tmp_path / "run")
    assert translator.languages == (source, target)
    assert len(translator.translate([sides[0], ""])) == 2


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A prepared data set of pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "tokenizer").mkdir()
    numerals_tokenizer().save(folder / "tokenizer")
    rows = map("\t".join, numerals.sample_pairs(300, seed=0))
    (folder / "pairs.tsv").write_text("\n".join(rows))
    config = PrepareConfig(
        source=str(folder / "pairs.tsv"),
        column="1",
        target_column="2",
        tokenizer=str(folder),
        valid_share=0.1,
        workers=1,
    )
    prepare(config, folder / "set", console=Console(file=StringIO()))
    return PreparedPairs(folder / "set")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_it_learns_from_a_data_set(tmp_path, pairs, model, reverse):
    direction = {"data.reverse": reverse}
    changes = LEARNING | {"model": model, "data.source": str(pairs.path)} | direction
    trainer = start_tiny(tmp_path / "run", changes)
    sides = pairs.texts("valid", 0)
    row, tokenizer = trainer.valid[0].tolist(), pairs.tokenizer
    found = tuple(tokenizer.decode(side) for side in (row[:32], row[32:]))
    assert found == (sides[::-1] if reverse else sides)
    trainer.train()
    assert_learns(tmp_path / "run")
    languages = cdcd.load_translator(tmp_path / "run").languages
    assert languages == (("de", "en") if reverse else ("en", "de"))


@pytest.fixture(scope="module", params=MODELS)
def uninterrupted(request, tmp_path_factory):
    changes = SEVEN | DROPOUT | {"model": request.param}
    return changes, train_tiny(tmp_path_factory.mktemp("uninterrupted") / "whole", changes)


@pytest.mark.parametrize("stop", [3, 5])
def test_stopped_and_resumed_is_uninterrupted(tmp_path, monkeypatch, uninterrupted, stop):
    """With dropout, which has no state that is saved."""
    changes, whole = uninterrupted
    trainer = start_tiny(tmp_path / "stopped", changes)
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Stopped, match=f"stopped at step {stop} and saved"):
            trainer.train()
    torch.manual_seed(stop)
    resume_tiny(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole)


def test_dropout_changes_what_is_compared_above(tmp_path, uninterrupted):
    """Power."""
    changes, whole = uninterrupted
    other = train_tiny(tmp_path / "other", changes | {"seq2seq.dropout": 0.0})
    folders = [RunDirectory(run).folder(7) for run in (whole, other)]
    assert contents(folders[0]) != contents(folders[1])


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_dropped_in_validation(tmp_path, monkeypatch, model):
    changes = DROPOUT | {"model": model, "training.steps": 1}
    trainer = start_tiny(tmp_path / "run", changes)
    perturbed(trainer.model)
    reports, validate = [], trainer.task.validate

    def twice(tokens):
        assert not any(module.training for module in trainer.model.modules())
        reports.append([validate(tokens) for _ in range(2)])
        return reports[-1][1]

    monkeypatch.setattr(trainer.task, "validate", twice)
    trainer.train()
    assert len(reports) == 1
    assert all(first == second for first, second in reports)
    assert all(module.training for module in trainer.model.modules())
    # Power: in training mode, two reports differ.
    assert validate(trainer.valid) != validate(trainer.valid)


@pytest.mark.parametrize("model", MODELS)
def test_dropout_is_of_the_step_and_the_rank(model):
    task, tokens = make_translation_task(model, **{"seq2seq.dropout": 0.3})
    [drawn] = task.draw(0)

    def loss(step: int, rank: int) -> float:
        """With everything else that is drawn as at step 0."""
        seed_dropout(task.config.training.seed, step, World(rank=rank, size=2))
        return task.loss(tokens, drawn)[0].item()

    found = {place: loss(*place) for place in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(set(found.values())) == 4
    assert loss(0, 1) == found[0, 1]
    # The draws of a step begin with it.
    task.draw(1)
    assert task.loss(tokens, drawn)[0].item() == found[1, 0]


def test_pairs_that_are_too_long_are_told(tmp_path):
    said = StringIO()
    config = tiny_translation({"data.length": 14, "training.steps": 1})
    console = Console(file=said, width=200)
    trainer = runs.start(config, tmp_path / "run", console=console)
    everything = corpora.load_corpus(tiny_translation())
    for name, part in (("train", everything.train), ("valid", everything.valid)):
        targets = part.rows(torch.arange(len(part)))[:, 32:]
        dropped = int(((targets != PAD).sum(1) > 14).sum())
        assert dropped > 0
        assert (
            f"{name}: {dropped} of {len(part)} pairs left out: longer than 32 + 14 tokens"
            in said.getvalue()
        )
    trainer.train()
    said.seek(0)
    said.truncate()
    runs.resume(tmp_path / "run", changes={"training.steps": 2}, console=console)
    assert "pairs left out" in said.getvalue()


# The losses


class RowByRow:
    """A network by hand: each row with its own source, or with none of it, encoded by itself."""

    def __init__(
        self, model: DiffusionTranslationNetwork, source: Tensor, is_dropped: Tensor
    ) -> None:
        self.model, self.source, self.is_dropped = model, source, is_dropped

    def __call__(self, x: Tensor, t: Tensor, **inputs: Tensor) -> Tensor:
        rows = list(range(len(self.source)))
        if len(x) < len(rows):
            rows = [1, 3, 5, 7]
        assert len(x) == len(rows)
        logits = []
        for i, row in enumerate(rows):
            here = slice(i, i + 1)
            # Another source for a dropped row: it must not matter.
            source = self.source[row].flip(0) if self.is_dropped[row] else self.source[row]
            encoded = self.model.encode(source[None], self.is_dropped[row : row + 1])
            given = {name: value[here] for name, value in inputs.items()}
            logits.append(self.model(x[here], t[here], **given, condition=encoded))
        return torch.cat(logits)


def test_the_loss_of_a_diffusion_model_is_that_of_its_targets():
    task, tokens = make_translation_task(**{"objective.conditioning_dropout": 0.4})
    [drawn] = task.draw(0)
    assert drawn.is_noisy.all()
    assert drawn.is_noisy.shape == (8, 32)
    assert 1 < drawn.is_dropped.sum() < 7
    source, target = tokens[:, :32], tokens[:, 32:]
    expected = training_loss(
        RowByRow(task.model, source, drawn.is_dropped),
        task.model.embedding.table(),
        target,
        replace(drawn, predicted=None, predicted_first=None),
        objective=task.config.objective,
        embedding=task.config.embedding,
    )
    assert int(task.num_targets(tokens, drawn)) == target.numel()
    total, per_sequence = task.loss(tokens, drawn)
    in_parts, _ = make_translation_task(
        **{"objective.conditioning_dropout": 0.4, "training.accumulate": 2}
    )
    halves = zip(tokens.chunk(2), in_parts.draw(0), strict=True)
    parts = torch.cat([in_parts.loss(*half)[1] for half in halves])
    for losses in (per_sequence, parts):
        torch.testing.assert_close(losses, expected.per_sequence, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(total, expected.total, rtol=1e-4, atol=1e-3)
    # Power: what is dropped matters.
    other = replace(drawn, is_dropped=~drawn.is_dropped)
    assert (task.loss(tokens, other)[1] - per_sequence).abs().min() > 0


def test_validation_of_a_diffusion_model_hides_nothing():
    task, tokens = make_translation_task(**{"objective.conditioning_dropout": 1.0})
    other, _ = make_translation_task(**{"objective.conditioning_dropout": 0.0})
    assert task.draw(0)[0].is_dropped.all()
    with torch.no_grad():
        reports = [each.validate(tokens) for each in (task, other)]
    assert reports[0] == reports[1]


def test_the_loss_of_a_baseline_has_smoothed_labels():
    changes = {"training.label_smoothing": 0.2}
    task, tokens = make_translation_task("autoregressive", **changes)
    source, target = tokens[:, :32], tokens[:, 32:].long()
    logits = task.model(source, target)
    by_token = [
        F.cross_entropy(
            logits.mT, target, ignore_index=PAD, label_smoothing=smoothing, reduction="none"
        )
        for smoothing in (0.2, 0.0)
    ]
    counts = (target != PAD).sum(1)
    total, per_sequence = task.loss(tokens, None)
    assert int(task.num_targets(tokens, None)) == int(counts.sum())
    torch.testing.assert_close(total, by_token[0].sum(), rtol=1e-5, atol=1e-3)
    nll = by_token[1].sum(1) / counts
    torch.testing.assert_close(per_sequence, nll.detach(), rtol=1e-5, atol=1e-5)
    mean = (by_token[1].sum() / counts.sum()).item()
    assert task.validate(tokens).loss == pytest.approx(mean, rel=1e-5)


def test_the_rate_of_vaswani_et_al():
    training = preset("wmt-base", "autoregressive").training
    for step in (0, 10, 3_998, 3_999, 4_000, 100_000):
        count = step + 1
        expected = 512**-0.5 * min(count**-0.5, count * 4_000**-1.5)
        assert learning_rate_at(step, training) == pytest.approx(expected, rel=1e-9)
    by_hand = replace(training, learning_rate=1.0, warmup_steps=4, steps=20, decay_steps=2)
    found = [learning_rate_at(step, by_hand) for step in (0, 1, 3, 15, 18, 19)]
    assert found == pytest.approx(
        [1 / 4, 2 / 4, 1.0, 0.5, math.sqrt(4 / 19), math.sqrt(4 / 20) / 2]
    )


# Samples of a diffusion model


def test_guidance_is_the_extrapolation_of_two_calls():
    """Of three sources with two rows each, twice: the second time with each branch's own state."""
    translator = make_translator()
    source = torch.tensor([translator.encode(text) for text in texts(3)])
    x = torch.randn(6, 32, 8, generator=generator_for("x"), dtype=torch.float64)
    t = torch.linspace(1.0, 6.0, 6, dtype=torch.float64)
    plain = replace(translator.config.sampling, guidance_scale=1.0)
    nothing = translator._nothing_given(6)
    guided = translator.conditioned(source, replace(plain, guidance_scale=2.5))(*nothing)
    conditional = translator.conditioned(source, plain)(*nothing)
    encoded = translator.model.encode(source, torch.ones(3, dtype=torch.bool))
    unconditional = replace(conditional, condition=encoded)
    states: list[Any] = [None, None, None]
    for _ in range(2):
        both, one, other = (
            each(x, t, state)
            for each, state in zip((guided, conditional, unconditional), states, strict=True)
        )
        expected = other.x0_hat + 2.5 * (one.x0_hat - other.x0_hat)
        torch.testing.assert_close(both.x0_hat, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(both.logits, one.logits, rtol=1e-9, atol=1e-9)
        assert (one.x0_hat - other.x0_hat).abs().amax((1, 2)).min() > 1e-3
        states = [both.state, one.state, other.state]


SETTINGS = {"plain": {}, "guided": {"guidance_scale": 2.0}}
PUT_BACK = {name: {"solver": name} for name in ("ancestral", "bridge")}


@pytest.mark.parametrize("settings", (SETTINGS | PUT_BACK).values(), ids=SETTINGS | PUT_BACK)
@pytest.mark.parametrize("model", MODELS)
def test_a_sample_depends_on_its_text_and_place_alone(model, settings):
    if model == "autoregressive":
        settings = {"top_k": 9 if settings else 0}
    translator = make_translator(model, **{"data.length": 12})
    given = texts(3)
    whole = translator.samples(given, num_samples=3, seed=5, **settings)
    assert len({text for each in whole for text in each}) == 9
    for batch_size in (2, 5):
        assert translator.samples(
            given, num_samples=3, seed=5, batch_size=batch_size, **settings
        ) == whole  # fmt: skip
    fewer = translator.samples(given, num_samples=2, seed=5, batch_size=3, **settings)
    assert fewer == [each[:2] for each in whole]
    others = ["", given[1], *texts(1, seed=3)]
    changed = translator.samples(others, num_samples=3, seed=5, **settings)
    assert changed[0] == ["", "", ""]
    assert changed[1] == whole[1]
    assert changed[2] != whole[2]
    assert translator.samples(given, num_samples=3, seed=6, **settings) != whole
    # The place matters, and so does the text.
    assert translator.samples(given[1:], num_samples=3, seed=5, **settings)[0] != whole[1]
    assert translator.samples([given[1]], seed=5, **settings)[0][0] != whole[0][0]


@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++", "ancestral"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_recorded_calls_give_the_same(settings, solver):
    """Other texts and other noise from one recording a shape."""
    plain, recorded = make_translator(), make_translator()
    recorded.sampler.recorder = Recorder(overwritten)
    for seed in (0, 1):
        for count, samples in ((3, 2), (2, 3), (3, 2)):
            asked = {"num_samples": samples, "seed": seed, "solver": solver, **settings}
            given = texts(count, seed=seed)
            assert recorded.samples(given, **asked) == plain.samples(given, **asked)
    assert len(recorded.sampler.recorder.kept) == 2


def test_the_most_like_the_others_is_chosen(monkeypatch):
    translator = make_translator()
    drawn = [["der Hund schläft", "die Katze schläft", "die Katze schläft", "x"], [""] * 4]
    scored = Samples(drawn, [[0.0] * 4] * 2)
    monkeypatch.setattr(type(translator), "scored_samples", lambda *_, **__: scored)
    for utility in ("bleu", "chrf"):
        found = translator.translate(["a", ""], num_samples=4, utility=utility)
        assert found == ["die Katze schläft", ""]
    with pytest.raises(ValueError, match="unknown utility bleurt; did you mean bleu"):
        translator.translate(["a"], num_samples=2, utility="bleurt")
    monkeypatch.undo()
    assert translator.translate([], num_samples=2) == []


def test_progress_rises_to_one():
    seen: list[float] = []
    make_translator().samples(texts(3), num_samples=2, batch_size=4, callback=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert min(seen) < 0.3
    none: list[float] = []
    make_translator().samples(["", " "], callback=none.append)
    assert none == []


def test_what_does_not_fit_is_said():
    translator = make_translator()
    assert translator.num_tokens("Today is December the thirteenth.") == 7
    assert translator.encode("Today is December the thirteenth.")[6:] == [EOS, *[PAD] * 25]
    with pytest.raises(ValueError, match=r"has 61 tokens, this model reads at most 32; split it"):
        translator.translate(["Today " * 60])
    assert len(translator.encode("Today " * 31)) == 32
    without = make_translator(**{"objective.conditioning_dropout": 0.0})
    with pytest.raises(ValueError, match="guidance needs a model trained with"):
        without.translate(["Today"], guidance_scale=2.0)


# Translations of a baseline


def greedy(translator: AutoregressiveTranslator, text: str) -> list[int]:
    """The likeliest token at each place, by whole passes of the network."""
    source, target = torch.tensor([translator.encode(text)]), torch.full((1, 32), PAD)
    for i in range(32):
        logits = translator.model(source, target)[0, i]
        logits[PAD] = -torch.inf
        target[0, i] = logits.argmax()
        if target[0, i] == EOS:
            break
    return target[0].tolist()


def test_a_baseline_searches_is_greedy_or_draws():
    translator, given = make_translator("autoregressive"), texts(3)
    source = torch.tensor([translator.encode(text) for text in given])
    best = beam_search(translator.model, source, BeamConfig()).best()
    searched = translator.translate(given)
    assert searched == [translator.decode(row) for row in best.tolist()]
    assert translator.translate(given, batch_size=1) == searched
    found = translator.translate(given, temperature=0.0)
    assert found == [translator.decode(greedy(translator, text)) for text in given]
    assert found != searched
    assert translator.translate(given, beam_size=1) != translator.translate(given, beam_size=5)
    drawn = translator.samples(given, num_samples=4)
    assert len({text for each in drawn for text in each}) == 12
    assert isinstance(translator.settings({}), BeamConfig)
    assert isinstance(translator.settings({}, 2), DecodingConfig)
    assert isinstance(translator.settings({"nucleus": 0.9}), DecodingConfig)
    with pytest.raises(ValueError, match="unknown setting beam_sise; did you mean beam_size"):
        translator.settings({"beam_sise": 2})


# Compiled: in a process of its own, since torch cannot compile the tests' checks of shapes


def compile_whole() -> None:
    """Each task's loss is one graph; the gradients are those of plain ones."""
    for model in MODELS:
        task, tokens = make_translation_task(model)
        weights = list(task.model.parameters())
        compiled = torch.compile(task.loss, dynamic=False, fullgraph=True, backend="eager")
        for drawn in (*task.draw(0), *task.draw(1)):
            results = []
            for loss in (task.loss, compiled):
                total, per_sequence = loss(tokens, drawn)
                gradients = torch.autograd.grad(total, weights)
                results.append((total, per_sequence, *gradients))
            for one, other in zip(*results, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        rounded, tokens = make_translation_task(model, dtype=torch.bfloat16)
        compiled = torch.compile(rounded.loss, dynamic=False, fullgraph=True, backend="eager")
        assert torch.isfinite(compiled(tokens, rounded.draw(0)[0])[0])


def test_the_compiled_losses_are_the_losses():
    folders = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    command = "import test_translator; test_translator.compile_whole()"
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
