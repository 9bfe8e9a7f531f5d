"""One row's numbers: samples of a trained model, before a judge (§6.2)."""

import time
from collections.abc import Mapping
from typing import Any

from cdcd.evaluation.exact import exact_scores
from cdcd.evaluation.held_out import held_out_sequences
from cdcd.evaluation.judge import Judge, split_texts
from cdcd.evaluation.texts import Protocol, Texts, held_out_texts, sample_texts
from cdcd.inference.text_model import TextModel
from cdcd.metrics.entropy import first_tokens, text_statistics
from cdcd.metrics.intervals import pooled_entropy_interval, ratio_interval, standard_error
from cdcd.metrics.mauve import mauve
from cdcd.reproduction.rows import Row
from cdcd.reproduction.scales import BEYOND_ALL_SEEDS
from cdcd.settings import override

NUM_EXAMPLES = 4
SHARE_OF_TOKENS = 0.75
"""Entropies are compared at this share of the real text's tokens, which shorter samples have too."""


def measure(
    row: Row, model: TextModel, judge: Judge, batch_size: int, prompts: Mapping[str, Any]
) -> dict[str, Any]:
    """Samples a row and returns its numbers, in Table 3 with MAUVE; `prompts` are those of the scale."""
    started, layout = time.perf_counter(), model.config.data.layout
    given = held_out(model, **prompts)
    real = texts = given.counted(layout)
    if row.system != "data":
        texts = sample_texts(model, given, row.sampling, 0, batch_size).counted(layout)
    seconds = time.perf_counter() - started
    numbers = _numbers(texts, real, model, judge)
    if row.table == "table3":
        numbers["mauve"] = mauve(judge.features(real), judge.features(texts))
    return numbers | {"seconds": seconds}


def held_out(
    model: TextModel, samples: int, length: int, protocol: Protocol, whole_documents: bool
) -> Texts:
    """Returns real text that no model has seen, with the part that is to be generated."""
    changes = {
        "data.num_documents": 4 * samples,
        "data.valid_share": 0.5,
        "data.length": length,
        "training.seed": BEYOND_ALL_SEEDS + 1,
    }
    config = override(model.config, changes)
    sequences = held_out_sequences(
        config, model.tokenizer, split="auto", whole_documents=whole_documents
    )
    texts = held_out_texts(sequences, samples, protocol)
    return texts.where(texts.counted(config.data.layout).is_generated.any(1))


def _numbers(texts: Texts, real: Texts, model: TextModel, judge: Judge) -> dict[str, Any]:
    nll = ratio_interval(judge.nats(texts), texts.is_generated.sum(1).double())
    num_tokens = int(SHARE_OF_TOKENS * int(real.is_generated.sum()))
    num_tokens = min(num_tokens, int(texts.is_generated.sum()))
    counted = first_tokens(texts.tokens, texts.is_generated, num_tokens)
    entropy, statistics = pooled_entropy_interval(*counted), text_statistics(*counted)
    examples = split_texts(texts.first(NUM_EXAMPLES), model.tokenizer)
    numbers = {
        "nll": nll.value,
        "nll_error": standard_error(nll),
        "entropy": entropy.value,
        "entropy_error": standard_error(entropy),
        "repetition": statistics.repetition,
        "sample_entropy": statistics.sample_entropy,
        "num_tokens": num_tokens,
        "examples": [f"«{before}»{after}" for before, after in examples],
    }
    exact = exact_scores(texts, model.config.data, model.tokenizer, judge)
    return numbers if exact is None else numbers | {"possible_share": exact.possible_share}
