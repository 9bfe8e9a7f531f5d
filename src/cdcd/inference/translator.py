"""Translators: they translate sentences, by one sample or by the best of several (§6.6)."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.config import BeamConfig, DecodingConfig, MaskPredictConfig
from cdcd.data.order import keys_for
from cdcd.data.sequences import InMemory
from cdcd.data.subword_sampling import SubwordSampler
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.estimator import EstimatorFor
from cdcd.diffusion.sampling import SamplingConfig, StepInfo
from cdcd.inference.beam import beam_search
from cdcd.inference.decoder_settings import DiffusionSettings
from cdcd.inference.decoding import decode_targets, draw_uniform
from cdcd.inference.denoising_score import as_target, denoising_scores
from cdcd.inference.mask_predict import ends_at, mask_predict
from cdcd.inference.model import Callback, Model, check_counts
from cdcd.inference.rounds import Predicted
from cdcd.metrics.bleu import utility_for
from cdcd.metrics.mbr import mbr_batch

Done = Callable[[float], None]
"""A callback that gets the share that is done, from 0 to 1."""
Seed = tuple[int, int, int]
"""The seed, the index of the text and that of the sample: what a sample's draws depend on."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over the unit interval, however many there are."""


@dataclass(frozen=True)
class Samples:
    """Translations of some texts, several of each."""

    texts: list[list[str]]
    confidence: list[list[float]]
    """The mean ln p of the tokens of each; 0 where it is not known."""
    confidence_weight: float = 0.0
    """Points of a utility for a confidence of 1."""
    scores: list[list[float]] = field(default_factory=list)
    """The denoising score of each in nats a token, where it has a weight."""
    score_weight: float = 0.0
    """Points of a utility for a score of 1."""

    @property
    def bonuses(self) -> list[list[float]]:
        """The points of a utility that each translation gets for its confidence and its score."""
        bonuses = np.multiply(self.confidence_weight, self.confidence)
        if self.score_weight:
            bonuses = bonuses + np.multiply(self.score_weight, self.scores)
        return bonuses.tolist()


