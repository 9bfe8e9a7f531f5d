"""Trained models, read by their names: run directories, installed models, models on a hub.

model = cdcd.load("tales")  # or a run, such as "runs/mine", or "hf:owner/name": see `names`
print(model.complete("Once upon a time", num_samples=4, seed=0, score_temperature=0.9))
print(model.infill("The [5] went to the [3].", seed=0))

translator = cdcd.load_translator("numerals")
print(translator.translate(["Anna gets up at half past two."], num_samples=10))
"""

from pathlib import Path
from typing import Any

from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.names import open_named
from cdcd.inference.text_model import (
    AutoregressiveTextModel,
    DiffusionTextModel,
    MaskedTextModel,
    TextModel,
)
from cdcd.inference.translator import AutoregressiveTranslator, DiffusionTranslator, Translator
from cdcd.networks.precision import choose_device, choose_dtype
from cdcd.training.build import build_model
from cdcd.training.checkpoint import without_prefix

MODELS: dict[tuple[str, str], type[TextModel | Translator]] = {
    ("text", "diffusion"): DiffusionTextModel,
    ("text", "autoregressive"): AutoregressiveTextModel,
    ("text", "masked"): MaskedTextModel,
    ("translation", "diffusion"): DiffusionTranslator,
    ("translation", "autoregressive"): AutoregressiveTranslator,
}
"""The class of a run's model, by its task and its model."""


def load(
    run: str | Path,
    *,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> TextModel:
    """Loads a model by its name, or a run's last checkpoint (its averaged weights where it kept them).

    `compile` is for diffusion models on a GPU: `auto` captures a network call as a CUDA graph; `on`
    compiles it; `graphs` does both, which takes longest to start and is fastest; `off` does neither.
    """
    model = _load(run, checkpoint, device, dtype, compile)
    if not isinstance(model, TextModel):
        raise ValueError(f"{run} is a translator, no language model: use cdcd translate")
    return model


def load_translator(run: str | Path, **options: Any) -> Translator:
    """Loads a translator by its name, or a run's last checkpoint; the options are those of `load`."""
    model = _load(run, **options)
    if not isinstance(model, Translator):
        raise ValueError(f"{run} is a language model, no translator: use cdcd sample")
    return model


def load_any(run: str | Path, **options: Any) -> TextModel | Translator:
    """Loads a run's last checkpoint, of whatever task; the options are those of `load`."""
    return _load(run, **options)


def _load(
    run: str | Path,
    checkpoint: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> TextModel | Translator:
    directory = open_named(run)
    saved = directory.load(checkpoint)
    config, tokenizer = directory.config, directory.tokenizer
    own_device = choose_device(device)
    own_dtype = choose_dtype(dtype, own_device)
    network = build_model(config, directory.vocab_size)
    weights = without_prefix("model", saved.weights) | without_prefix("average", saved.weights)
    network.load_state_dict(weights)
    warp = None
    if config.model == "diffusion":
        warp = TimeWarp(config.warp, config.process)
        warp.load_state_dict(without_prefix("warp", saved.weights))
        warp.to(own_device)
    model = MODELS[config.task, config.model]
    return model(config, tokenizer, network.to(own_device), warp, dtype=own_dtype, compile=compile)
