"""`cdcd evaluate --likelihood`: every method against a computation by hand, and what it must not depend on."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from tiny import cdcd_main, silent, train_tiny

from cdcd.config import RunConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.masked import MaskDraws, masked_bound, masks_of
from cdcd.evaluation.judge import Judge, RunReader, num_bytes
from cdcd.evaluation.likelihood import METHODS, LikelihoodConfig, LikelihoodEvaluation, Part
from cdcd.evaluation.texts import Texts
from cdcd.languages import markov_chain
from cdcd.networks.capture import Recorder
from cdcd.settings import hints_of

MARKOV = {
    "data.source": "markov",
    "data.layout": "stream",
    "data.length": 12,
    "data.valid_share": 0.3,
    "training.steps": 40,
    "training.batch_size": 32,
    "training.learning_rate": 1e-2,
    "training.log_every": 100,
    "training.checkpoint_every": 0,
}
AUTOREGRESSIVE = {"model": "autoregressive"}
NAMES = ["left to right", "random order", "diffusion bound"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A diffusion and an autoregressive run that have learnt a little of the Markov language."""
    place = tmp_path_factory.mktemp("likelihood")
    return train_tiny(place / "run", MARKOV), train_tiny(place / "ar", MARKOV | AUTOREGRESSIVE)


@pytest.fixture(scope="module")
def masked_run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("masked") / "run", MARKOV | {"model": "masked"})


def evaluation(runs, **settings):
    config = LikelihoodConfig(**({"num_samples": 20, "num_levels": 5} | settings))
    return LikelihoodEvaluation([runs[0]], config, baseline=runs[1], console=silent())


def nats_of(this: LikelihoodEvaluation, name: str, system: int = 0) -> dict[str, torch.Tensor]:
    """The nats of each sequence, by one method."""
    chosen = this.systems[system]
    [method] = [each for each in METHODS[chosen.config.model] if each.name == name]
    return this._nats(chosen, method, lambda share: None)


def total_of(this: LikelihoodEvaluation, name: str, system: int = 0) -> torch.Tensor:
    return torch.stack([*nats_of(this, name, system).values()]).sum(0)


def test_every_kind_of_model_has_a_method():
    assert set(METHODS) == set(get_args(hints_of(RunConfig)["model"]))


def test_rows_are_the_language_and_every_method(runs):
    this = evaluation(runs)
    report = this.report()
    names = [(row.system, row.method, row.is_bound) for row in report.rows]
    assert names == [
        ("the language", "exact", False),
        *(("cdcd", name, name == "diffusion bound") for name in NAMES),
        ("baseline", "left to right", False),
    ]
    tokens, texts = 20 * 12, this.counted
    log_probs = markov_chain(12).log_prob
    words = {word: state for state, word in enumerate(markov_chain(12).words)}
    states = [[words[this.tokenizer.piece(t)] for t in row[:-1]] for row in texts.tokens.tolist()]
    expected = -log_probs(torch.tensor(states)).sum() / tokens
    assert report.rows[0].mean("nats_per_token")[0] == pytest.approx(float(expected))
    size = sum(num_bytes(texts, this.tokenizer))
    for row in report.rows:
        per_token, per_byte = row.mean("nats_per_token")[0], row.mean("bits_per_byte")[0]
        assert per_byte == pytest.approx(per_token * tokens / math.log(2) / size)
        assert sum(row.measured[0].parts.values()) == pytest.approx(per_token)
        assert per_token > report.rows[0].mean("nats_per_token")[0] or row is report.rows[0]


def test_an_autoregressive_model_is_scored_as_a_judge_scores(runs):
    this = evaluation(runs, protocol="half")
    judge = Judge("ar", RunReader(this.systems[1].model))
    torch.testing.assert_close(total_of(this, "left to right", 1), judge.nats(this.texts))


def test_random_orders_of_a_masked_model_have_its_bound_as_their_mean(runs, masked_run):
    """Over all numbers of masked tokens and many draws of them; left to right is another number."""
    this = evaluation([runs[0], masked_run], num_samples=2)
    model, tokens = this.systems[1].model, this.texts.tokens
    orders = []
    for seed in range(150):
        this.config = replace(this.config, seed=seed)
        orders.append(total_of(this, "random order", 1))
    generator, is_open = torch.Generator().manual_seed(0), torch.ones(900, 12, dtype=torch.bool)
    counts = torch.arange(900) % 12 + 1
    draws = MaskDraws(
        is_masked=masks_of(is_open, counts, generator=generator),
        num_open=torch.full((900,), 12),
    )
    for row, exact in zip(tokens, torch.stack(orders, 1), strict=True):
        bound = masked_bound(model.network, row.expand(900, -1), draws).nats
        spread = (bound.view(-1, 12).mean(1).var() / 75 + exact.var() / len(exact)).sqrt()
        assert abs(bound.mean() - exact.mean()) < 4 * spread
    left = total_of(this, "left to right", 1)
    assert not torch.allclose(left, torch.stack(orders).mean(0), rtol=1e-3)


