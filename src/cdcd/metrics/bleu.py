"""The quality of translations (§6.6): BLEU, chrF, and the defects that the paper names.

Repeated and missing words are measured on the words alone, without a model; the references have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int

from cdcd.metrics.defects import missing_share, repeated_share
from cdcd.metrics.intervals import Interval, bootstrap
from cdcd.metrics.mbr import Utility, pairwise_bleu, pairwise_chrf
from cdcd.metrics.ngrams import (
    bleu,
    bleu_counts,
    chrf,
    chrf_counts,
    sacrebleu_metrics,
    word_splitter,
)
from cdcd.settings import unknown

TOKENISATIONS = {"en": "13a", "de": "intl", "zh": "zh"}
"""sacreBLEU's tokenisation by target language, as in the paper; zh is sacreBLEU's own choice."""
DEFAULT_TOKENISATION = "13a"
UTILITIES = ("bleu", "chrf")


@dataclass(frozen=True)
class Corpus:
    """A test set: sentences of one language, each with its translation by a person."""

    sources: Sequence[str]
    references: Sequence[str]
    source_language: str
    target_language: str

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.references) or len(self.sources) < 2:
            raise ValueError(
                f"the test set has {len(self.sources)} sources and {len(self.references)} "
                "references; give as many of both, 2 or more"
            )

    @property
    def tokenize(self) -> str:
        """The name of sacreBLEU's tokenisation for the target language."""
        return TOKENISATIONS.get(self.target_language, DEFAULT_TOKENISATION)


def utility_for(name: str, language: str) -> Utility:
    """Returns a utility of minimum Bayes-risk decoding by its name, for texts of a language."""
    if name not in UTILITIES:
        raise unknown("utility", name, UTILITIES)
    if name == "chrf":
        return pairwise_chrf
    tokenize = TOKENISATIONS.get(language, DEFAULT_TOKENISATION)
    word_splitter(tokenize)  # says what is missing before anything is sampled
    return partial(pairwise_bleu, tokenize=tokenize)


@dataclass(frozen=True)
class Scores:
    """One translation of a test set, measured. Shares are from 0 to 1."""

    bleu: Interval
    """sacreBLEU's corpus BLEU, with a bootstrap interval over sentences."""
    chrf: Interval
    """sacreBLEU's corpus chrF2, with a bootstrap interval over sentences."""
    length_ratio: float
    """Words of the translation for each word of the references, as BLEU counts them."""
    repetition: float
    """Share of repeated words less the same share of the references."""
    missing_words: float
    """Share of the references' words that the translation lacks, counted with repeats."""
    empty_share: float
    """Share of empty translations."""


def score(hypotheses: Sequence[str], corpus: Corpus, *, num_resamples: int = 1000) -> Scores:
    """Computes all scores of one translation of a test set."""
    by_words = _bleu_counts(hypotheses, corpus)
    by_characters = chrf_counts(hypotheses, corpus.references)
    _, length, reference_length = by_words.sum(0)[:, 0]
    interval = partial(_interval, num_resamples=num_resamples)
    return Scores(
        bleu=interval(bleu, by_words),
        chrf=interval(chrf, by_characters),
        length_ratio=float(length / max(reference_length, 1)),
        repetition=repeated_share(hypotheses) - repeated_share(corpus.references),
        missing_words=missing_share(corpus.references, hypotheses),
        empty_share=sum(not text.strip() for text in hypotheses) / len(hypotheses),
    )


def signatures(corpus: Corpus) -> dict[str, str]:
    """Returns sacreBLEU's signatures of the scores, with which others can compute the same ones."""
    by_words, by_characters = sacrebleu_metrics()
    one_reference = [list(corpus.references[:1])]
    metrics = {
        "bleu": by_words(tokenize=corpus.tokenize, references=one_reference),
        "chrf": by_characters(references=one_reference),
    }
    return {name: str(metric.get_signature()) for name, metric in metrics.items()}


