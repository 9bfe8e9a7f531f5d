"""The language of stories: its probability by definition, the law of what is drawn, its entropy."""

import itertools
import math
import random

import pytest
import torch
from scipy.stats import chi2
from tiny_stories import BLOCKS, HEADS, WIDTH, tiny_model, tiny_tokenizer, weights

from cdcd.languages.story_model import EPSILON, THETA, StoryModel, story_log_probs
from cdcd.languages.story_sampling import (
    EMPTY,
    ENDED,
    KEPT,
    NOT_CANONICAL,
    TOO_LONG,
    Draws,
    StorySampler,
    invert,
    read_draws,
    score_stories,
    story_entropy,
    uniform_numbers,
)
from cdcd.languages.story_tokenizer import BEGIN, END, StoryTokenizer

# The model


def naive_logits(drawn: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """The same network by loops over positions and heads, its rotation by complex numbers."""

    def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + EPSILON).sqrt() * weight

    def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(-1, 2))
        exponents = torch.arange(0, len(x), 2, dtype=torch.float64) / len(x)
        turned = pairs * torch.polar(torch.ones(len(pairs)).double(), position * THETA**-exponents)
        return torch.view_as_real(turned).flatten()

    dim = WIDTH // HEADS
    states = [drawn["emb"][token].clone() for token in tokens]
    for block in range(BLOCKS):
        w = {name: drawn[name][block] for name in drawn if name not in ("emb", "n")}
        keys, values = [], []
        for position, h in enumerate(states):
            x = normalised(h, w["an"])
            q, k, v = ((w[name] @ x).split(dim) for name in "qkv")
            keys.append([rotated(each, position) for each in k])
            values.append(v)
            mixed = []
            for head in range(HEADS):
                query = rotated(q[head], position)
                scores = torch.stack([query @ key[head] for key in keys]) / math.sqrt(dim)
                shares = scores.softmax(0)
                mixed.append(sum(s * each[head] for s, each in zip(shares, values, strict=True)))
            h = h + w["o"] @ torch.cat(mixed)
            x = normalised(h, w["fn"])
            gate = w["w1"] @ x
            states[position] = h + w["w2"] @ (gate * gate.sigmoid() * (w["w3"] @ x))
    return torch.stack([drawn["emb"] @ normalised(h, drawn["n"]) for h in states])


def test_logits_are_those_of_a_naive_llama():
    drawn = weights(20)
    tokens = [1, 7, 3, 19, 3, 11, 2, 5]
    found = StoryModel(drawn, HEADS, dtype=torch.float64).logits(torch.tensor([tokens]))[0]
    torch.testing.assert_close(found, naive_logits(drawn, tokens), rtol=1e-6, atol=1e-6)
    # Power: positions and heads matter.
    other = StoryModel(drawn, 1, dtype=torch.float64).logits(torch.tensor([tokens]))[0]
    assert (found - other).abs().max() > 0.01


def test_reading_one_by_one_equals_reading_at_once():
    model = tiny_model(20)
    tokens = torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(3)
    stepwise = [
        model.next_logits(tokens[:, i], torch.tensor([i]), cache.first(12)) for i in range(9)
    ]
    torch.testing.assert_close(torch.stack(stepwise, 1), model.logits(tokens))


# The tokenizer


def merged_naively(tokenizer: StoryTokenizer, text: str) -> list[int]:
    """Merges the whole text at once, pair by pair."""
    pieces = [c.encode() for c in f" {text}"]
    while True:
        pairs = [
            (tokenizer.tokens.get(a + b), i) for i, (a, b) in enumerate(itertools.pairwise(pieces))
        ]
        known = [(-tokenizer.scores[token], i) for token, i in pairs if token is not None]
        if not known:
            break
        _, i = min(known)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    tokens = []
    for piece in pieces:
        token = tokenizer.tokens.get(piece)
        tokens += [3 + byte for byte in piece] if token is None else [token]
    return tokens