def test_given_tokens_leave_the_terms_of_the_others_as_they_are(runs):
    """ln p(whole) = ln p(first half) + ln p(second half | first half), term by term."""
    whole, half = evaluation(runs), evaluation(runs, protocol="half")
    is_second = (torch.arange(12) >= 6).expand(20, 12)
    assert torch.equal(half.counted.is_generated, is_second)
    model = whole.systems[0].model
    config, method = whole.config, METHODS["diffusion"][0]
    [part] = whole._parts()
    rest = method.nats(model, replace(part, is_counted=is_second), config)["tokens"]
    torch.testing.assert_close(rest, total_of(half, "left to right"))


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_does_not_depend_on_its_batch(runs, name):
    at_once, parts = evaluation(runs), evaluation(runs, batch_size=7)
    torch.testing.assert_close(total_of(at_once, name), total_of(parts, name))
    other = total_of(evaluation(runs, seed=1), name)
    assert not torch.allclose(total_of(at_once, name), other)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_calls_give_the_same_likelihood(runs, name):
    """Also where an evaluation overwrites the logits of the one before, as a CUDA graph does."""
    plain, recorded = evaluation(runs, batch_size=7), evaluation(runs, batch_size=7)
    recorded.systems[0].model.sampler.recorder = Recorder(overwriting)
    torch.testing.assert_close(total_of(recorded, name), total_of(plain, name))


def overwriting(work):
    """A recording whose logits are those of its last call."""
    kept = []

    def replay():
        estimate = work()
        kept[:] = kept or [torch.empty_like(estimate.logits)]
        return replace(estimate, logits=kept[0].copy_(estimate.logits))

    return replay


@pytest.mark.parametrize("kind", [0, 1], ids=["diffusion", "masked"])
@pytest.mark.parametrize("order", [0, 1])
def test_noise_and_order_do_not_depend_on_the_tokens(runs, masked_run, kind, order):
    """The likelihoods of all texts that differ in their last two tokens sum to that of their beginning."""
    this = evaluation([runs[0], masked_run])
    system, vocab = this.systems[kind], this.tokenizer.vocab_size
    model, method = system.model, METHODS[system.config.model][order]
    begin = this.texts.tokens[:1, :-2].expand(vocab**2, -1)
    ends = torch.cartesian_prod(torch.arange(vocab), torch.arange(vocab))
    texts = torch.cat([begin, ends], 1)
    is_noisy = (torch.arange(12) >= 10).expand_as(texts)

    class SameSequence(Part):
        """Texts that all are the first sequence."""

        def seeds(self, seed: int) -> list[tuple[int, ...]]:
            return [(seed, 0)] * len(self.texts)

    part = SameSequence(Texts(texts, is_noisy), is_noisy, range(len(texts)))
    nats = method.nats(model, part, this.config)["tokens"]
    assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_padding_costs_only_where_it_is_predicted(tmp_path):
    """Left to right the likelihood ends with the document, and tokens are those of the text alone."""
    tales = {"data.num_documents": 100, "data.valid_share": 0.3, "data.length": 48}
    run = train_tiny(tmp_path / "run", tales | {"data.layout": "documents"})
    config = LikelihoodConfig(num_samples=10, num_levels=2)
    this = LikelihoodEvaluation([run], config, console=silent())
    is_padding = this.texts.tokens == PAD
    assert is_padding.any()
    assert not (is_padding & this.counted.is_generated).any()
    assert (this.counted.tokens[this.counted.is_generated] == EOS).sum() == len(this.counted)
    [part], model = this._parts(), this.systems[0].model
    everything = replace(part, is_counted=torch.ones_like(is_padding))
    left, random, _ = (each.nats for each in METHODS["diffusion"])
    padded = is_padding.any(1)
    left_text, left_all = (left(model, each, config)["tokens"] for each in (part, everything))
    assert (left_all > left_text)[padded].all()
    assert torch.equal(left_all[~padded], left_text[~padded])
    random_text, random_all = (random(model, each, config)["tokens"] for each in (part, everything))
    assert torch.equal(random_all, random_text)


# The command


def test_the_command_writes_its_table_as_json(runs, tmp_path, capsys):
    run, baseline = runs
    small = ("--num-samples", 12, "--num-levels", 3, "--out", tmp_path)
    assert cdcd_main("evaluate", run, "--baseline", baseline, "--likelihood", *small) == 0
    out = capsys.readouterr().out
    assert "≤" in out
    assert "12 held-out sequences of 12 tokens, nothing given: 144 tokens" in out
    report = json.loads((tmp_path / "likelihood.json").read_text())
    assert report["protocol"]["num_levels"] == 3
    bound = report["rows"][3]
    assert set(bound["measured"][0]["parts"]) == {"prior", "diffusion", "tokens"}
    assert bound["mean"]["nats_per_token"]["value"] == pytest.approx(
        sum(bound["measured"][0]["parts"].values())
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--likelihood", "--judge", "x"), "--judge: not for --likelihood"),
        (("--likelihood", "--num-steps", 3), "--num-steps: not for --likelihood"),
        (("--likelihood", "--sweep", "nucleus=1"), "--sweep: not for --likelihood"),
        (("--likelihood", "--num-levels", 0), "num_levels is 0, it must be at least 1"),
        (("--likelihood", "--num-samples", 100_000), "lower --num-samples"),
        (("--judge", "x", "--num-levels", 3), "--num-levels: not for samples"),
    ],
)
def test_options_of_another_evaluation_are_refused(runs, tmp_path, capsys, options, message):
    assert cdcd_main("evaluate", runs[0], "--out", tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_model_without_masks_has_a_bound_alone(tmp_path, capsys):
    run = train_tiny(tmp_path / "run", MARKOV | {"objective.masking": "none", "training.steps": 2})
    config = LikelihoodConfig(num_samples=5, num_levels=2)
    this = LikelihoodEvaluation([run], config, console=silent())
    assert [row.method for row in this.report().rows] == ["exact", "diffusion bound"]
    half = ("--protocol", "half", "--num-samples", 5)
    assert cdcd_main("evaluate", run, "--likelihood", *half) == 2
    assert "choose --protocol none" in capsys.readouterr().err
