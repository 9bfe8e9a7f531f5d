"""Training of masked models: it learns, and its validation is the bound on −ln p."""

import json
import math

import pytest
import torch
from tiny import cdcd_main, metrics, start_tiny, tiny_config, tiny_options, train_tiny

from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.logits import take
from cdcd.training import validation
from cdcd.training.build import build_model
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.tasks import MaskedTextTask
from cdcd.training.validation import validate_masked

MASKED = {"model": "masked"}
VOCAB = 20
TOKENS = torch.tensor([[5, 6, 7, EOS, PAD, PAD], [5, EOS, PAD, PAD, PAD, PAD], [5, 6, 7, 8, 9, 10]])


def test_it_learns_from_a_uniform_start(tmp_path):
    changes = {"training.steps": 60, "training.log_every": 10, "training.learning_rate": 1e-2}
    run = train_tiny(tmp_path / "run", MASKED | changes)
    vocab_size = RunDirectory(run).vocab_size
    rows = metrics(run)
    first = start_tiny(tmp_path / "first", MASKED)
    assert float(first.train_step()) == pytest.approx(math.log(vocab_size), abs=1e-4)
    assert rows[-2]["loss"] < 0.7 * math.log(vocab_size)


# Validation


def task() -> MaskedTextTask:
    config = tiny_config(MASKED | {"data.length": 6})
    return MaskedTextTask(
        config, build_model(config, VOCAB), device=torch.device("cpu"), dtype=torch.float32
    )


def test_the_validation_loss_is_the_bound_over_the_tokens_of_the_text():
    """A network that knows nothing needs ln V nats for every position, also of padding: 18 for 12 tokens."""
    report = task().validate(TOKENS)
    assert report.loss == pytest.approx(18 / 12 * math.log(VOCAB), rel=1e-5)
    assert report.num_tokens == 12
    assert len(report.shares) == validation.NUM_LEVELS
    for share in report.shares:
        assert (share.loss, share.entropy) == pytest.approx([math.log(VOCAB)] * 2, rel=1e-5)
    shares = [share.share for share in report.shares]
    assert shares == sorted(shares)
    assert sum(shares) / validation.NUM_LEVELS == pytest.approx(3.5 / 6, abs=0.1)


def test_a_network_that_knows_padding_alone_pays_for_the_text():
    def network(tokens, is_masked, *, positions=None):
        logits = torch.zeros(*tokens.shape, VOCAB)
        logits[TOKENS == PAD] = 40.0 * torch.nn.functional.one_hot(torch.tensor(PAD), VOCAB)
        return logits if positions is None else take(logits, positions)

    report = validate_masked(network, TOKENS, task().config)
    # The masks of three sequences are a sample: text and padding are not masked in proportion.
    assert report.loss == pytest.approx(math.log(VOCAB), rel=0.2)


def test_every_number_of_masked_tokens_is_validated():
    """So that the mean over the fixed masks is the bound itself, where there are enough sequences."""
    seen = []

    def network(tokens, is_masked, *, positions=None):
        seen.extend(is_masked.sum(1).tolist())
        return take(torch.zeros(*tokens.shape, VOCAB), positions)

    validate_masked(network, TOKENS.repeat(10, 1), task().config)
    counts = torch.bincount(torch.tensor(seen), minlength=7)
    assert counts.tolist() == [0] + [5 * validation.NUM_LEVELS] * 6


def test_validation_is_the_same_every_time():
    evaluated = task()
    assert evaluated.validate(TOKENS) == evaluated.validate(TOKENS)


# The command line


def test_train_info_and_plot(tmp_path, capsys):
    run = tmp_path / "run"
    assert cdcd_main("train", "--out", run, *tiny_options(MASKED)) == 0
    assert "try: cdcd sample" in capsys.readouterr().out
    assert cdcd_main("info", run, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["task"], shown["model"], shown["step"]) == ("text", "masked", 6)
    assert cdcd_main("plot", run) == 0
    assert {each.name for each in run.glob("*.png")} == {"training.png", "denoising.png"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "translation"}, "model masked is of texts alone: for task translation choose"),
        ({"network.tied_head": True}, "tied_head is for autoregressive models; leave it off"),
    ],
)
def test_configurations_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(MASKED | changes)
