"""Minimum Bayes-risk decoding (§6.6): of many samples the one that is most like the others.

Given hypotheses h_1 … h_n, sampled from the model for one source sentence, it chooses

    argmax_i 1/n Σ_j utility(h_i, h_j),

which estimates the translation of highest expected utility under the model. The utility is the BLEU
of one hypothesis with another as its pseudo-reference. Hypotheses are compared with each other and
never with the reference translation: no function in this module can be given one.

Where a model says how sure it was of each hypothesis, that counts as well: `bonuses` are added to the
expected utilities.

A hypothesis is compared with itself too. That adds the same to all that are not empty, so it changes
no choice among them, and n equal hypotheses are the same as one that weighs n.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from cdcd.metrics.ngrams import (
    CHARACTER_ORDER,
    WORD_ORDER,
    bleu,
    character_symbols,
    chrf,
    pairwise_statistics,
    word_symbols,
)

Utility = Callable[[Sequence[str]], Float[np.ndarray, "n n"]]
"""How good each hypothesis (row) is if each (column) were the truth, from 0 to 100.

For example `partial(pairwise_bleu, tokenize="intl")`."""
TIE = 1e-9
"""Expected utilities this close are equal: sums are rounded differently in another order."""


def pairwise_bleu(
    hypotheses: Sequence[str], *, tokenize: str = "13a"
) -> Float[np.ndarray, "hypotheses hypotheses"]:
    """sacreBLEU's sentence BLEU of each hypothesis (row) with each as its reference (column).

    `tokenize` is a tokenisation of sacreBLEU; `none` is for text whose tokens are spaced already.
    """

    def utilities(texts: Sequence[str]) -> np.ndarray:
        found = pairwise_statistics(word_symbols(texts, tokenize), WORD_ORDER)
        return bleu(found, effective_order=True)

    return _of_distinct(hypotheses, utilities)


def pairwise_chrf(
    hypotheses: Sequence[str],
) -> Float[np.ndarray, "hypotheses hypotheses"]:
    """sacreBLEU's sentence chrF2 of each hypothesis (row) with each as its reference (column)."""

    def utilities(texts: Sequence[str]) -> np.ndarray:
        return chrf(pairwise_statistics(character_symbols(texts), CHARACTER_ORDER))

    return _of_distinct(hypotheses, utilities)


def _of_distinct(hypotheses: Sequence[str], utility: Utility) -> np.ndarray:
    """Each text is counted once, however often it was sampled."""
    distinct, places = _distinct(hypotheses)
    found = utility(distinct)
    return found if len(distinct) == len(hypotheses) else found[np.ix_(places, places)]


def _distinct(hypotheses: Sequence[str]) -> tuple[list[str], Int[np.ndarray, " hypotheses"]]:
    """The distinct texts in order of appearance, and the number of each hypothesis among them."""
    if not hypotheses:
        raise ValueError("there are 0 hypotheses; sample at least 1 for each sentence")
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in hypotheses]
    return list(numbers), np.array(places, np.int64)


def expected_utilities(
    hypotheses: Sequence[str], utility: Utility = pairwise_bleu
) -> Float[np.ndarray, " hypotheses"]:
    """The mean utility of each hypothesis over all: equal ones are computed once and weighted."""
    distinct, places = _distinct(hypotheses)
    weights = np.bincount(places) / len(places)
    return (utility(distinct) @ weights)[places]


def mbr(hypotheses: Sequence[str], utility: Utility = pairwise_bleu) -> int:
    """The index of the hypothesis of highest expected utility; the first of equally good ones."""
    return _first_best(expected_utilities(hypotheses, utility))


def _first_best(utilities: Float[np.ndarray, " hypotheses"]) -> int:
    return int(np.argmax(utilities >= utilities.max() - TIE))


def mbr_by_count(
    hypotheses: Sequence[str],
    counts: Sequence[int],
    utility: Utility = pairwise_bleu,
    bonuses: Sequence[float] | None = None,
) -> list[int]:
    """For each n of `counts`, the choice among the first n hypotheses; utilities are found once."""
    if not counts or not 1 <= min(counts) <= max(counts) <= len(hypotheses):
        raise ValueError(
            f"counts are {list(counts)}; choose some between 1 and the {len(hypotheses)} hypotheses"
        )
    distinct, places = _distinct(hypotheses[: max(counts)])
    found = utility(distinct)
    added = np.zeros(len(hypotheses)) if bonuses is None else np.asarray(bonuses, np.float64)
    choices = []
    for count in counts:
        weights = np.bincount(places[:count], minlength=len(distinct)) / count
        choices.append(_first_best((found @ weights)[places[:count]] + added[:count]))
    return choices


def mbr_batch(
    sentences: Sequence[Sequence[str]],
    utility: Utility = pairwise_bleu,
    *,
    counts: Sequence[int] | None = None,
    bonuses: Sequence[Sequence[float]] | None = None,
    processes: int = 1,
) -> Int[np.ndarray, "sentences counts"]:
    """`mbr_by_count` for the hypotheses of each sentence; without `counts`, one choice among all.

    With several processes the utility must be one that can be pickled: a function of a module, or a
    `partial` of one. They start afresh, so a script must guard its main part as for any `spawn`.
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}; choose 1 or more")
    choose = partial(_choices, counts=counts, utility=utility)
    added: Sequence[Sequence[float] | None] = bonuses or [None] * len(sentences)
    if processes == 1 or len(sentences) < 2:
        chosen = list(map(choose, sentences, added))
    else:
        context = multiprocessing.get_context("spawn")
        at_a_time = max(1, len(sentences) // (8 * processes))
        with ProcessPoolExecutor(processes, context) as pool:
            chosen = list(pool.map(choose, sentences, added, chunksize=at_a_time))
    width = 1 if counts is None else len(counts)
    return np.array(chosen, np.int64).reshape(len(sentences), width)


def _choices(
    hypotheses: Sequence[str],
    bonuses: Sequence[float] | None,
    *,
    counts: Sequence[int] | None,
    utility: Utility,
) -> list[int]:
    return mbr_by_count(hypotheses, counts or [len(hypotheses)], utility, bonuses)