class Translator(Model):
    """A translator in use."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.config.data.direction

    def translate(
        self, texts: Sequence[str], *, num_samples: int = 1, utility: str = "bleu", **options: Any
    ) -> list[str]:
        """Translates each text: with several samples, by the one most like the others (`metrics.mbr`).

        The other options are those of `scored_samples`.
        """
        compare = utility_for(utility, self.languages[1]) if num_samples > 1 else None
        samples = self.scored_samples(texts, num_samples=num_samples, **options)
        if compare is None:
            return [row[0] for row in samples.texts]
        chosen = mbr_batch(samples.texts, compare, bonuses=samples.bonuses)[:, 0]
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
        score_weight: float = 0.0,
        callback: Done | None = None,
        **settings: Any,
    ) -> Samples:
        """Returns several translations of each text; of an empty one, empty ones.

        Sample j of text i depends on (seed, i, j) alone. `batch_size` counts translations. `settings` are
        fields of the decoder's dataclass (see `settings`); "decoder" chooses another. With a `score_weight`
        each translation gets its denoising score.
        """
        check_counts(num_samples=num_samples, batch_size=batch_size)
        chosen = self.settings(settings, num_samples)
        if score_weight and num_samples == 1:
            raise ValueError("score_weight chooses among several samples; leave it out")
        score = self.scorer("score_weight") if score_weight else None
        samples = Samples(
            [[""] * num_samples for _ in texts],
            [[0.0] * num_samples for _ in texts],
            getattr(chosen, "confidence_weight", 0.0),
            [[0.0] * num_samples for _ in texts],
            score_weight,
        )
        sources = {i: self.encode(text) for i, text in enumerate(texts) if text.strip()}
        # Texts of like length are ready at the same time.
        by_length = sorted(sources, key=lambda i: sources[i].count(PAD), reverse=True)
        batches = _batches(by_length, num_samples, batch_size)
        for index, (rows, pairs) in enumerate(batches):

            def done(share: float, index: int = index) -> None:
                if callback is not None:
                    callback((index + share) / len(batches))

            source = torch.tensor([sources[i] for i in rows], device=self.device)
            filled = self.fill(source, [(seed, i, j) for i, j in pairs], chosen, done)
            if score is not None:
                scores = score(source, filled.tokens, seed).tolist()
                for (i, j), value in zip(pairs, scores, strict=True):
                    samples.scores[i][j] = value
            done(1.0)
            targets, confidence = filled.tokens.tolist(), filled.confidence.tolist()
            for (i, j), target, value in zip(pairs, targets, confidence, strict=True):
                samples.texts[i][j], samples.confidence[i][j] = self.decode(target), value
        return samples

    @abstractmethod
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: Any,
        done: Done,
    ) -> Predicted:
        """Generates a target for each seed; there can be several a source, which follow one another."""

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


class DiffusionTranslator(Translator):
    """A diffusion translator: the whole target at once, from noise."""

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: DiffusionSettings,
        done: Done,
    ) -> Predicted:
        def callback(info: StepInfo) -> None:
            done((info.index + 1) / info.num_steps)

        if isinstance(settings, MaskPredictConfig):
            return self._mask_predict(self._split_anew(source, seeds), seeds, settings, callback)
        estimator = self.conditioned(source, settings)(*self._nothing_given(len(seeds)))
        tokens = self.sampler.solve(estimator, self.sampler.draw(seeds), settings, callback)
        return Predicted(tokens, torch.zeros(len(tokens)))

    def scorer(self, option: str) -> Callable[..., Float[Tensor, " batch"]]:
        return self.scores

    def scores(
        self, source: Int[Tensor, "sources source"], targets: Int[Tensor, "batch seq"], seed: int
    ) -> Float[Tensor, " batch"]:
        """Returns the denoising score of each target's tokens, in nats a token."""
        tokens, is_text = as_target(targets)
        is_noisy = torch.ones_like(is_text)
        estimator = self.conditioned(source, SamplingConfig())(tokens, is_noisy)
        return denoising_scores(self.sampler, estimator, tokens, is_text, seed)

    def _split_anew(
        self, source: Int[Tensor, "sources source"], seeds: Sequence[Seed]
    ) -> Int[Tensor, "batch_or_sources source"]:
        """Returns a source for each seed, its words split as in training but for a text's first sample."""
        alpha = self.config.data.subword_sampling
        is_further = np.array([sample > 0 for _, _, sample in seeds])
        if not (alpha and is_further.any()):
            return source
        rows = np.arange(len(seeds)) // (len(seeds) // len(source))
        keys = np.concatenate([keys_for("pieces", *seed, count=1) for seed in seeds])
        varied = SubwordSampler(InMemory(source.cpu()), self.tokenizer, alpha).draw(rows, keys)
        chosen = torch.where(torch.from_numpy(is_further)[:, None], varied, source.cpu()[rows])
        return chosen.to(self.device)

    def _nothing_given(self, rows: int) -> tuple[Tensor, Tensor]:
        """Returns tokens that are all noisy, and their mask."""
        shape = (rows, self.config.data.length)
        is_noisy = torch.ones(shape, dtype=torch.bool, device=self.device)
        return torch.full(shape, PAD, device=self.device), is_noisy

    def conditioned(
        self, source: Int[Tensor, "sources source"], settings: DiffusionSettings
    ) -> EstimatorFor:
        """Returns the estimators of some sources for any given tokens."""
        is_guided = isinstance(settings, SamplingConfig) and settings.guidance_scale != 1.0
        rows = source.repeat(2, 1) if is_guided else source
        is_dropped = torch.arange(len(rows), device=self.device) >= len(source)
        with self.network.precision():
            encoded = self.sampler.model.encode(rows, is_dropped)
        return partial(self.sampler.estimator, settings=settings, condition=encoded)

    def _mask_predict(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: MaskPredictConfig,
        callback: Callback,
    ) -> Predicted:
        """Predicts the length first, then the tokens; of several lengths keeps the most confident target."""
        tries = settings.num_lengths
        tried = self.sampler.draw([seed for seed in seeds for _ in range(tries)])
        estimator_for = self.conditioned(source, settings)
        x, t = self.sampler.start(tried.noise)
        tokens, is_noisy = self._nothing_given(len(t))
        first = estimator_for(tokens, is_noisy)(x, t, None)
        # Lengths lie in equal parts of their distribution: anywhere, or in the middle, and further
        # samples evenly around it.
        spread = [(0.5 + GOLDEN * sample) % 1 for _, _, sample in seeds]
        evenly = torch.tensor(spread, dtype=t.dtype, device=self.device).repeat_interleave(tries)
        within = tried.u_length if settings.temperature else evenly
        part = torch.arange(tries, device=self.device).repeat(len(seeds))
        end = ends_at(first.logits, (part + within) / tries, settings.temperature or 1.0)
        position = torch.arange(tokens.shape[1], device=self.device)
        predicted = mask_predict(
            estimator_for,
            tokens.masked_fill(position == end, EOS),
            is_noisy & (position < end),
            x,
            t,
            settings,
            u=tried.u,
            never=(PAD, EOS),
            state=first.state,
            callback=callback,
        )
        best = predicted.confidence.unflatten(0, (-1, tries)).max(1)
        rows = torch.arange(len(seeds), device=self.device)
        return Predicted(
            predicted.tokens.unflatten(0, (-1, tries))[rows, best.indices], best.values
        )


class AutoregressiveTranslator(Translator):
    """An autoregressive translator: beam search, or tokens drawn one by one where many are wanted."""

    @torch.no_grad()
    def fill(
        self,
        source: Int[Tensor, "sources source"],
        seeds: Sequence[Seed],
        settings: BeamConfig | DecodingConfig,
        done: Done,
    ) -> Predicted:
        with self.network.precision():
            if isinstance(settings, BeamConfig):
                targets = beam_search(self.model, source, settings).best()
            else:
                u = draw_uniform(seeds, self.model.length).to(self.device)
                targets = decode_targets(self.model, source, u, settings)
        return Predicted(targets, torch.zeros(len(targets)))


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