def test_tokens_of_words_are_those_of_the_whole_text():
    tokenizer, rng = tiny_tokenizer(), random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices("aabbc  .é\n", k=rng.randrange(1, 30)))
        tokens = tokenizer.encode(text)
        assert tokens == merged_naively(tokenizer, text)
        assert tokenizer.decode(tokens) == text
    assert tokenizer.encode("") == []


def test_only_canonical_tokens_have_a_text():
    tokenizer = tiny_tokenizer()
    canonical = tokenizer.encode("abc a")
    assert len(canonical) < 5
    assert tokenizer.decode(canonical) == "abc a"
    letters = [tokenizer.tokens[c.encode()] for c in " abc a"]
    assert tokenizer.decode_bytes(letters) == b" abc a"
    assert tokenizer.decode(letters) is None
    assert tokenizer.decode([3 + 0xC3]) is None


# The law of what is drawn


def test_inversion_draws_the_token_at_which_the_distribution_function_passes():
    """Over an even grid of uniform numbers, each token has its probability's share of them."""
    vocab, count = 300, 40_000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    exact = logits.softmax(0)
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, log_probs = [], []
    for part in grid.split(20_000):
        drawn, log_prob = invert(logits.expand(len(part), -1), part)
        tokens.append(drawn)
        log_probs.append(log_prob)
    drawn = torch.cat(tokens)
    shares = torch.bincount(drawn, minlength=vocab) / count
    assert (shares - exact).abs().max() <= 1.01 / count
    torch.testing.assert_close(torch.cat(log_probs), exact.log()[drawn])
    assert (drawn.diff() >= 0).all()


VOCAB, DRAWN, COUNT = 5, 3, 8_192


def exact_probabilities(model: StoryModel) -> torch.Tensor:
    """The probability of every sequence of `DRAWN` tokens after `BEGIN`."""
    sequences = torch.tensor(list(itertools.product(range(VOCAB), repeat=DRAWN)))
    rows = torch.cat([torch.full((len(sequences), 1), BEGIN), sequences], 1)
    return story_log_probs(model, rows).sum(1).exp()


def drawn_counts(model: StoryModel) -> tuple[torch.Tensor, Draws]:
    draws = StorySampler(model, COUNT, length=DRAWN).draw(uniform_numbers(3, 0, COUNT))
    numbers = (draws.tokens * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1)
    return torch.bincount(numbers, minlength=VOCAB**DRAWN), draws


def chi_square(counts: torch.Tensor, exact: torch.Tensor) -> float:
    """The probability of so large a deviation, rare sequences together."""
    is_common = exact * COUNT >= 5
    expected = torch.cat([exact[is_common], exact[~is_common].sum()[None]]) * COUNT
    found = torch.cat([counts[is_common], counts[~is_common].sum()[None]])
    statistic = ((found - expected).square() / expected.clamp(min=1e-9)).sum()
    return float(chi2.sf(float(statistic), len(expected) - 1))


@pytest.fixture(scope="module")
def five_words() -> StoryModel:
    return tiny_model(VOCAB, spread=0.4)


def test_sequences_are_drawn_with_their_probability(five_words):
    exact = exact_probabilities(five_words)
    assert float(exact.sum()) == pytest.approx(1, abs=1e-9)
    counts, draws = drawn_counts(five_words)
    assert chi_square(counts, exact) > 0.001
    numbers = (draws.tokens * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1)
    torch.testing.assert_close(draws.log_probs.sum(1), exact.log()[numbers])


def test_a_wrong_temperature_would_be_noticed(five_words):
    colder = tiny_model(VOCAB, spread=0.4)
    colder.norms["n"] = colder.norms["n"] * 1.1
    assert chi_square(drawn_counts(colder)[0], exact_probabilities(five_words)) < 1e-6


def test_draws_depend_on_their_number_alone():
    whole = uniform_numbers(1, 0, 256)
    assert torch.equal(whole[128:], uniform_numbers(1, 128, 128))
    assert not torch.equal(whole[:64], uniform_numbers(2, 0, 64))
    with pytest.raises(ValueError, match="64 at a time, not 10"):
        uniform_numbers(1, 0, 10)


