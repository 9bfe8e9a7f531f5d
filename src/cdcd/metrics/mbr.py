"""Minimum Bayes-risk decoding (§6.6): of many samples the one that is most like the others.

Given hypotheses h_1 … h_n, sampled from the model for one source sentence, it chooses

    argmax_i 1/n Σ_j utility(h_i, h_j),

which estimates the translation of highest expected utility under the model. The utility is the BLEU
of one hypothesis with another as its pseudo-reference. Hypotheses are compared with each other and
never with the reference translation: no function in this module can be given one.

`bonuses`, such as the model's own confidence in each hypothesis, are added to the expected utilities.

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
    characters,
    chrf,
    pairwise_counts,
    word_splitter,
)

Utility = Callable[[Sequence[str]], Float[np.ndarray, "n n"]]
"""The value of each hypothesis (row) if each (column) were the truth, from 0 to 100.

For example `partial(pairwise_bleu, tokenize="intl")`."""
TIE = 1e-9
"""Expected utilities this close are equal: sums are rounded differently in another order."""


def pairwise_bleu(
    hypotheses: Sequence[str], *, tokenize: str = "13a"
) -> Float[np.ndarray, "hypotheses hypotheses"]:
    """Computes sacreBLEU's sentence BLEU of each hypothesis (row) against each as its reference (column).

    `tokenize` is a tokenisation of sacreBLEU; `none` is for text whose tokens are spaced already.
    """
    texts = [*map(word_splitter(tokenize), hypotheses)]
    return bleu(pairwise_counts(texts, WORD_ORDER), effective_order=True)


def pairwise_chrf(hypotheses: Sequence[str]) -> Float[np.ndarray, "hypotheses hypotheses"]:
    """Computes sacreBLEU's sentence chrF2 of each hypothesis (row) against each as its reference (column)."""
    return chrf(pairwise_counts([*map(characters, hypotheses)], CHARACTER_ORDER))


def mbr_by_count(
    hypotheses: Sequence[str],
    bonuses: Sequence[float] | None = None,
    *,
    counts: Sequence[int] | None = None,
    utility: Utility = pairwise_bleu,
) -> list[int]:
    """Returns, for each n of `counts` (by default all), the index of the choice among the first n."""
    if not hypotheses:
        raise ValueError("there are 0 hypotheses; sample at least 1 for each sentence")
    counts = [len(hypotheses)] if counts is None else counts
    if not counts or not 1 <= min(counts) <= max(counts) <= len(hypotheses):
        raise ValueError(
            f"counts are {list(counts)}; choose some between 1 and the {len(hypotheses)} hypotheses"
        )
    indices: dict[str, int] = {}
    texts = np.array([indices.setdefault(text, len(indices)) for text in hypotheses[: max(counts)]])
    utilities = utility(list(indices))
    added = np.zeros(len(hypotheses)) if bonuses is None else np.asarray(bonuses, np.float64)
    return [
        _first_best(_expected_utilities(utilities, texts[:count]) + added[:count])
        for count in counts
    ]


def _expected_utilities(
    utilities: Float[np.ndarray, "distinct distinct"], texts: Int[np.ndarray, " hypotheses"]
) -> Float[np.ndarray, " hypotheses"]:
    """Averages over hypotheses given as indices of distinct texts: equal ones are one with its weight."""
    weights = np.bincount(texts, minlength=len(utilities)) / len(texts)
    return (utilities @ weights)[texts]


def _first_best(utilities: Float[np.ndarray, " hypotheses"]) -> int:
    return int(np.argmax(utilities >= utilities.max() - TIE))


def mbr_batch(
    sentences: Sequence[Sequence[str]],
    utility: Utility = pairwise_bleu,
    *,
    counts: Sequence[int] | None = None,
    bonuses: Sequence[Sequence[float]] | None = None,
    processes: int = 1,
) -> Int[np.ndarray, "sentences counts"]:
    """Applies `mbr_by_count` to the hypotheses of each sentence.

    With several processes the utility must be one that can be pickled: a function of a module, or a
    `partial` of one. They start afresh, so a script must guard its main part as for any `spawn`.
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}; choose 1 or more")
    choose = partial(mbr_by_count, counts=counts, utility=utility)
    added: Sequence[Sequence[float] | None] = bonuses or [None] * len(sentences)
    if processes == 1 or len(sentences) < 2:
        choices = list(map(choose, sentences, added))
    else:
        context = multiprocessing.get_context("spawn")
        at_a_time = max(1, len(sentences) // (8 * processes))
        with ProcessPoolExecutor(processes, context) as pool:
            choices = list(pool.map(choose, sentences, added, chunksize=at_a_time))
    width = 1 if counts is None else len(counts)
    return np.array(choices, np.int64).reshape(len(sentences), width)
