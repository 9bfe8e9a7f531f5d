"""How good translations are (§6.6): BLEU and chrF, and the defects that the paper names.

The paper saw translations in the wrong language, and repeated or missing tokens. Each has a number
here that is defined on words alone and needs no model. For the references themselves it is 0 (length
ratio: 1); only the language is guessed, so that a few references look wrong too: score them beside.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Int

from cdcd.metrics.intervals import Interval, bootstrap
from cdcd.metrics.mbr import Utility, mbr_batch, pairwise_bleu, pairwise_chrf
from cdcd.metrics.ngrams import (
    Statistics,
    bleu,
    bleu_statistics,
    chrf,
    chrf_statistics,
    word_splitter,
)
from cdcd.metrics.words import LanguageProfiles, copied, numbers, repeats, words
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
        return TOKENISATIONS.get(self.target_language, DEFAULT_TOKENISATION)

    @property
    def utility(self) -> Utility:
        """Of minimum Bayes-risk decoding: BLEU with the words that the score counts."""
        return utility_for("bleu", self.target_language)


def utility_for(name: str, language: str) -> Utility:
    """A utility of minimum Bayes-risk decoding by its name, for texts of a language."""
    if name not in UTILITIES:
        raise unknown("utility", name, UTILITIES)
    if name == "chrf":
        return pairwise_chrf
    tokenize = TOKENISATIONS.get(language, DEFAULT_TOKENISATION)
    word_splitter(tokenize)  # says what is missing before anything is sampled
    return partial(pairwise_bleu, tokenize=tokenize)


@dataclass(frozen=True)
class Scores:
    """One translation of a test set, measured. Shares are from 0 to 1, None of nothing."""

    bleu: Interval
    """sacreBLEU's, of the corpus, with a bootstrap interval over sentences."""
    chrf: Interval
    length_ratio: float
    """Words of the translation for each of the reference, as BLEU counts them."""
    repetition: float
    """Words that repeat what stands just before, a word or a pair: their share less the references'."""
    missing_words: float
    """Words of the references that the translation lacks, counted with their number."""
    missing_copies: float | None
    """Names and numbers that source and reference share and the translation lacks."""
    missing_numbers: float | None
    """The same for numbers alone, whatever their separators."""
    wrong_language: float
    """Translations whose function words are rather the source's language."""
    unclear_language: float
    """Translations that have no function words, or as much of one language as of the other."""
    empty_share: float


