"""Trained models read from run directories.

model = cdcd.load("runs/demo")
print(model.complete("Once upon a time", num_samples=4, seed=0, score_temperature=0.9))
print(model.infill("The [5] went to the [3].", seed=0))

translator = cdcd.load_translator("runs/numerals")
print(translator.translate(["Anna gets up at half past two."], num_samples=10))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cdcd.config import RunConfig
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.autoregressive_text import AutoregressiveTextModel
from cdcd.inference.autoregressive_translator import AutoregressiveTranslator
from cdcd.inference.diffusion_text import DiffusionTextModel
from cdcd.inference.diffusion_translator import DiffusionTranslator
from cdcd.inference.text_model import TextModel
from cdcd.inference.translator import Translator
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.training.build import build_model
from cdcd.training.checkpoint import Checkpoint, RunDirectory, check_shapes, without_prefix
from cdcd.training.tasks import AnyNetwork


def load(
    run: str | Path,
    *,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> TextModel:
    """Load a run's last checkpoint (its averaged weights where it kept them) for sampling.

    `compile` is for diffusion models on a GPU: `auto` captures a network call as a CUDA graph; `on`
    compiles it; `graphs` does both, which takes longest to start and is fastest; `off` does neither.
    """
    loaded = load_parts(run, checkpoint=checkpoint, device=device, dtype=dtype)
    config, tokenizer, number = loaded.config, loaded.tokenizer, loaded.dtype
    match loaded.model:
        case AutoregressiveTextNetwork():
            return AutoregressiveTextModel(config, tokenizer, loaded.model, dtype=number)
        case DiffusionTextNetwork():
            return DiffusionTextModel(
                config, tokenizer, loaded.model, loaded.warp(), dtype=number, compile=compile
            )
    raise ValueError(f"{run} is a translator, no language model: use cdcd translate")


def load_diffusion(run: str | Path, **options: Any) -> DiffusionTextModel:
    """Load a run that must be of a diffusion model."""
    model = load(run, **options)
    if not isinstance(model, DiffusionTextModel):
        raise ValueError(f"{run} is an autoregressive model; this needs a diffusion model")
    return model


def load_translator(
    run: str | Path,
    *,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> Translator:
    """Load a run's last checkpoint for translating; see `cdcd.load` for the options."""
    loaded = load_parts(run, checkpoint=checkpoint, device=device, dtype=dtype)
    match loaded.model:
        case DiffusionTranslationNetwork():
            return DiffusionTranslator(
                loaded.config,
                loaded.tokenizer,
                loaded.model,
                loaded.warp(),
                dtype=loaded.dtype,
                compile=compile,
            )
        case AutoregressiveTranslationNetwork():
            return AutoregressiveTranslator(
                loaded.config, loaded.tokenizer, loaded.model, dtype=loaded.dtype
            )
    raise ValueError(f"{run} is a language model, no translator: use cdcd sample")


@dataclass(frozen=True)
class Loaded:
    """A run's model with the weights of a checkpoint, in place."""

    config: RunConfig
    tokenizer: Tokenizer
    model: AnyNetwork
    dtype: torch.dtype
    saved: Checkpoint
    what: str

    def warp(self) -> TimeWarp:
        """The time warp of a diffusion model."""
        warp = TimeWarp(self.config.warp, self.config.process)
        _fill_in(warp, without_prefix("warp", self.saved.weights), self.what)
        return warp.to(next(self.model.parameters()).device)


def load_parts(
    run: str | Path, *, checkpoint: int | None = None, device: str = "auto", dtype: str = "auto"
) -> Loaded:
    """Read a run's last checkpoint: its averaged weights where it kept them."""
    directory = RunDirectory(Path(run))
    saved = directory.load(checkpoint)
    config, place = directory.config, choose_device(device)
    what = f"the checkpoint of step {saved.step} in {run}"
    model = build_model(config, directory.vocab_size)
    weights = without_prefix("model", saved.weights) | without_prefix("average", saved.weights)
    _fill_in(model, weights, what)
    return Loaded(
        config, directory.tokenizer, model.to(place), choose_dtype(dtype, place), saved, what
    )


def _fill_in(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    check_shapes(module.state_dict(), dict(weights), what)
    module.load_state_dict(weights)
