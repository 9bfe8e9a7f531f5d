"""Translation by several samples: all of them, the chosen one, and why it is chosen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdcd.inference.translator import Translator
from cdcd.metrics.bleu import utility_for
from cdcd.metrics.mbr import mbr_by_count
from cdcd.serving.generation import check_steps
from cdcd.serving.limits import Limits

Emit = Callable[[str, Any], None]


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """All that the translations of a sentence depend on, besides the model."""

    text: str
    num_samples: int = 8
    seed: int = 0
    utility: str = "bleu"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self, translator: Translator, limits: Limits) -> None:
        """Raises an error where the translator cannot do what is asked."""
        if not self.text.strip():
            raise ValueError("there is no text to translate; write a sentence")
        if len(self.text.splitlines()) > 1:
            raise ValueError("the text has several lines; translate one at a time")
        check_steps(translator, self.settings, limits, self.num_samples)
        translator.encode(self.text)


def translate(translator: Translator, asked: Sentence, emit: Emit) -> dict[str, Any]:
    """Translates a sentence, and returns its samples, the likeness of each to each, and the choice."""
    count = asked.num_samples
    samples = translator.scored_samples(
        [asked.text],
        num_samples=count,
        seed=asked.seed,
        callback=lambda share: emit("progress", {"share": round(share, 3)}),
        **asked.settings,
    )
    texts, bonuses = samples.texts[0], samples.bonuses[0]
    utility = utility_for(asked.utility, translator.languages[1])
    likeness = np.asarray(utility(texts), np.float64)
    chosen = mbr_by_count(texts, bonuses, utility=utility)[0] if count > 1 else 0
    return {
        "samples": texts,
        "chosen": chosen,
        "utility": asked.utility,
        "likeness": likeness.round(1).tolist(),
        "mean": likeness.mean(1).round(2).tolist(),
        "bonuses": np.round(bonuses, 2).tolist(),
        "languages": list(translator.languages),
    }
