"""The numbers of a row of Table 4: translations of a test set before its references (§6.6)."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cdcd.data.sentences import split_long
from cdcd.evaluation.held_out_pairs import HeldOutPairs, held_out_pairs
from cdcd.inference.translator import Translator
from cdcd.languages import numerals
from cdcd.metrics.bleu import Corpus, chosen_samples, score, signatures, utility_for
from cdcd.metrics.intervals import standard_error
from cdcd.metrics.mbr import mbr_batch
from cdcd.reproduction.measuring import NUM_EXAMPLES
from cdcd.reproduction.rows import Row


def measure_translations(
    row: Row, prompts: Mapping[str, Any], *, translator: Translator, batch_size: int
) -> dict[str, Any]:
    """Translates a test set as a row says and returns its numbers; BLEU is from 0 to 100."""
    held_out = held_out_pairs(translator.config, **prompts)
    corpus, settings = held_out.corpus, row.sampling
    num_samples = int(settings.pop("num_samples", 1))
    how_scored = signatures(corpus)  # says what is missing before anything is sampled
    started = time.perf_counter()
    pieces = split_long(corpus.sources, translator.fits)
    drawn = translator.samples(
        pieces.texts, num_samples=num_samples, batch_size=batch_size, **settings
    )
    samples = [
        [" ".join(filter(None, parts)) for parts in zip(*of_pieces, strict=True)]
        for of_pieces in pieces.by_text(drawn)
    ]
    texts = decoded(samples, corpus)
    numbers = {
        "seconds": time.perf_counter() - started,
        "test_set": held_out.name,
        "test_set_hash": held_out.hash,
        "sentences": len(texts),
        "too_long": len(pieces.too_long),
        "signatures": how_scored,
        "distinct_share": sum(len(set(each)) for each in samples) / num_samples / len(texts),
    }
    return numbers | scores(texts, corpus) | _exact(texts, held_out)


def decoded(samples: Sequence[Sequence[str]], corpus: Corpus) -> list[str]:
    """Returns of each sentence's samples the one that minimum Bayes risk chooses, by BLEU alone."""
    if len(samples[0]) == 1:
        return [only for (only,) in samples]
    choices = mbr_batch(samples, utility_for("bleu", corpus.target_language))
    return chosen_samples(samples, choices[:, 0])


def scores(texts: Sequence[str], corpus: Corpus) -> dict[str, Any]:
    """Returns all scores of translations, with standard errors over sentences, and the first examples."""
    known = score(texts, corpus)
    triples = zip(corpus.sources, corpus.references, texts, strict=True)
    return {
        "bleu": known.bleu.value,
        "bleu_error": standard_error(known.bleu),
        "chrf": known.chrf.value,
        "length_ratio": known.length_ratio,
        "repetition": known.repetition,
        "missing_words": known.missing_words,
        "examples": [
            dict(zip(("source", "reference", "translation"), triple, strict=True))
            for triple, _ in zip(triples, range(NUM_EXAMPLES), strict=False)
        ],
    }


def _exact(texts: Sequence[str], held_out: HeldOutPairs) -> dict[str, float]:
    """Returns the share that the exact judge of the built-in task calls right."""
    if held_out.direction is None:
        return {}
    pairs = zip(held_out.corpus.sources, texts, strict=True)
    right = [numerals.check(*pair, held_out.direction) == "right" for pair in pairs]
    return {"right_share": sum(right) / len(right)}
