"""The settings of the decoders: those of a run with a user's changes, checked against the model."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from cdcd.config import BeamConfig, Decoder, DecodingConfig, MaskPredictConfig, RunConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.settings import convert, override, refuse_without_effect

T = TypeVar("T")
DiffusionSettings = SamplingConfig | MaskPredictConfig

DECODERS = {
    SamplingConfig: "decoder ode",
    MaskPredictConfig: "decoder mask-predict",
    DecodingConfig: "autoregressive sampling",
    BeamConfig: "beam search",
}
"""The settings of every decoder, with the decoder's name."""


def names_of(settings: type) -> frozenset[str]:
    """Returns the names of a dataclass's fields."""
    return frozenset(field.name for field in fields(settings))


def with_changes(settings: T, changes: Mapping[str, Any]) -> T:
    """Returns a decoder's settings with changes; a setting of other decoders is refused."""
    own = names_of(type(settings))
    for name in sorted(set(changes) - own):
        if owners := [words for kind, words in DECODERS.items() if name in names_of(kind)]:
            raise ValueError(
                f"{name} is a setting of {' and '.join(owners)}, not of {DECODERS[type(settings)]}; "
                f"leave it out"
            )
    return override(settings, changes)


def diffusion_settings(run: RunConfig, changes: Mapping[str, Any]) -> DiffusionSettings:
    """Returns the settings of a run's decoder, or of the one that `changes` names, with changes."""
    changes = dict(changes)
    decoder = convert(changes.pop("decoder", run.decoder), Decoder)
    if decoder == "mask-predict":
        if run.objective.masking == "none":
            raise ValueError(
                "mask-predict decoding is for models trained with masks (objective.masking); "
                "set decoder to ode"
            )
        return with_changes(run.mask_predict, changes)
    settings = with_changes(run.sampling, changes)
    check_sampling(settings, run)
    effects = [
        (settings.warp, "warp true", ("warp_temperature", "warp_uniformity")),
        (
            run.objective.self_conditioning,
            "a model trained with self-conditioning",
            ("self_conditioning",),
        ),
    ]
    refuse_without_effect(changes, effects)
    return settings


def check_sampling(settings: SamplingConfig, run: RunConfig) -> None:
    """Raises an error where a model was not trained for its sampling settings."""
    objective = run.objective
    if (settings.renormalise or settings.clamp) and objective.self_conditioning:
        raise ValueError(
            "renormalise and clamp are sampling settings only for models trained without "
            "self-conditioning; train with embedding.renormalise or embedding.clamp instead"
        )
    if settings.guidance_scale != 1.0 and not objective.conditioning_dropout:
        raise ValueError(
            "guidance needs a model trained with objective.conditioning_dropout above 0"
        )
    if settings.replacement and run.task == "translation":
        raise ValueError("replacement is for given tokens; a translation has none")
    if settings.replacement and objective.masking != "none":
        raise ValueError("replacement is for models trained with objective.masking none")
    if settings.replacement and settings.guidance_scale != 1.0:
        raise ValueError("replacement cannot be guided: set guidance_scale to 1")


def is_guided(settings: DiffusionSettings) -> bool:
    return isinstance(settings, SamplingConfig) and settings.guidance_scale != 1.0
