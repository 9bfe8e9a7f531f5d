"""MAUVE's reference: held-out text and a perfect sampler score the same, on a language known exactly."""

import statistics
from dataclasses import replace

import torch
from torch.nn.functional import one_hot

from cdcd.data.sequences import InMemory
from cdcd.evaluation.text_evaluation import EvaluationConfig, draw_held_out
from cdcd.evaluation.texts import Texts
from cdcd.languages import MarkovChain, markov_chain
from cdcd.metrics.mauve import mauve
from cdcd.seeding import generator_for

CHAIN = markov_chain(12)
LENGTH, NUM_SAMPLES, NUM_SETS = 12, 200, 40


def features(texts: Texts) -> torch.Tensor:
    """Returns features that tell every sequence from every other."""
    return one_hot(texts.tokens.long(), CHAIN.num_states).flatten(1).float()


def perfect_samples(prompts: Texts, chain: MarkovChain, generator: torch.Generator) -> Texts:
    """Returns the prompts with continuations drawn from the language itself."""
    tokens = prompts.tokens.clone()
    for i in range(1, tokens.shape[1]):
        drawn = torch.multinomial(chain.transitions[tokens[:, i - 1]], 1, generator=generator)[:, 0]
        tokens[:, i] = torch.where(prompts.is_generated[:, i], drawn, tokens[:, i])
    return prompts.with_tokens(tokens)


def gain_of_perfect_samples(seed: int, reference: str) -> float:
    """Returns MAUVE of a perfect sampler less that of held-out text."""
    generator = generator_for(seed, "mauve reference")
    language = InMemory(CHAIN.sample(2 * NUM_SAMPLES, LENGTH, generator=generator).int())
    config = EvaluationConfig(num_samples=NUM_SAMPLES, seed=seed)
    prompts, other = draw_held_out(language, config, "stream")
    samples = perfect_samples(prompts, CHAIN, generator)
    assert torch.equal(samples.tokens[:, :6], prompts.tokens[:, :6])
    if reference == "shared prompts":
        # As it once was: the systems against the original text, the data against other text.
        data, system = (other, prompts), (samples, prompts)
    else:
        data, system = (prompts, other), (samples, other)
    scores = [mauve(features(a), features(b), num_restarts=2) for a, b in (data, system)]
    return scores[1] - scores[0]


def standard_errors(reference: str) -> float:
    """Returns a perfect sampler's mean advantage over held-out text, in its standard errors."""
    gains = [gain_of_perfect_samples(seed, reference) for seed in range(NUM_SETS)]
    error = statistics.stdev(gains) / NUM_SETS**0.5
    return statistics.fmean(gains) / error


def test_a_perfect_sampler_scores_as_held_out_text_does():
    assert abs(standard_errors("other text")) < 3


def test_a_reference_that_shares_the_prompts_favours_the_sampler():
    """A power check: as many sets show the advantage that the systems once had."""
    assert standard_errors("shared prompts") > 5


def test_the_reference_is_other_text_or_as_in_the_paper_the_prompts_own():
    language = InMemory(CHAIN.sample(300, LENGTH, generator=generator_for(0)).int())
    config = EvaluationConfig(num_samples=200)
    prompts, other = draw_held_out(language, config, "stream")
    assert other is not None
    assert len(other) == 100
    drawn = torch.cat([prompts.tokens, other.tokens])
    assert torch.equal(drawn.unique(dim=0), language.tokens.unique(dim=0).long())
    original = replace(config, mauve_reference="original")
    prompts, same = draw_held_out(language, original, "stream")
    assert same is not None
    assert torch.equal(same.tokens, prompts.tokens)
    few = InMemory(language.tokens[:299])
    assert draw_held_out(few, config, "stream")[1] is None
