"""One row's numbers: samples of a trained model, before a judge (§6.2)."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.evaluation.exact import exact_scores
from cdcd.evaluation.held_out import held_out_sequences
from cdcd.evaluation.judge import Judge, load_judge, split_texts
from cdcd.evaluation.texts import Texts, held_out_texts, sample_texts
from cdcd.inference.load import load
from cdcd.inference.text_model import TextModel
from cdcd.metrics.entropy import first_tokens, text_statistics
from cdcd.metrics.intervals import pooled_entropy_interval, ratio_interval
from cdcd.metrics.mauve import mauve
from cdcd.reproduction.rows import Row
from cdcd.reproduction.scales import BEYOND_ALL_SEEDS

NUM_EXAMPLES = 4
SHARE_OF_TOKENS = 0.75
"""Entropies are compared at this share of the real text's tokens, which shorter samples have too."""
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Bench:
    """A trained model with the judge, and the prompts of both protocols."""

    model: TextModel
    judge: Judge
    batch_size: int

    @staticmethod
    def load(run: Path, judge: Path, *, batch_size: int, device: str) -> "Bench":
        """Loads a run and the judge; the judge computes in float32."""
        model = load(run, device=device)
        judging = load_judge(
            str(judge), model.tokenizer, model.length, device=device, dtype="float32"
        )
        return Bench(model, judging, batch_size)

    def prompts(self, protocol: Any, num_samples: int) -> Texts:
        """Returns real text that no model has seen, with the part that is to be generated."""
        sequences = held_out_sequences(
            _of_prompts(self.model.config, num_samples),
            self.model.tokenizer,
            split="auto",
            whole_documents=False,
        )
        texts = held_out_texts(sequences, num_samples, protocol)
        return texts.where(texts.counted(self.model.config.data.layout).is_generated.any(1))

    def measure(self, row: Row, num_samples: int) -> dict[str, Any]:
        """Samples a row and returns its numbers; Table 3 has prefixes of random length and MAUVE."""
        is_table_3 = row.table == "table3"
        prompts = self.prompts("random" if is_table_3 else "half", num_samples)
        started = time.perf_counter()
        real = prompts.counted(self.model.config.data.layout)
        texts = prompts if row.system == "data" else self._sampled(prompts, row)
        seconds = time.perf_counter() - started
        numbers = self._numbers(texts.counted(self.model.config.data.layout), real)
        if is_table_3:
            features = (self.judge.features(each) for each in (real, texts))
            numbers["mauve"] = mauve(*features).score
        return numbers | {"seconds": seconds}

    def _sampled(self, prompts: Texts, row: Row) -> Texts:
        return sample_texts(self.model, prompts, row.sampling, 0, self.batch_size)

    def _numbers(self, texts: Texts, real: Texts) -> dict[str, Any]:
        nats, counts = self.judge.nats(texts), texts.is_generated.sum(1).double()
        likely = ratio_interval(nats, counts)
        num_tokens = int(SHARE_OF_TOKENS * int(real.is_generated.sum()))
        num_tokens = min(num_tokens, int(texts.is_generated.sum()))
        spread = pooled_entropy_interval(
            *first_tokens(texts.tokens, texts.is_generated, num_tokens)
        )
        statistics = text_statistics(texts.tokens, texts.is_generated, num_tokens=num_tokens)
        tokenizer, data = self.model.tokenizer, self.model.config.data
        numbers = {
            "nll": likely.value,
            "nll_error": (likely.high - likely.low) / (2 * NORMAL_95),
            "entropy": spread.value,
            "entropy_error": (spread.high - spread.low) / (2 * NORMAL_95),
            "repetition": statistics.repetition,
            "sample_entropy": statistics.sample_entropy,
            "num_tokens": num_tokens,
            "examples": [
                f"«{before}»{after}"
                for before, after in split_texts(texts.first(NUM_EXAMPLES), tokenizer)
            ],
        }
        exact = exact_scores(texts, data, tokenizer, self.judge)
        return numbers if exact is None else numbers | {"possible_share": exact.possible_share}


def _of_prompts(config: RunConfig, num_samples: int) -> RunConfig:
    """Returns the configuration whose held-out text has the prompts: of no seed that is trained."""
    data = replace(config.data, num_documents=4 * num_samples, valid_share=0.5)
    training = replace(config.training, seed=BEYOND_ALL_SEEDS + 1)
    return replace(config, data=data, training=training)
