"""Texts with known defects: each looks right to one measure, and another must tell it from real text."""

import random

import torch

from cdcd.data.sequences import Sequences
from cdcd.evaluation.texts import Texts
from cdcd.metrics.bleu import Corpus
from cdcd.seeding import generator_for


def shuffled(texts: Texts) -> Texts:
    """Puts the real words of each sample in random order: unigram statistics without any syntax."""
    generator, tokens = generator_for(0, "shuffled"), texts.tokens.clone()
    for row, is_generated in zip(tokens, texts.is_generated, strict=True):
        words = row[is_generated]
        row[is_generated] = words[torch.randperm(len(words), generator=generator)]
    return texts.with_tokens(tokens)


def spliced(texts: Texts, training: Sequences) -> Texts:
    """Copies continuations from a training set without padding, two pieces each: fluent, and stolen."""
    generator, length = generator_for(0, "spliced"), texts.tokens.shape[1]
    first, second = (
        training.rows(torch.randint(len(training), (len(texts),), generator=generator))
        for _ in range(2)
    )
    copied = torch.where(torch.arange(length) < 3 * length // 4, first, second)
    return texts.with_tokens(torch.where(texts.is_generated, copied, texts.tokens))


def wrong_translations(corpus: Corpus) -> dict[str, list[str]]:
    """Returns translations of a test set with known defects, and the references."""
    generator = random.Random(0)
    split = [reference.split() for reference in corpus.references]
    return {
        "references": list(corpus.references),
        "source copied": list(corpus.sources),
        "words shuffled": [" ".join(generator.sample(each, len(each))) for each in split],
        "words doubled": [" ".join(word for word in each for _ in range(2)) for each in split],
        "first half": [" ".join(each[: len(each) // 2]) for each in split],
    }
