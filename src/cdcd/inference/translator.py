"""What every translator can do: translate sentences, alone or by many samples of each (§6.6)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.config import BeamConfig, DecodingConfig, RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.sampling import SamplingConfig

Done = Callable[[float], None]
"""Told how much is done, from 0 to 1."""
SURENESS = 45.0
"""Utility for each nat a token that a settled sample is surer than another, in points of BLEU or chrF."""
Place = tuple[int, int, int]
"""The seed, the number of the sentence and that of the sample: what a sample's noise depends on."""


@dataclass(frozen=True)
class Filled:
    """Targets, and how sure the model is of each."""

    tokens: Int[Tensor, "batch seq"]
    sureness: Float[Tensor, " batch"] | None = None
    """The mean of ln p over the tokens, where it is known."""


@dataclass(frozen=True)
class Samples:
    """Translations of some texts, several of each."""

    texts: list[list[str]]
    sureness: list[list[float]]
    """The mean ln p of the tokens of each; 0 where it is not known."""

    def bonuses(self, weight: float) -> list[list[float]]:
        """What each is worth for its sureness, in points of a utility."""
        return [[weight * each for each in row] for row in self.sureness]


def check_sureness(weight: float) -> None:
    """Refuse a weight of sureness that could choose nothing, before anything is sampled."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"sureness is {weight}, it must be a number from 0 on")


def names_of(settings: type) -> frozenset[str]:
    """The settings of a dataclass."""
    return frozenset(field.name for field in fields(settings))


SETTINGS = names_of(SamplingConfig) | names_of(DecodingConfig) | names_of(BeamConfig)
"""Settings of some translator."""


def refuse_others(changes: Mapping[str, Any], others: frozenset[str], model: str) -> None:
    """A setting of another kind of model is a mistake, not a thing to ignore."""
    if wrong := sorted(others & set(changes)):
        raise ValueError(f"{wrong[0]} is no setting of {model} translators; leave it out")


class Translator(ABC):
    """A trained translator with its tokenizer."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer, device: torch.device) -> None:
        self.config, self.tokenizer, self.device = config, tokenizer, device

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.config.data.direction

    @abstractmethod
    def settings(self, changes: Mapping[str, Any], num_samples: int = 1) -> Any:
        """The run's own settings with changes."""

    @abstractmethod
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        places: Sequence[Place],
        settings: Any,
        done: Done,
    ) -> Filled:
        """A target for each place; there can be several a source, which follow one another."""

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_samples: int = 1,
        utility: str = "bleu",
        sureness: float = SURENESS,
        seed: int = 0,
        batch_size: int = 64,
        callback: Done | None = None,
        **settings: Any,
    ) -> list[str]:
        """Translate each text: with several samples, the one most like the others (`evaluation.mbr`).

        `sureness` weighs what the model says of its own settled samples; 0: only what they say of
        each other counts.
        """
        from cdcd.metrics.bleu import utility_for
        from cdcd.metrics.mbr import mbr_batch

        check_sureness(sureness)
        chosen_by = utility_for(utility, self.languages[1]) if num_samples > 1 else None
        samples = self.scored_samples(
            texts,
            num_samples=num_samples,
            seed=seed,
            batch_size=batch_size,
            callback=callback,
            **settings,
        )
        if chosen_by is None:
            return [each[0] for each in samples.texts]
        chosen = mbr_batch(samples.texts, chosen_by, bonuses=samples.bonuses(sureness))[:, 0]
        return [each[int(choice)] for each, choice in zip(samples.texts, chosen, strict=True)]

    def samples(self, texts: Sequence[str], **options: Any) -> list[list[str]]:
        """Several translations of each text; the options are those of `scored_samples`."""
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
        """Several translations of each text; of an empty one, empty ones.

        Sample j of text i depends on (seed, i, j) alone. `batch_size` counts translations.
        """
        for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        chosen = self.settings(settings, num_samples)
        found = [[""] * num_samples for _ in texts]
        sureness = [[0.0] * num_samples for _ in texts]
        sources = {i: self.encode(text) for i, text in enumerate(texts) if text.strip()}
        # Texts of like length are ready at the same time.
        by_length = sorted(sources, key=lambda i: sources[i].count(PAD), reverse=True)
        batches = _batches(by_length, num_samples, batch_size)
        for number, (rows, columns) in enumerate(batches):

            def done(share: float, number: int = number) -> None:
                if callback is not None:
                    callback((number + share) / len(batches))

            filled = self.fill(
                torch.tensor([sources[i] for i in rows], device=self.device),
                [(seed, i, j) for i in rows for j in columns],
                chosen,
                done,
            )
            done(1.0)
            sure = (
                [0.0] * len(filled.tokens) if filled.sureness is None else filled.sureness.tolist()
            )
            shown = zip(map(self.decode, filled.tokens.tolist()), sure, strict=True)
            for i in rows:
                for j in columns:
                    found[i][j], sureness[i][j] = next(shown)
        return Samples(found, sureness)

    def num_tokens(self, text: str) -> int:
        """Tokens of a text to translate, its end included."""
        return len(self.tokenizer.encode(text)) + 1

    def encode(self, text: str) -> list[int]:
        """A text as the model reads it."""
        tokens, room = [*self.tokenizer.encode(text), EOS], self.config.data.source_length
        if len(tokens) > room:
            raise ValueError(
                f"the text {text[:40]!r}… has {len(tokens)} tokens, this model reads at most {room}; "
                f"split it into sentences"
            )
        return [*tokens, *[PAD] * (room - len(tokens))]

    def decode(self, target: list[int]) -> str:
        """A target as text: what follows its first end is discarded."""
        end = target.index(EOS) if EOS in target else len(target)
        return self.tokenizer.decode([token for token in target[:end] if token != PAD])


def _batches(
    numbers: list[int], num_samples: int, batch_size: int
) -> list[tuple[list[int], range]]:
    """Texts and samples that are made together, as many samples of each."""
    at_once = min(num_samples, batch_size)
    texts = batch_size // at_once
    return [
        (numbers[first : first + texts], range(start, min(start + at_once, num_samples)))
        for start in range(0, num_samples, at_once)
        for first in range(0, len(numbers), texts)
    ]