def test_each_stretch_is_recorded_once_and_then_replayed(five_words):
    """A CUDA graph replaces the work of a step: nothing else may be done between replays."""
    recorded, replayed = [], []

    def record(work):
        recorded.append(work)
        return lambda: (replayed.append(recorded.index(work)), work())

    uniform = uniform_numbers(0, 0, 64)
    found = StorySampler(five_words, 64, length=100, record=record).draw(uniform)
    assert (len(recorded), replayed) == (2, [0] * 64 + [1] * 36)
    plain = StorySampler(five_words, 64, length=100)
    plain.draw(uniform.flip(0))
    assert torch.equal(plain.draw(uniform).tokens, found.tokens)


# What is kept, and its entropy


def test_the_rule_by_which_stories_are_kept():
    tokenizer = tiny_tokenizer()
    encoded = tokenizer.encode("abc a")
    letters = [tokenizer.tokens[c.encode()] for c in " abc a"]
    rows = [[*encoded, BEGIN], letters, [*encoded, END], [BEGIN], [*letters, BEGIN]]
    padded = torch.tensor([(row + [encoded[0]] * 8)[:8] for row in rows])
    padded[1] = encoded[0]
    log_probs = -torch.ones(5, 8, dtype=torch.float64)
    stories = read_draws(Draws(padded, log_probs), tokenizer)
    assert [each.outcome for each in stories] == [KEPT, TOO_LONG, ENDED, EMPTY, NOT_CANONICAL]
    assert stories[0].text == "abc a"
    assert stories[0].tokens == rows[0]
    assert [each.log_prob for each in stories] == [-len(rows[0]), -8, -len(rows[2]), -1, -7]


def test_the_entropy_of_kept_stories_is_that_of_their_law(five_words):
    """Of the sequences of two words some are kept: their entropy is known by enumeration."""
    exact = exact_probabilities(five_words)
    is_kept = torch.arange(len(exact)) % 3 > 0
    law = exact[is_kept] / exact[is_kept].sum()
    entropy = -float((law * law.log()).sum())
    _, draws = drawn_counts(five_words)
    numbers = (draws.tokens * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1)
    kept = draws.tokens[is_kept[numbers]]
    log_probs = draws.log_probs[is_kept[numbers]].sum(1)
    scores = score_stories(five_words, kept.tolist(), 100)
    ones = torch.ones(len(kept), dtype=torch.long)
    found = story_entropy(COUNT, len(kept), log_probs, scores, DRAWN * ones, 7 * ones)
    assert found.nats_per_story.low < entropy < found.nats_per_story.high
    assert found.nats_per_story.high - found.nats_per_story.low < 0.1
    # Power: without ln Z the interval would be elsewhere.
    assert -float(exact[is_kept].sum().log()) > 0.2
    assert found.kept_share.low < float(exact[is_kept].sum()) < found.kept_share.high
    assert found.nats_per_token.value == pytest.approx(found.nats_per_story.value / DRAWN)
    assert found.bits_per_byte.value == pytest.approx(found.nats_per_story.value / 7 / math.log(2))
    assert abs(found.divergence.value) < 1e-12


def test_the_divergence_is_that_of_the_law_that_drew(five_words):
    """Drawn by one model and scored by another, stories show the divergence, known by enumeration."""
    other = tiny_model(VOCAB, spread=0.4)
    other.norms["n"] = other.norms["n"] * 1.3
    exact, wrong = exact_probabilities(other), exact_probabilities(five_words)
    divergence = float((exact * (exact / wrong).log()).sum()) / DRAWN
    _, draws = drawn_counts(other)
    scores = score_stories(five_words, draws.tokens.tolist(), 1000)
    ones = torch.ones(COUNT, dtype=torch.long)
    found = story_entropy(COUNT, COUNT, draws.log_probs.sum(1), scores, DRAWN * ones, ones)
    assert found.divergence.low < divergence < found.divergence.high
    assert divergence > 0.003
