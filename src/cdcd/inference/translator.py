"""Translators: they translate sentences, by one sample or by the best of several (§6.6)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cdcd.data.vocabulary import EOS, PAD
from cdcd.inference.mask_predict import Predicted
from cdcd.inference.model import Model, check_counts
from cdcd.metrics.bleu import utility_for
from cdcd.metrics.mbr import mbr_batch

Done = Callable[[float], None]
"""A callback that gets the share that is done, from 0 to 1."""
Seed = tuple[int, int, int]
"""The seed, the index of the text and that of the sample: what a sample's draws depend on."""


@dataclass(frozen=True)
class Samples:
    """Translations of some texts, several of each."""

    texts: list[list[str]]
    confidence: list[list[float]]
    """The mean ln p of the tokens of each; 0 where it is not known."""

    def bonuses(self, settings: Any) -> list[list[float]]:
        """Returns the points of a utility that each translation gets for its confidence."""
        weight = getattr(settings, "confidence_weight", 0.0)
        return [[weight * confidence for confidence in row] for row in self.confidence]


class Translator(Model):
    """A translator in use."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.config.data.direction

    @abstractmethod
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: Any,
        done: Done,
    ) -> Predicted:
        """Generates a target for each seed; there can be several a source, which follow one another."""

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_samples: int = 1,
        utility: str = "bleu",
        seed: int = 0,
        batch_size: int = 64,
        callback: Done | None = None,
        **settings: Any,
    ) -> list[str]:
        """Translates each text: with several samples, by the one most like the others (`metrics.mbr`).

        `settings` are fields of the decoder's dataclass (see `settings`); "decoder" chooses another.
        """
        compare = utility_for(utility, self.languages[1]) if num_samples > 1 else None
        samples = self.scored_samples(
            texts,
            num_samples=num_samples,
            seed=seed,
            batch_size=batch_size,
            callback=callback,
            **settings,
        )
        if compare is None:
            return [row[0] for row in samples.texts]
        bonuses = samples.bonuses(self.settings(settings, num_samples))
        chosen = mbr_batch(samples.texts, compare, bonuses=bonuses)[:, 0]
        return [row[int(choice)] for row, choice in zip(samples.texts, chosen, strict=True)]

    def samples(self, texts: Sequence[str], **options: Any) -> list[list[str]]:
        """Returns several translations of each text; the options are those of `scored_samples`."""
        return self.scored_samples(texts, **options).texts

    def scored_samples(
        self,
        texts: Sequence[str],
        *,
        num_samples: int = 1,
        seed: int = 0,
        batch_size: int = 64,
        callback: Done | None = None,
        **settings: Any,
    ) -> Samples:
        """Returns several translations of each text; of an empty one, empty ones.

        Sample j of text i depends on (seed, i, j) alone. `batch_size` counts translations.
        """
        check_counts(num_samples=num_samples, batch_size=batch_size)
        chosen = self.settings(settings, num_samples)
        samples = Samples([[""] * num_samples for _ in texts], [[0.0] * num_samples for _ in texts])
        sources = {i: self.encode(text) for i, text in enumerate(texts) if text.strip()}
        # Texts of like length are ready at the same time.
        by_length = sorted(sources, key=lambda i: sources[i].count(PAD), reverse=True)
        batches = _batches(by_length, num_samples, batch_size)
        for index, (rows, pairs) in enumerate(batches):

            def done(share: float, index: int = index) -> None:
                if callback is not None:
                    callback((index + share) / len(batches))

            filled = self.fill(
                torch.tensor([sources[i] for i in rows], device=self.device),
                [(seed, i, j) for i, j in pairs],
                chosen,
                done,
            )
            done(1.0)
            targets, confidence = filled.tokens.tolist(), filled.confidence.tolist()
            for (i, j), target, value in zip(pairs, targets, confidence, strict=True):
                samples.texts[i][j], samples.confidence[i][j] = self.decode(target), value
        return samples

    def num_tokens(self, text: str) -> int:
        """Counts the tokens of a text to translate, its end included."""
        return len(self.tokenizer.encode(text)) + 1

    def fits(self, text: str) -> bool:
        """Returns whether a text is short enough for the model to read."""
        return self.num_tokens(text) <= self.config.data.source_length

    def encode(self, text: str) -> list[int]:
        """Returns a text as the model reads it."""
        tokens, length = [*self.tokenizer.encode(text), EOS], self.config.data.source_length
        if len(tokens) > length:
            raise ValueError(
                f"the text {text[:40]!r}… has {len(tokens)} tokens, this model reads at most {length}; "
                f"split it into sentences"
            )
        return [*tokens, *[PAD] * (length - len(tokens))]

    def decode(self, target: list[int]) -> str:
        """Returns a target as text; everything after its first end is discarded."""
        end = target.index(EOS) if EOS in target else len(target)
        return self.tokenizer.decode([token for token in target[:end] if token != PAD])


def _batches(
    rows: list[int], num_samples: int, batch_size: int
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Returns texts that are translated together, and the (text, sample) of each row of their batch."""
    at_once = min(num_samples, batch_size)
    texts = batch_size // at_once
    batches = []
    for start in range(0, num_samples, at_once):
        samples = range(start, min(start + at_once, num_samples))
        for first in range(0, len(rows), texts):
            chosen = rows[first : first + texts]
            batches.append((chosen, [(i, j) for i in chosen for j in samples]))
    return batches
