"""A trained model in use: load a run, complete prompts, fill gaps.

model = cdcd.load("runs/demo")
print(model.complete("Once upon a time", num_samples=4, seed=0, score_temperature=0.9))
print(model.infill("The [5] went to the [3].", seed=0))
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from cdcd.data.tokenizer import EOS, PAD, Tokenizer
from cdcd.diffusion.embedding import Projection
from cdcd.diffusion.estimator import Estimator, Guided, NetworkEstimator, Replacement
from cdcd.diffusion.sampling import SamplingConfig, StepInfo, sample, time_grid
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.language_model import LanguageModel
from cdcd.networks.precision import Autocast, choose_device, choose_dtype
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.checkpoint import RunDirectory, check_shapes, without_prefix
from cdcd.training.config import RunConfig
from cdcd.training.trainer import build_model


@dataclass(frozen=True)
class Canvas:
    """A sequence to fill: given tokens, and None where one is to be generated."""

    tokens: tuple[int | None, ...]

    @property
    def is_noisy(self) -> list[bool]:
        return [token is None for token in self.tokens]


@dataclass(frozen=True)
class Generated:
    """One generated sequence."""

    text: str
    tokens: tuple[int, ...]
    """The tokens that are shown: up to the end of the document."""
    is_given: tuple[bool, ...]
    seed: tuple[int, int]
    """The seed and the index of the sample, from which its noise was drawn."""


class TextModel:
    """A trained diffusion language model with its tokenizer."""

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        model: LanguageModel,
        warp: TimeWarp,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.tokenizer, self.warp = config, tokenizer, warp
        self.device = next(model.parameters()).device
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.model = model.to(self.dtype).eval().requires_grad_(False)
        self.network = Autocast(self.model, self.device, dtype)
        self.table: Float[Tensor, "vocab embed"] = self.model.embedding.table().detach()

    @property
    def length(self) -> int:
        """Tokens in a sequence."""
        return self.config.data.length

    def complete(
        self,
        prompt: str = "",
        *,
        num_samples: int = 1,
        seed: int = 0,
        length: int | None = None,
        ignore_eos: bool = False,
        callback: Callable[[StepInfo], None] | None = None,
        **settings: Any,
    ) -> list[str]:
        """Texts that begin with `prompt`. `settings` are fields of SamplingConfig."""
        generated = self.generate(
            self.prompt_canvas(prompt, length),
            num_samples=num_samples,
            seed=seed,
            length=length,
            ignore_eos=ignore_eos,
            callback=callback,
            **settings,
        )
        return [each.text for each in generated]

    def infill(
        self,
        text: str,
        *,
        seed: int = 0,
        callback: Callable[[StepInfo], None] | None = None,
        **settings: Any,
    ) -> str:
        r"""The text with its gaps filled: `[5]` is a gap of five tokens, `\[5]` is plain text."""
        canvas = self.infill_canvas(text)
        return self.generate(canvas, seed=seed, callback=callback, **settings)[0].text

    def prompt_canvas(self, prompt: str, length: int | None = None) -> Canvas:
        """A prompt, and room for the rest."""
        tokens = self.tokenizer.encode(prompt.rstrip(), strict=True)
        room = self._checked_length(length)
        if len(tokens) >= room:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, but only {room} fit with at least one to "
                f"generate; shorten the prompt"
                + ("" if length is None else f" or raise --length to at most {self.length}")
            )
        return Canvas((*tokens, *[None] * (self.length - len(tokens))))

    def infill_canvas(self, text: str) -> Canvas:
        """A text with gaps, and its end."""
        tokens: list[int | None] = []
        for part in split_gaps(text):
            if isinstance(part, int):
                if not 1 <= part <= self.length:
                    raise ValueError(
                        f"a gap of [{part}] tokens cannot be filled: gaps have 1 to {self.length}"
                    )
                tokens += [None] * part
            else:
                tokens += self.tokenizer.encode(part, strict=True)
        if None not in tokens:
            raise ValueError("there is no gap in the text; write [5] for a gap of five tokens")
        if len(tokens) > self.length:
            raise ValueError(
                f"the text with its gaps has {len(tokens)} tokens, the model's sequences {self.length}"
            )
        return Canvas(tuple(self._ended(tokens)))

    def _ended(self, tokens: list[int | None]) -> list[int | None]:
        """Say that the document ends here; what would follow is padding, or another document."""
        room = self.length - len(tokens)
        after = PAD if self.config.data.layout == "documents" else None
        return [*tokens, EOS, *([after] * (room - 1))] if room else tokens

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
        batch_size: int = 64,
        callback: Callable[[StepInfo], None] | None = None,
        **settings: Any,
    ) -> list[Generated]:
        """Fill each canvas `num_samples` times. Sample i depends on (seed, i) alone, not on its batch."""
        for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        room = self._checked_length(length)
        config = override(self.config.sampling, settings)
        canvases = [canvas] if isinstance(canvas, Canvas) else list(canvas)
        jobs = [
            (c, (seed, i)) for i, c in enumerate(c for c in canvases for _ in range(num_samples))
        ]
        done: list[Generated] = []
        for start in range(0, len(jobs), batch_size):
            batch = jobs[start : start + batch_size]
            tokens = self._sample_batch(batch, config, callback)
            shown = zip(batch, tokens.tolist(), strict=True)
            done += [self._shown(c, place, row[:room], ignore_eos) for (c, place), row in shown]
        return done

    def _sample_batch(
        self,
        jobs: Sequence[tuple[Canvas, tuple[int, int]]],
        config: SamplingConfig,
        callback: Callable[[StepInfo], None] | None,
    ) -> Tensor:
        shape = (self.length, self.table.shape[1])
        noise = torch.stack(
            [torch.randn(shape, generator=generator_for(*place)) for _, place in jobs]
        ).to(self.device, self.dtype)
        rows = [[PAD if token is None else token for token in c.tokens] for c, _ in jobs]
        tokens = torch.tensor(rows, device=self.device)
        is_noisy = torch.tensor([c.is_noisy for c, _ in jobs], device=self.device)
        estimator = self.estimator(tokens, is_noisy, config, noise=noise)
        times = time_grid(config, self.config.process, self.warp.schedule(), self.dtype)
        found = sample(estimator, self.table, noise, times, config, callback=callback)
        return torch.where(is_noisy, found.tokens, tokens)

    def estimator(
        self, tokens: Tensor, is_noisy: Tensor, config: SamplingConfig, *, noise: Tensor
    ) -> Estimator:
        """The network with its conditioning, behind guidance or replacement where they are set."""
        objective, embedding = self.config.objective, self.config.embedding
        anything_given = not bool(is_noisy.all())
        self._check_sampling(config, anything_given)
        trained = Projection(renormalise=embedding.renormalise, clamp=embedding.clamp)
        conditional = NetworkEstimator(
            network=self.network,
            table=self.table,
            tokens=tokens,
            is_noisy=torch.ones_like(is_noisy) if config.replacement else is_noisy,
            self_conditioning=config.self_conditioning and objective.self_conditioning,
            softmax_temperature=config.softmax_temperature,
            nucleus=config.nucleus,
            trained=trained,
            projection=Projection(
                renormalise=embedding.renormalise or config.renormalise,
                clamp=embedding.clamp or config.clamp,
            ),
        )
        if config.replacement:
            given = F.embedding(tokens, self.table)
            return Replacement(conditional, given, is_noisy, noise)
        if config.guidance_scale == 1.0 or not anything_given:
            return conditional
        unconditional = replace(conditional, drop_conditioning=True)
        return Guided(conditional, unconditional, config.guidance_scale)

    def _check_sampling(self, config: SamplingConfig, anything_given: bool) -> None:
        objective = self.config.objective
        if (config.renormalise or config.clamp) and objective.self_conditioning:
            raise ValueError(
                "renormalise and clamp are sampling settings only for models trained without "
                "self-conditioning; train with embedding.renormalise or embedding.clamp instead"
            )
        if config.guidance_scale != 1.0 and not objective.conditioning_dropout:
            raise ValueError(
                "guidance needs a model trained with objective.conditioning_dropout above 0"
            )
        if config.replacement and objective.masking != "none":
            raise ValueError("replacement is for models trained with objective.masking none")
        if anything_given and objective.masking == "none" and not config.replacement:
            raise ValueError(
                "this model was trained without masks: condition it with --replacement true"
            )

    def _shown(
        self, canvas: Canvas, place: tuple[int, int], row: list[int], ignore_eos: bool
    ) -> Generated:
        is_given = tuple(not noisy for noisy in canvas.is_noisy[: len(row)])
        # The document ends at the first EOS that no given text follows.
        text = [i for i, token in enumerate(row) if is_given[i] and token not in (EOS, PAD)]
        first = text[-1] + 1 if text else 0
        if not ignore_eos and EOS in row[first:]:
            row = row[: row.index(EOS, first)]
            is_given = is_given[: len(row)]
        return Generated(self.tokenizer.decode(row), tuple(row), is_given, place)


def split_gaps(text: str) -> list[str | int]:
    r"""Text and gaps in turn: "The [5] went" -> ["The", 5, " went"]; `\[5]` stays text."""
    parts: list[str | int] = []
    for piece in re.split(r"((?<!\\)\[\d+\])", text):
        if re.fullmatch(r"\[\d+\]", piece):
            # The gap's first token brings its own space.
            if parts and isinstance(parts[-1], str):
                parts[-1] = parts[-1].rstrip(" ")
            parts.append(int(piece[1:-1]))
        elif piece:
            parts.append(re.sub(r"\\(\[\d+\])", r"\1", piece))
    return parts


def load(
    run: str | Path, *, checkpoint: int | None = None, device: str = "auto", dtype: str = "auto"
) -> TextModel:
    """Load a run's last checkpoint (its averaged weights where it kept them) for sampling."""
    directory = RunDirectory(Path(run))
    saved = directory.load(checkpoint)
    config, place = directory.config, choose_device(device)
    model = build_model(config, directory.vocab_size)
    weights = without_prefix("model", saved.weights)
    weights |= without_prefix("average", saved.weights)
    warp = TimeWarp(config.warp, config.process)
    warp_weights = without_prefix("warp", saved.weights)
    what = f"the checkpoint of step {saved.step} in {run}"
    check_shapes(model.state_dict(), weights, what)
    check_shapes(warp.state_dict(), warp_weights, what)
    model.load_state_dict(weights)
    warp.load_state_dict(warp_weights)
    return TextModel(
        config,
        directory.tokenizer,
        model.to(place),
        warp.to(place),
        dtype=choose_dtype(dtype, place),
    )
