"""Beam search against the scores of all sequences there are; targets that are drawn."""

import itertools
from copy import deepcopy
from functools import cache

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from cdcd.config import BeamConfig, DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference.beam import Hypotheses, beam_search
from cdcd.inference.decoding import decode_targets
from cdcd.networks.attention import KeyValueCache
from cdcd.networks.autoregressive_text import token_losses
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.encoder_decoder import EncodedSource, Seq2SeqConfig
from cdcd.seeding import generator_for

BATCH, SOURCE, LENGTH, VOCAB = 3, 4, 6, 5
SMALL = Seq2SeqConfig(
    num_encoder_blocks=1, num_decoder_blocks=2, width=16, hidden=24, num_heads=2, dropout=0.3
)
WORDS = [token for token in range(VOCAB) if token not in (PAD, EOS)]
EXHAUSTIVE = len(WORDS) ** LENGTH
"""A beam that has room for every sequence."""
NUM_TRANSFORMERS = 2
SEEDS = pytest.mark.parametrize("seed", range(5))
ALPHAS = pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 3.0])


@cache
def random_logits(seed: int, source: tuple[int, ...], beginning: tuple[int, ...]) -> Tensor:
    generator = generator_for(seed, *source, "then", *beginning)
    logits = 2 * torch.randn(VOCAB, generator=generator, dtype=torch.float64)
    logits[EOS] -= 1.0
    return logits