def bleu_difference(
    first: Sequence[str], second: Sequence[str], corpus: Corpus, *, num_resamples: int = 1000
) -> Interval:
    """Returns the BLEU of the second translation less that of the first, by paired bootstrap.

    Both are scored on the same resampled sentences, so that hard sentences do not count as noise:
    where the interval excludes 0 the difference is more than the choice of sentences.
    """
    pair = [_bleu_counts(texts, corpus) for texts in (first, second)]
    return _interval(_second_above_first, *pair, num_resamples=num_resamples)


def _interval(
    statistic: Callable[..., float | np.ndarray],
    *systems: Float[np.ndarray, "sentences 3 orders"],
    num_resamples: int,
) -> Interval:
    """Bootstraps a statistic of one or more corpora over sentences, the same ones for all systems."""
    return bootstrap(
        [torch.from_numpy(counts) for counts in systems],
        lambda *resampled: float(statistic(*(counts.sum(0).numpy() for counts in resampled))),
        num_resamples=num_resamples,
    )


def _second_above_first(first: np.ndarray, second: np.ndarray) -> float:
    return float(bleu(second) - bleu(first))


def _bleu_counts(texts: Sequence[str], corpus: Corpus) -> Float[np.ndarray, "sentences 3 orders"]:
    return bleu_counts(texts, corpus.references, tokenize=corpus.tokenize)


@dataclass(frozen=True)
class ByCount:
    """Minimum Bayes-risk decoding of n samples for each sentence."""

    num_samples: int
    bleu: Interval
    gain: Interval
    """BLEU above that of the fewest samples, by paired bootstrap."""
    oracle_bleu: float
    """BLEU of the samples nearest to the references by sentence BLEU: a diagnostic, as no system can
    choose them. It shows what the samples hold and the decoding misses."""
    distinct_share: float
    """Distinct samples for each sample: near 0, more samples bring nothing."""


def mbr_curve(
    samples: Sequence[Sequence[str]],
    corpus: Corpus,
    *,
    counts: Sequence[int],
    choices: Int[np.ndarray, "sentences counts"],
    num_resamples: int = 1000,
) -> list[ByCount]:
    """Measures BLEU against the number of samples: for each n of `counts`, of the choices by `mbr_batch`."""
    decoded, oracles = (
        [_bleu_counts(chosen_samples(samples, column), corpus) for column in chosen.T]
        for chosen in (choices, _oracle_choices(samples, corpus, counts))
    )
    fewest = decoded[int(np.argmin(counts))]
    interval = partial(_interval, num_resamples=num_resamples)
    return [
        ByCount(
            num_samples=count,
            bleu=interval(bleu, chosen),
            gain=interval(_second_above_first, fewest, chosen),
            oracle_bleu=float(bleu(oracle.sum(0))),
            distinct_share=float(np.mean([len(set(texts[:count])) / count for texts in samples])),
        )
        for count, chosen, oracle in zip(counts, decoded, oracles, strict=True)
    ]


def chosen_samples(samples: Sequence[Sequence[str]], choices: np.ndarray) -> list[str]:
    """Returns the chosen sample of each sentence."""
    return [texts[int(choice)] for texts, choice in zip(samples, choices, strict=True)]


def _oracle_choices(
    samples: Sequence[Sequence[str]], corpus: Corpus, counts: Sequence[int]
) -> Int[np.ndarray, "sentences counts"]:
    """Returns, for each sentence and n, the one of its first n samples with the best sentence BLEU.

    The best samples of single sentences need not make the best corpus, but nearly do.
    """
    choices = []
    for texts, reference in zip(samples, corpus.references, strict=True):
        pairs = bleu_counts(texts, [reference] * len(texts), tokenize=corpus.tokenize)
        utilities = bleu(pairs, effective_order=True)
        choices.append([int(utilities[:count].argmax()) for count in counts])
    return np.array(choices)
