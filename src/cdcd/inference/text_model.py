"""Text models: they complete prompts; diffusion and masked models fill any gaps of a text."""

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.config import DecodingConfig
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.masked import UnmaskingConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.inference.changes import (
    Change,
    ResolvedChange,
    Stage,
    given_after,
    resolve,
    solve_in_stages,
)
from cdcd.inference.decoder_settings import DiffusionSettings
from cdcd.inference.decoding import DecodingStep, decode, draw_uniform, never_drawn
from cdcd.inference.denoising_score import denoising_scores
from cdcd.inference.mask_predict import mask_predict
from cdcd.inference.model import Callback, Model, check_counts
from cdcd.inference.unmasking import UnmaskingStep, unmask


@dataclass(frozen=True)
class Canvas:
    """A sequence to fill: given tokens, and None where one is to be generated."""

    tokens: tuple[int | None, ...]

    @property
    def is_noisy(self) -> list[bool]:
        return [token is None for token in self.tokens]

    def after(self, changes: Sequence[ResolvedChange]) -> "Canvas":
        """Returns the canvas with the tokens that changes give or free."""
        changed = dict(enumerate(self.tokens))
        for change in changes:
            changed |= change.tokens
        return Canvas(tuple(changed[i] for i in range(len(self.tokens))))


@dataclass(frozen=True)
class Generated:
    """One generated sequence."""

    text: str
    tokens: tuple[int, ...]
    """The tokens that are shown: up to the end of the document."""
    is_given: tuple[bool, ...]
    seed: tuple[int, int]
    """The seed and the index of the sample, from which its noise was drawn."""
    score: float | None = None
    """Its denoising score in nats a token, where it was chosen among several."""


