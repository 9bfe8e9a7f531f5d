"""Measured quality of generated tales: how much parses, refers rightly, varies, and is new.

The checker is exact (`tales.check`), so nothing here is judged by another model. Entropies are pooled
unigram entropies and are compared at equal token counts, since they grow with the sample.
"""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from cdcd.languages import tales
from cdcd.languages.word_splitting import join_words, split_words
from cdcd.metrics.entropy import entropy


@dataclass(frozen=True)
class TalesQuality:
    """The checker's findings on a set of stories."""

    num_stories: int
    num_sentences: int
    parse_share: float
    """Sentences that are sentences of the grammar."""
    reference_share: float
    """References and answers that are right, of those in sentences that parse."""
    story_share: float
    """Stories that are right as a whole; only these have a likelihood."""
    nll: float | None
    """Exact nats per token of the stories that are right, under the grammar; None if there are none."""
    entropy: float
    """Pooled unigram entropy in nats of the first `num_tokens` tokens."""
    num_tokens: int
    copied_share: float
    """Stories that stand word for word in the training set."""
    distinct_share: float
    """Distinct stories among all."""


def judge_tales(
    texts: Sequence[str], training_texts: Collection[str], *, num_tokens: int
) -> TalesQuality:
    """Checks stories; the entropy is that of their first `num_tokens` tokens."""
    verdicts = [tales.check(text) for text in texts]
    num_sentences = sum(verdict.num_sentences for verdict in verdicts)
    num_references = sum(verdict.num_references for verdict in verdicts)
    words = [split_words(text) for text in texts]
    scored = [
        (v.log_prob, len(w)) for v, w in zip(verdicts, words, strict=True) if v.log_prob is not None
    ]
    pooled = [word for story in words for word in story][:num_tokens]
    return TalesQuality(
        num_stories=len(texts),
        num_sentences=num_sentences,
        parse_share=sum(v.num_parsed for v in verdicts) / max(num_sentences, 1),
        reference_share=sum(v.num_right for v in verdicts) / max(num_references, 1),
        story_share=len(scored) / max(len(texts), 1),
        nll=-sum(p for p, _ in scored) / sum(n for _, n in scored) if scored else None,
        entropy=entropy(torch.tensor(list(Counter(pooled).values()))),
        num_tokens=len(pooled),
        copied_share=sum(text in training_texts for text in texts) / max(len(texts), 1),
        distinct_share=len(set(texts)) / max(len(texts), 1),
    )


def unigram_texts(texts: Sequence[str], count: int, *, seed: int) -> list[str]:
    """Draws texts of real lengths whose words are independent, by their frequency: the unigram baseline."""
    rng = random.Random(seed)
    words = [split_words(text) for text in texts]
    pool = [word for story in words for word in story]
    return [join_words(rng.choices(pool, k=len(rng.choice(words)))) for _ in range(count)]


def count_tokens(texts: Sequence[str]) -> int:
    """Returns the number of words and punctuation marks in all."""
    return sum(len(split_words(text)) for text in texts)
