"""Mask-predict decoding against an exact oracle: a joint distribution whose conditionals are summed up."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from cdcd.config import MaskPredictConfig
from cdcd.diffusion.estimator import Estimate
from cdcd.inference.mask_predict import mask_predict
from cdcd.inference.rounds import choose
from cdcd.seeding import generator_for

LENGTH, VOCAB = 4, 3
TEXTS = torch.tensor(list(product(range(VOCAB), repeat=LENGTH)))
ROWS = 64


def joint(seed: int = 0) -> torch.Tensor:
    """The probability of each text."""
    generator = generator_for("joint", seed)
    return torch.softmax(2 * torch.randn(len(TEXTS), generator=generator).double(), 0)


class Oracle:
    """Predicts every token from those that are given, exactly; its state counts the calls."""

    def __init__(self, p: torch.Tensor) -> None:
        self.p, self.calls = p, 0
        self.asked: list[torch.Tensor] = []

    def marginals(self, tokens: torch.Tensor, is_noisy: torch.Tensor) -> torch.Tensor:
        agrees = ((tokens[:, None] == TEXTS) | is_noisy[:, None]).all(-1)
        weights = agrees * self.p
        one_hot = torch.nn.functional.one_hot(TEXTS, VOCAB).double()
        found = torch.einsum("bt,tlv->blv", weights, one_hot)
        return found / weights.sum(1)[:, None, None]

    def __call__(self, tokens: torch.Tensor, is_noisy: torch.Tensor):
        self.asked.append(is_noisy)

        def estimator(x, t, state):
            assert state == (None if self.calls == 0 else self.calls)
            self.calls += 1
            return Estimate(self.marginals(tokens, is_noisy).log(), x, self.calls)

        return estimator


def inputs(rows: int = ROWS, given: int | None = None):
    """Tokens, where they are noisy, and the other inputs; one token can be given."""
    generator = generator_for("inputs", rows)
    tokens = torch.randint(VOCAB, (rows, LENGTH), generator=generator)
    is_noisy = torch.ones(rows, LENGTH, dtype=torch.bool)
    if given is not None:
        is_noisy[:, given] = False
    u = torch.rand(rows, LENGTH, generator=generator, dtype=torch.float64)
    return (tokens, is_noisy, torch.zeros(rows, LENGTH, 2).double(), torch.ones(rows).double()), u


def decode(p: torch.Tensor, *, given: int | None = None, rows: int = ROWS, never=(), **settings):
    oracle = Oracle(p)
    start, u = inputs(rows, given)
    config = MaskPredictConfig(**settings)
    return mask_predict(oracle, *start, config, u=u, never=never), start, oracle


def probability(p: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of each row's text."""
    return ((tokens[:, None] == TEXTS).all(-1) * p).sum(1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("given", [None, 2])
def test_one_token_a_round_follows_the_chain_rule(temperature, given):
    p = joint()
    found, (tokens, is_noisy, *_), oracle = decode(
        p, given=given, num_rounds=LENGTH, temperature=temperature
    )
    assert torch.equal(found.tokens[~is_noisy], tokens[~is_noisy])
    whole = probability(p, found.tokens)
    if given is not None:
        of_given = torch.zeros(VOCAB).double().index_add(0, TEXTS[:, given], p)
        whole = whole / of_given[tokens[:, given]]
    count = is_noisy.sum(1)
    torch.testing.assert_close((found.confidence * count).exp(), whole)
    assert oracle.calls == count[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_most_confident_token_is_first(seed):
    p = joint(seed)
    found, _, oracle = decode(p, rows=1, num_rounds=LENGTH)
    tokens, is_noisy = torch.zeros(1, LENGTH).long(), torch.ones(1, LENGTH) > 0
    for asked in oracle.asked:
        assert torch.equal(asked, is_noisy)
        marginals = oracle.marginals(tokens, is_noisy)
        free = is_noisy[0].nonzero()[:, 0]
        place = max(free.tolist(), key=lambda i: marginals[0, i].max())
        token = int(marginals[0, place].argmax())
        tokens[0, place], is_noisy[0, place] = token, False
    assert torch.equal(found.tokens, tokens)


def test_one_round_takes_every_likeliest_token():
    p = joint()
    found, (tokens, is_noisy, *_), oracle = decode(p, num_rounds=1)
    assert torch.equal(found.tokens, oracle.marginals(tokens, is_noisy).argmax(-1))
    assert oracle.calls == 1


def test_two_rounds_predict_half_each():
    p = joint()
    found, (_, is_noisy, *_), oracle = decode(p, num_rounds=2)
    assert oracle.calls == 2
    tokens = torch.zeros(ROWS, LENGTH).long()
    first = oracle.marginals(tokens, is_noisy)
    is_first = first.amax(-1).argsort(1, descending=True).argsort(1) < LENGTH // 2
    tokens = torch.where(is_first, first.argmax(-1), tokens)
    second = oracle.marginals(tokens, ~is_first).argmax(-1)
    assert torch.equal(found.tokens, torch.where(is_first, tokens, second))


def test_no_more_rounds_than_tokens():
    _, _, oracle = decode(joint(), num_rounds=100)
    assert oracle.calls == LENGTH


def test_tokens_that_are_never_predicted():
    found, *_ = decode(joint(), num_rounds=2, temperature=3.0, never=(1,))
    assert set(found.tokens.unique().tolist()) == {0, 2}


def test_drawn_tokens_have_their_probabilities():
    """At a temperature T those are p^(1/T), brought to sum to one."""
    p = torch.tensor([0.6, 0.3, 0.1, 0.0]).double()
    u = (torch.arange(10_000).double() + 0.5) / 10_000
    drawn, log_p = choose(p.log().expand(10_000, 4), u, temperature=0.5)
    expected = p.square() / p.square().sum()
    torch.testing.assert_close(
        torch.bincount(drawn, minlength=4) / 10_000.0, expected.float(), atol=2e-4, rtol=0
    )
    torch.testing.assert_close(log_p, p.log()[drawn])


def test_rounding_draws_nothing_impossible():
    p = torch.tensor([[0.5, 0.5, 0.0]])
    drawn, _ = choose(p.log(), torch.ones(1).nextafter(torch.zeros(1)), temperature=1.0)
    assert int(drawn) == 1


def test_settings_that_make_no_sense():
    config = MaskPredictConfig(num_rounds=7)
    for name, value in (
        *(("temperature", -1), ("confidence_weight", -1)),
        *(("num_lengths", 0), ("num_rounds", 0)),
    ):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            replace(config, **{name: value})