class TextModel(Model):
    """A language model in use: it completes prompts and fills gaps."""

    @property
    def length(self) -> int:
        """Tokens in a sequence."""
        return self.config.data.length

    def complete(self, prompt: str = "", *, length: int | None = None, **options: Any) -> list[str]:
        """Returns texts that begin with `prompt`; the options are those of `generate`."""
        canvas = self.prompt_canvas(prompt, length)
        return [each.text for each in self.generate(canvas, length=length, **options)]

    def infill(self, text: str, **options: Any) -> str:
        r"""Returns a text with its gaps filled: `[5]` is a gap of five tokens, `\[5]` is plain text.

        `[*]`, at the end, is a gap of any length. The options are those of `generate`.
        """
        return self.generate(self.infill_canvas(text), **options)[0].text

    def prompt_canvas(self, prompt: str, length: int | None = None) -> Canvas:
        """Returns a canvas that begins with a prompt."""
        tokens = self.tokenizer.encode(prompt.rstrip(), strict=True)
        limit = self._checked_length(length)
        if len(tokens) >= limit:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, but only {limit} fit with at least one to "
                f"generate; shorten the prompt"
                + ("" if length is None else f" or raise --length to at most {self.length}")
            )
        return Canvas((*tokens, *[None] * (self.length - len(tokens))))

    def infill_canvas(self, text: str) -> Canvas:
        """Returns the canvas of a text with gaps: it ends there, unless its last gap is of any length."""
        parts = split_gaps(text)
        is_open = parts[-1:] == [None]
        tokens = self._with_gaps(parts[:-1] if is_open else parts)
        if None not in tokens and not is_open:
            raise ValueError("there is no gap in the text; write [5] for a gap of five tokens")
        if len(tokens) + is_open > self.length:
            raise ValueError(
                f"the text with its gaps has {len(tokens)} tokens, the model's sequences {self.length}"
            )
        if is_open:
            return Canvas((*tokens, *[None] * (self.length - len(tokens))))
        # The document ends here; padding follows, or another document.
        after = PAD if self.config.data.layout == "documents" else None
        ended = [*tokens, EOS, *[after] * (self.length - len(tokens) - 1)]
        return Canvas(tuple(ended[: self.length]))

    def _with_gaps(self, parts: Sequence[str | int | None]) -> list[int | None]:
        """Returns the tokens of texts and gaps; None is one to be generated."""
        tokens: list[int | None] = []
        for part in parts:
            if part is None:
                raise ValueError("a gap of any length, [*], can only be at the end of the text")
            if isinstance(part, str):
                tokens += self.tokenizer.encode(part, strict=True)
            elif 1 <= part <= self.length:
                tokens += [None] * part
            else:
                raise ValueError(
                    f"a gap of [{part}] tokens cannot be filled: gaps have 1 to {self.length}"
                )
        return tokens

    def _checked_length(self, length: int | None) -> int:
        if length is not None and not 1 <= length <= self.length:
            raise ValueError(
                f"length is {length}, but this model's sequences have {self.length} tokens: "
                f"choose 1 to {self.length}"
            )
        return length or self.length

    def generate(
        self,
        canvas: Canvas | Sequence[Canvas],
        *,
        num_samples: int = 1,
        seed: int = 0,
        length: int | None = None,
        ignore_eos: bool = False,
        best_of: int = 1,
        batch_size: int = 64,
        changes: Sequence[Change] = (),
        callback: Callable[[Any], None] | None = None,
        **settings: Any,
    ) -> list[Generated]:
        """Fills each canvas `num_samples` times. Sample i depends on (seed, i) alone, not on its batch.

        `settings` are fields of SamplingConfig; with decoder "mask-predict" those of MaskPredictConfig;
        of an autoregressive model those of DecodingConfig, of a masked one those of UnmaskingConfig. `length`
        is the number of tokens that are shown, up to the end of the document or, with `ignore_eos`, beyond it.
        Of `best_of` samples the one with the highest denoising score is kept, for each of `num_samples`.
        `changes` are made in the course of sampling, each from a step on (see `inference.changes`).
        """
        check_counts(num_samples=num_samples, best_of=best_of, batch_size=batch_size)
        limit, chosen = self._checked_length(length), self.settings(settings)
        resolved = self.resolved(changes, settings) if changes else []
        more: dict[str, Any] = {"callback": callback}
        if resolved:
            more["changes"] = resolved
        score = self.scorer("best_of") if best_of > 1 else None
        canvases = [canvas] if isinstance(canvas, Canvas) else canvas
        jobs = [each for each in canvases for _ in range(num_samples * best_of)]
        done: list[Generated] = []
        for start in range(0, len(jobs), batch_size):
            batch = jobs[start : start + batch_size]
            seeds = [(seed, start + i) for i in range(len(batch))]
            rows = [[PAD if token is None else token for token in each.tokens] for each in batch]
            is_noisy = torch.tensor([each.is_noisy for each in batch], device=self.device)
            tokens = torch.tensor(rows, device=self.device)
            filled = self.fill(tokens, is_noisy, seeds, chosen, **more)
            batch = [each.after(resolved) for each in batch]
            scores: list[float | None] = [None] * len(batch)
            if score is not None:
                is_noisy = torch.tensor([each.is_noisy for each in batch], device=self.device)
                scores = score(filled, is_noisy, seed).tolist()
            columns = zip(batch, seeds, filled.tolist(), scores, strict=True)
            for each, own_seed, row, value in columns:
                done.append(self._generated(each, own_seed, row[:limit], ignore_eos, value))
        return done if best_of == 1 else best_by_score(done, best_of)

    def resolved(
        self, changes: Sequence[Change], settings: Mapping[str, Any]
    ) -> list[ResolvedChange]:
        """Returns changes with all settings, those of the sample among them."""
        return resolve(changes, self.config, self.tokenizer, settings)

    @abstractmethod
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: Any,
        *,
        callback: Callable[[Any], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        """Generates the noisy positions of sequences; row i draws from (seed, index) = seeds[i].

        The callback gets each step: a StepInfo of a diffusion model, an UnmaskingStep of a masked one, else
        a DecodingStep.
        """

    def _generated(
        self,
        canvas: Canvas,
        seed: tuple[int, int],
        row: list[int],
        ignore_eos: bool,
        score: float | None = None,
    ) -> Generated:
        is_given = tuple(not noisy for noisy in canvas.is_noisy[: len(row)])
        # The document ends at the first EOS that no given text follows.
        text = [i for i, token in enumerate(row) if is_given[i] and token not in (EOS, PAD)]
        first = text[-1] + 1 if text else 0
        if not ignore_eos and EOS in row[first:]:
            row = row[: row.index(EOS, first)]
            is_given = is_given[: len(row)]
        return Generated(self.tokenizer.decode(row), tuple(row), is_given, seed, score)


class DiffusionTextModel(TextModel):
    """A diffusion language model: fills any gaps of a sequence, all positions at once."""

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: DiffusionSettings,
        *,
        callback: Callback | None = None,
        changes: Sequence[ResolvedChange] = (),
    ) -> Int[Tensor, "batch seq"]:
        if changes:
            return self._fill_in_stages(tokens, is_noisy, seeds, settings, callback, changes)
        draws = self.sampler.draw(seeds)
        estimator = partial(self.sampler.estimator, settings=settings, noise=draws.noise)
        if isinstance(settings, SamplingConfig):
            given = estimator(tokens, is_noisy)
            predicted = self.sampler.solve(given, draws, settings, callback)
            return torch.where(is_noisy, predicted, tokens)
        x, t = self.sampler.start(draws.noise)
        return mask_predict(
            estimator, tokens, is_noisy, x, t, settings, u=draws.u, callback=callback
        ).tokens

    def _fill_in_stages(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: DiffusionSettings,
        callback: Callback | None,
        changes: Sequence[ResolvedChange],
    ) -> Int[Tensor, "batch seq"]:
        """Fills sequences in the stages between changes."""
        assert isinstance(settings, SamplingConfig)
        unchanged = ResolvedChange(0, {}, None, settings)
        stages, form = [], None
        for change in (unchanged, *changes):
            tokens, is_noisy = given_after(change, tokens, is_noisy)
            if change.seed is not None:
                seeds = [(change.seed, index) for _, index in seeds]
            draws, chosen = self.sampler.draw(seeds), change.settings
            estimator = self.sampler.estimator(tokens, is_noisy, chosen, noise=draws.noise)
            form, before = self.sampler.state_form(is_noisy, chosen), form
            is_new = change.seed is not None
            stages.append(Stage(change.step, estimator, draws, chosen, is_new, form != before))
        predicted = solve_in_stages(self.sampler, stages, callback)
        return torch.where(is_noisy, predicted, tokens)

    def scorer(self, option: str) -> Callable[..., Float[Tensor, " batch"]]:
        return self.scores

    def scores(
        self, tokens: Int[Tensor, "batch seq"], is_noisy: Bool[Tensor, "batch seq"], seed: int
    ) -> Float[Tensor, " batch"]:
        """Returns the denoising score of each sequence's generated tokens, in nats a token."""
        # A model that was trained without masks sees all tokens in noise.
        has_masks = self.config.objective.masking != "none"
        hidden = is_noisy if has_masks else torch.ones_like(is_noisy)
        estimator = self.sampler.estimator(tokens, hidden, SamplingConfig())
        return denoising_scores(self.sampler, estimator, tokens, is_noisy, seed)