class RandomLanguage(AutoregressiveTranslationNetwork):
    """A translator whose every beginning has logits of its own; its caches hold what it has read.

    A network's logits depend mostly on the last token: it would forgive a search that mixes up the rest.
    """

    seed = 0

    def encode(self, source: Tensor) -> EncodedSource:
        keys = source[None, :, None, :, None].double()
        return EncodedSource(keys, keys, source >= 0, (source >= 0).sum(1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.stack([random_logits(self.seed, (*s,), (*t[:i],)) for i in range(len(t))])
                for s, t in zip(source.tolist(), target.tolist(), strict=True)
            ]
        )

    def next_logits(
        self, inputs: Tensor, positions: Tensor, source: EncodedSource, caches: list[KeyValueCache]
    ) -> Tensor:
        place = int(positions)
        caches[0].keys[:, 0, place, 0] = inputs[:, 0].double()
        read = caches[0].keys[:, 0, 1 : place + 1, 0].long().tolist()
        sources = source.keys[0, :, 0, :, 0].long().tolist()
        copies = len(read) // len(sources)
        return torch.stack(
            [
                random_logits(self.seed, (*sources[row // copies],), (*each,))
                for row, each in enumerate(read)
            ]
        )


@cache
def network(seed: int) -> AutoregressiveTranslationNetwork:
    """In double precision: a Transformer whose logits are far from equal, then random languages."""
    torch.manual_seed(seed)
    kind = AutoregressiveTranslationNetwork if seed < NUM_TRANSFORMERS else RandomLanguage
    model = kind(SMALL, vocab_size=VOCAB, source_length=SOURCE, length=LENGTH).double()
    if isinstance(model, RandomLanguage):
        model.seed = seed
    generator = generator_for(seed, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return model.requires_grad_(False).eval()


def sources(seed: int = 0) -> Tensor:
    return torch.randint(1, VOCAB, (BATCH, SOURCE), generator=generator_for(seed, "source"))


def all_targets() -> Tensor:
    """Every sequence that ends within the length, padded."""
    rows = [
        [*inner, EOS, *[PAD] * (LENGTH - count - 1)]
        for count in range(LENGTH)
        for inner in itertools.product(WORDS, repeat=count)
    ]
    return torch.tensor(rows)


def scores_of(
    model: AutoregressiveTranslationNetwork, source: Tensor, targets: Tensor, alpha: float
) -> Tensor:
    """The scores of some targets of one source, by the model's loss."""
    nll = token_losses(model(source.expand(len(targets), -1), targets), targets)[1].sum(1)
    return -nll / ((5 + (targets != PAD).sum(1).double()) / 6) ** alpha


def search(seed: int, beam_size: int, alpha: float, **settings) -> Hypotheses:
    config = BeamConfig(beam_size=beam_size, length_penalty=alpha, **settings)
    return beam_search(network(seed), sources(seed), config)


@SEEDS
@ALPHAS
def test_a_wide_beam_finds_the_best_of_all_sequences(seed, alpha):
    targets = all_targets()
    found = search(seed, EXHAUSTIVE, alpha)
    for row, source in enumerate(sources(seed)):
        scores = scores_of(network(seed), source, targets, alpha)
        assert found.best()[row].tolist() == targets[scores.argmax()].tolist()
        assert float(found.scores[row, 0]) == pytest.approx(float(scores.max()), abs=1e-9)


def test_the_best_differ_in_length_and_by_penalty():
    """Power: the models above are no easy ones."""
    best = {
        alpha: torch.cat([search(seed, EXHAUSTIVE, alpha).best() for seed in range(5)])
        for alpha in (0.0, 3.0)
    }
    lengths = {alpha: (tokens != PAD).sum(1) for alpha, tokens in best.items()}
    assert len(lengths[0.0].unique()) > 1
    assert (lengths[3.0] > lengths[0.0]).any()
    greedy = [
        decode_targets(network(seed), sources(seed), uniform(BATCH), DecodingConfig(temperature=0))
        for seed in range(5)
    ]
    assert (torch.cat(greedy) != best[0.0]).any()


@SEEDS
@ALPHAS
@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_scores_are_the_models_own_and_never_above_the_best(seed, alpha, beam_size):
    found, targets = search(seed, beam_size, alpha), all_targets()
    for row, source in enumerate(sources(seed)):
        known = found.scores[row].isfinite()
        assert known[0]
        own = scores_of(network(seed), source, found.tokens[row, known], alpha)
        torch.testing.assert_close(found.scores[row, known].double(), own, rtol=0, atol=1e-6)
        assert (found.scores[row].diff()[known[1:]] <= 0).all()
        assert own.max() <= scores_of(network(seed), source, targets, alpha).max() + 1e-9
        distinct = {tuple(tokens) for tokens in found.tokens[row, known].tolist()}
        assert len(distinct) == int(known.sum())
        assert (found.tokens[row, ~known] == PAD).all()


def naive_search(seed: int, row: int, beam: int, alpha: float) -> tuple[list[int], float]:
    """The same search without batches, caches or early ends, by lists."""
    model, source = network(seed), sources(seed)[row : row + 1]
    live, ended = [([], 0.0)], []
    for i in range(LENGTH):
        extended = []
        for tokens, log_prob in live:
            padded = torch.tensor([[*tokens, *[PAD] * (LENGTH - i)]])
            log_probs = model(source, padded)[0, i].log_softmax(-1).tolist()
            allowed = [EOS] if i == LENGTH - 1 else range(1, VOCAB)
            extended += [([*tokens, token], log_prob + log_probs[token]) for token in allowed]
        extended = sorted(extended, key=lambda each: -each[1])[: 2 * beam]
        penalty = ((5 + i + 1) / 6) ** alpha
        ended += [(tokens, score / penalty) for tokens, score in extended if tokens[-1] == EOS]
        live = [each for each in extended if each[0][-1] != EOS][:beam]
    return max(ended, key=lambda each: each[1])


@SEEDS
@ALPHAS
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_batched_search_equals_a_naive_one(seed, alpha, beam_size):
    found = search(seed, beam_size, alpha)
    for row in range(BATCH):
        tokens, score = naive_search(seed, row, beam_size, alpha)
        assert found.best()[row].tolist() == tokens + [PAD] * (LENGTH - len(tokens))
        assert float(found.scores[row, 0]) == pytest.approx(score, abs=1e-6)


@SEEDS
def test_a_sentence_does_not_depend_on_its_batch(seed):
    config = BeamConfig(beam_size=3)
    together = beam_search(network(seed), sources(seed), config)
    for row in range(BATCH):
        alone = beam_search(network(seed), sources(seed)[row : row + 1], config)
        assert torch.equal(alone.tokens[0], together.tokens[row])
        torch.testing.assert_close(alone.scores[0], together.scores[row])


def test_a_search_ends_when_no_live_hypothesis_can_win(monkeypatch):
    """A model that is sure of its EOS is asked once."""
    model, asked = network(0), []
    original = model.next_logits

    def sure(*args):
        asked.append(1)
        logits = original(*args)
        logits[:, EOS] += 20.0
        return logits

    monkeypatch.setattr(model, "next_logits", sure)
    found = search(0, 2, 0.6)
    assert (found.best()[:, 0] == EOS).all()
    assert len(asked) == 1


def test_a_shorter_limit():
    targets = all_targets()
    short = targets[(targets != PAD).sum(1) <= 2]
    found = search(1, EXHAUSTIVE, 1.0, max_length=2)
    assert found.tokens.shape[2] == 2
    for row, source in enumerate(sources(1)):
        scores = scores_of(network(1), source, short, 1.0)
        assert found.best()[row].tolist() == short[scores.argmax(), :2].tolist()
    with pytest.raises(ValueError, match="max_length is 7, the model's targets have at most 6"):
        search(0, 2, 0.6, max_length=7)
    for settings in ({"beam_size": 0}, {"max_length": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} is 0, it must be at least 1"):
            BeamConfig(**settings)


def test_search_in_bfloat16_finds_good_targets():
    model = deepcopy(network(0)).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = beam_search(model, sources(), BeamConfig(beam_size=EXHAUSTIVE))
    assert found.scores.dtype == torch.float32
    for row, source in enumerate(sources()):
        own = scores_of(model, source, found.tokens[row, :1], 0.6)
        assert float(own) == pytest.approx(float(found.scores[row, 0]), abs=0.1)


# Targets that are drawn


def uniform(batch: int, seed: int = 0) -> Tensor:
    return torch.rand(batch, LENGTH, generator=generator_for(seed, "uniform"))


@SEEDS
def test_greedy_targets_take_the_most_likely_token(seed):
    model, source = network(seed), sources(seed)
    found = decode_targets(model, source, uniform(BATCH), DecodingConfig(temperature=0))
    for row in range(BATCH):
        expected: list[int] = []
        while len(expected) < LENGTH and EOS not in expected:
            padded = torch.tensor([[*expected, *[PAD] * (LENGTH - len(expected))]])
            logits = model(source[row : row + 1], padded)[0, len(expected)]
            expected.append(1 + int(logits[1:].argmax()))
        assert found[row].tolist() == expected + [PAD] * (LENGTH - len(expected))


def test_drawn_targets_follow_the_model():
    """A chi-square test at 10⁻⁴ of whole targets; another source's distribution fails it."""
    model, source, count = network(2), sources(2)[:2], 4_000
    found = decode_targets(model, source, uniform(2 * count), DecodingConfig())
    targets = all_targets()
    for row, other in ((0, 1), (1, 0)):
        drawn = found[row * count : (row + 1) * count]
        seen = (drawn[:, None] == targets).all(-1).double().sum(0)
        results = []
        for of in (row, other):
            # PAD is never drawn: the rest of its position's mass is shared among the others.
            logits = model(source[of].expand(len(targets), -1), targets)
            log_probs = logits[..., 1:].log_softmax(-1)
            picked = log_probs.gather(-1, (targets - 1).clamp(min=0)[..., None])[..., 0]
            expected = count * (picked * (targets != PAD)).sum(1).exp()
            # What is rare, and what has not ended, is counted together.
            often = expected > 5
            pairs = torch.stack([seen[often], expected[often]])
            pairs = torch.cat([pairs, count - pairs.sum(1, keepdim=True)], dim=1)
            statistic = float(((pairs[0] - pairs[1]).square() / pairs[1]).sum())
            results.append(statistic < chi2.ppf(1 - 1e-4, int(often.sum())))
        assert results == [True, False]


def test_rows_depend_on_their_own_numbers_and_source():
    model, source, u = network(0), sources(), uniform(2 * BATCH)
    config = DecodingConfig(temperature=1.5, nucleus=0.9)
    together = decode_targets(model, source, u, config)
    for row in range(2 * BATCH):
        alone = decode_targets(model, source[row // 2][None], u[row : row + 1], config)
        assert (alone == together[row]).all()
    endless = decode_targets(model, source, u, DecodingConfig(suppress_eos=True))
    assert (endless > EOS).all()
    for tokens in together.tolist():
        if EOS in tokens:
            assert set(tokens[tokens.index(EOS) + 1 :]) <= {PAD}