def score(
    hypotheses: Sequence[str],
    corpus: Corpus,
    *,
    profiles: LanguageProfiles | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Scores:
    """All scores of one translation of a test set.

    Languages are told apart by `profiles`, else by those of the test set's own two sides.
    """
    by_words = _bleu_of(hypotheses, corpus)
    by_characters = chrf_statistics(hypotheses, corpus.references)
    lengths = by_words.sum()
    profiles = profiles or LanguageProfiles.of(corpus.sources, corpus.references)
    evidence = np.array([profiles.evidence(text) for text in hypotheses])
    resampling = {"num_resamples": num_resamples, "seed": seed}
    return Scores(
        bleu=_interval([by_words], corpus_bleu, **resampling),
        chrf=_interval([by_characters], corpus_chrf, **resampling),
        length_ratio=float(lengths.candidate[0] / max(lengths.reference[0], 1)),
        repetition=_repetition(hypotheses) - _repetition(corpus.references),
        missing_words=_missing(map(words, corpus.references), map(words, hypotheses)) or 0.0,
        missing_copies=_missing_copies(hypotheses, corpus),
        missing_numbers=_missing_numbers(hypotheses, corpus),
        wrong_language=float((evidence < 0).mean()),
        unclear_language=float((evidence == 0).mean()),
        empty_share=sum(not text.strip() for text in hypotheses) / len(hypotheses),
    )


def signatures(corpus: Corpus) -> dict[str, str]:
    """What sacreBLEU says of the scores, for others to compute them in the same way."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise ValueError("BLEU needs sacrebleu: pip install 'cdcd[translate]'") from None
    one_reference = [list(corpus.references[:1])]
    metrics = {
        "bleu": BLEU(tokenize=corpus.tokenize, references=one_reference),
        "chrf": CHRF(references=one_reference),
    }
    return {name: str(metric.get_signature()) for name, metric in metrics.items()}


def corpus_bleu(found: Statistics) -> float:
    """sacreBLEU's score of a corpus, from the statistics of its sentences."""
    return float(bleu(found.sum(), effective_order=False))


def corpus_chrf(found: Statistics) -> float:
    """sacreBLEU's chrF2 of a corpus, from the statistics of its sentences."""
    return float(chrf(found.sum()))


def bleu_difference(
    first: Sequence[str],
    second: Sequence[str],
    corpus: Corpus,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """BLEU of the second translation less that of the first, by paired bootstrap.

    Both are scored on the same resampled sentences, so that hard sentences do not count as noise:
    where the interval excludes 0 the difference is more than the choice of sentences.
    """
    found = [_bleu_of(texts, corpus) for texts in (first, second)]
    return _interval(found, _second_above_first, num_resamples=num_resamples, seed=seed)


def _interval(
    found: Sequence[Statistics],
    statistic: Callable[..., float],
    *,
    num_resamples: int,
    seed: int,
) -> Interval:
    """Bootstrap over sentences, the same ones for all."""
    rows = [
        torch.from_numpy(np.stack([each.matches, each.candidate, each.reference], 1))
        for each in found
    ]

    def of_rows(*resampled: torch.Tensor) -> float:
        return statistic(*(Statistics(*each.numpy().swapaxes(0, 1)) for each in resampled))

    return bootstrap(rows, of_rows, num_resamples=num_resamples, seed=seed)


def _repetition(texts: Sequence[str]) -> float:
    return sum(map(repeats, texts)) / max(sum(len(words(text)) for text in texts), 1)


def _missing_copies(hypotheses: Sequence[str], corpus: Corpus) -> float | None:
    pairs = zip(corpus.sources, corpus.references, strict=True)
    return _missing((copied(*pair) for pair in pairs), map(words, hypotheses))


def _missing_numbers(hypotheses: Sequence[str], corpus: Corpus) -> float | None:
    expected = (
        list((Counter(numbers(source)) & Counter(numbers(reference))).elements())
        for source, reference in zip(corpus.sources, corpus.references, strict=True)
    )
    return _missing(expected, map(numbers, hypotheses))


def _missing(expected: Iterable[list[str]], present: Iterable[list[str]]) -> float | None:
    """Share of what is expected, sentence by sentence, that is not present."""
    num_expected = num_missing = 0
    for wanted, found in zip(expected, present, strict=True):
        num_expected += len(wanted)
        num_missing += (Counter(wanted) - Counter(found)).total()
    return num_missing / num_expected if num_expected else None


@dataclass(frozen=True)
class ByCount:
    """Minimum Bayes-risk decoding of n samples for each sentence."""

    num_samples: int
    bleu: Interval
    gain: Interval
    """BLEU above that of the fewest samples, by paired bootstrap."""
    oracle_bleu: float
    """BLEU of the samples nearest to the references by sentence BLEU: a diagnostic, as no system can
    choose them. It shows what the samples hold and the decoding does not find."""
    distinct_share: float
    """Distinct samples for each sample: near 0, more of them bring nothing."""


def mbr_curve(
    samples: Sequence[Sequence[str]],
    corpus: Corpus,
    *,
    counts: Sequence[int] = (1, 10, 100),
    utility: Utility | None = None,
    processes: int = 1,
    choices: Int[np.ndarray, "sentences counts"] | None = None,
    num_resamples: int = 1000,
) -> list[ByCount]:
    """BLEU against the number of samples: for each n of `counts`, the first n samples are decoded.

    `choices`: those of `mbr_batch`, where they are known.
    """
    if choices is None:
        choices = mbr_batch(samples, utility or corpus.utility, counts=counts, processes=processes)
    oracles = _oracle_choices(samples, corpus, counts)
    decoded = [_bleu_of(chosen_samples(samples, column), corpus) for column in choices.T]
    fewest = decoded[int(np.argmin(counts))]
    interval = partial(_interval, num_resamples=num_resamples, seed=0)
    return [
        ByCount(
            num_samples=count,
            bleu=interval([found], corpus_bleu),
            gain=interval([fewest, found], _second_above_first),
            oracle_bleu=corpus_bleu(_bleu_of(chosen_samples(samples, oracle), corpus)),
            distinct_share=float(np.mean([len(set(each[:count])) / count for each in samples])),
        )
        for count, found, oracle in zip(counts, decoded, oracles.T, strict=True)
    ]


def _second_above_first(first: Statistics, second: Statistics) -> float:
    return corpus_bleu(second) - corpus_bleu(first)


def _bleu_of(texts: Sequence[str], corpus: Corpus) -> Statistics:
    return bleu_statistics(texts, corpus.references, tokenize=corpus.tokenize)


def chosen_samples(samples: Sequence[Sequence[str]], choices: np.ndarray) -> list[str]:
    """Of each sentence's samples, the one that was chosen."""
    return [each[int(choice)] for each, choice in zip(samples, choices, strict=True)]


def _oracle_choices(
    samples: Sequence[Sequence[str]], corpus: Corpus, counts: Sequence[int]
) -> np.ndarray:
    """For each sentence and n, which of the first n samples has the best sentence BLEU.

    The best of each sentence need not make the best corpus, but nearly does.
    """
    choices = []
    for hypotheses, reference in zip(samples, corpus.references, strict=True):
        found = bleu_statistics(hypotheses, [reference] * len(hypotheses), tokenize=corpus.tokenize)
        utilities = bleu(found, effective_order=True)
        choices.append([int(utilities[:count].argmax()) for count in counts])
    return np.array(choices)