class MaskedTextModel(TextModel):
    """A masked language model: fills any gaps of a sequence, some tokens in each step."""

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: UnmaskingConfig,
        *,
        callback: Callable[[UnmaskingStep], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        drawn = draw_uniform(seeds, 2 * tokens.shape[1]).to(self.device, self.dtype)
        u, order = drawn.chunk(2, dim=1)
        asked = {"u": u, "order": order, "callback": callback}
        return unmask(self.network, tokens, is_noisy, settings, **asked).tokens


class AutoregressiveTextModel(TextModel):
    """An autoregressive language model: completes prompts, token by token."""

    def infill_canvas(self, text: str) -> Canvas:
        if any(isinstance(part, int) for part in split_gaps(text)):
            raise ValueError(
                "an autoregressive model cannot fill gaps, only [*] at the end: use a diffusion model"
            )
        return super().infill_canvas(text)

    @torch.no_grad()
    def fill(
        self,
        tokens: Int[Tensor, "batch seq"],
        is_noisy: Bool[Tensor, "batch seq"],
        seeds: Sequence[tuple[int, int]],
        settings: DecodingConfig,
        *,
        callback: Callable[[DecodingStep], None] | None = None,
    ) -> Int[Tensor, "batch seq"]:
        u = draw_uniform(seeds, tokens.shape[1]).to(self.device)
        asked = {"suppress": never_drawn(settings), "callback": callback}
        with self.network.precision():
            return decode(self.model, tokens, ~is_noisy, u, settings, **asked)


def best_by_score(generated: Sequence[Generated], best_of: int) -> list[Generated]:
    """Returns the sample with the highest score of each group of so many, the first of equal ones."""
    groups = [generated[i : i + best_of] for i in range(0, len(generated), best_of)]
    return [max(group, key=lambda each: each.score or 0.0) for group in groups]


def split_gaps(text: str) -> list[str | int | None]:
    r"""Returns text and gaps in turn: "The [5] went" -> ["The", 5, " went"]; `\[5]` stays text.

    None is a gap of any length, `[*]`.
    """
    parts: list[str | int | None] = []
    for piece in re.split(r"((?<!\\)\[(?:\d+|\*)\])", text):
        if re.fullmatch(r"\[(\d+|\*)\]", piece):
            # The gap's first token brings its own space.
            if parts and isinstance(parts[-1], str):
                parts[-1] = parts[-1].rstrip(" ")
            parts.append(None if piece == "[*]" else int(piece[1:-1]))
        elif piece:
            parts.append(re.sub(r"\\(\[(?:\d+|\*)\])", r"\1", piece))
    return parts


def escaped(text: str) -> str:
    """Returns a text with gaps in which nothing of this text is one."""
    return re.sub(r"(\[(?:\d+|\*)\])", r"\\\1", text)


def as_prompt(text: str) -> str:
    """Returns the text with gaps that a prompt is: it goes on to any length."""
    return f"{escaped(text.rstrip())} [*]".lstrip()
