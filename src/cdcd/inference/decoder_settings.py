"""The settings of the decoders: those of a run with a user's changes, checked against the model."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from cdcd.config import BeamConfig, Decoder, DecodingConfig, MaskPredictConfig, RunConfig
from cdcd.diffusion.masked import UnmaskingConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.settings import convert, override, refuse_without_effect

T = TypeVar("T")
DiffusionSettings = SamplingConfig | MaskPredictConfig
DecoderSettings = DiffusionSettings | DecodingConfig | BeamConfig | UnmaskingConfig

DECODERS = {
    SamplingConfig: "decoder ode",
    MaskPredictConfig: "decoder mask-predict",
    DecodingConfig: "autoregressive sampling",
    UnmaskingConfig: "sampling of masked models",
    BeamConfig: "beam search",
}
"""The settings of every decoder, with the decoder's name."""
DRAWN_AT = 0.5
"""Temperature of mask-predict decoding for several samples of a source that is always split alike, whose most
probable tokens are nearly always the same."""

PUT_BACK = ("eta", "noise_above", "noise_below")
"""Settings of the noise that a stochastic solver puts back."""


def names_of(settings: type) -> frozenset[str]:
    """Returns the names of a dataclass's fields."""
    return frozenset(field.name for field in fields(settings))


def decoder_settings(
    run: RunConfig, changes: Mapping[str, Any], num_samples: int = 1
) -> DecoderSettings:
    """Returns the settings of a run's decoder, or of the one that `changes` names, with changes."""
    if run.model == "masked":
        return _with_changes(run.unmasking, changes)
    if run.model == "autoregressive":
        return _autoregressive_settings(run, changes, num_samples)
    changes = dict(changes)
    decoder = convert(changes.pop("decoder", run.decoder), Decoder)
    if decoder == "mask-predict":
        return _mask_predict_settings(run, changes, num_samples)
    return _ode_settings(run, changes)


def _with_changes(settings: T, changes: Mapping[str, Any]) -> T:
    """Returns a decoder's settings with changes; a setting of other decoders is refused."""
    own, model = names_of(type(settings)), _model_of(settings)
    if "decoder" in changes:
        raise ValueError(f"decoder is for diffusion models; this is {model} model: leave it out")
    for name in sorted(set(changes) - own):
        if owners := [words for kind, words in DECODERS.items() if name in names_of(kind)]:
            raise ValueError(
                f"{name} is a setting of {' and '.join(owners)}, not of {DECODERS[type(settings)]}; "
                f"this is {model} model: leave it out"
            )
    return override(settings, changes)


def _model_of(settings: Any) -> str:
    """Returns the kind of model that has these settings, in words."""
    if isinstance(settings, UnmaskingConfig):
        return "a masked"
    return "a diffusion" if isinstance(settings, DiffusionSettings) else "an autoregressive"


def _autoregressive_settings(
    run: RunConfig, changes: Mapping[str, Any], num_samples: int
) -> DecodingConfig | BeamConfig:
    """Returns the settings of drawing; for one translation those of beam search, unless drawing's are given."""
    if run.task == "text":
        return _with_changes(run.decoding, changes)
    of_drawing = sorted(names_of(DecodingConfig) & set(changes))
    if num_samples == 1 and not of_drawing:
        return _with_changes(run.beam, changes)
    if of_search := sorted(names_of(BeamConfig) & set(changes)):
        reason = "several samples" if num_samples > 1 else of_drawing[0]
        raise ValueError(
            f"{of_search[0]} is of beam search, but {reason} asks for drawing: choose one"
        )
    return _with_changes(run.decoding, changes)


def _mask_predict_settings(
    run: RunConfig, changes: Mapping[str, Any], num_samples: int
) -> MaskPredictConfig:
    """Returns the settings of mask-predict decoding, by default such that several samples differ."""
    if run.objective.masking == "none":
        raise ValueError(
            "mask-predict decoding is for models trained with masks (objective.masking); "
            "set decoder to ode"
        )
    settings = _with_changes(run.mask_predict, changes)
    effects = [
        (run.task == "translation", "a translator", ("num_lengths", "confidence_weight")),
        (num_samples > 1, "several samples", ("confidence_weight",)),
    ]
    refuse_without_effect(changes, effects)
    if num_samples == 1 or run.task == "text":
        return settings
    # Samples differ in length, and in how their sources are split or in drawn tokens.
    if "num_lengths" not in changes:
        settings = replace(settings, num_lengths=1)
    if run.data.subword_sampling or "temperature" in changes:
        return settings
    return replace(settings, temperature=settings.temperature or DRAWN_AT)


def _ode_settings(run: RunConfig, changes: Mapping[str, Any]) -> SamplingConfig:
    """Returns the settings of sampling; raises an error where the model was not trained for them."""
    settings, objective = _with_changes(run.sampling, changes), run.objective
    if (settings.renormalise or settings.clamp) and objective.self_conditioning:
        raise ValueError(
            "renormalise and clamp are sampling settings only for models trained without "
            "self-conditioning; train with embedding.renormalise or embedding.clamp instead"
        )
    if settings.guidance_scale != 1.0 and not objective.conditioning_dropout:
        raise ValueError(
            "guidance needs a model trained with objective.conditioning_dropout above 0"
        )
    if settings.solver == "bridge" and settings.guidance_scale != 1.0:
        raise ValueError(
            "solver bridge draws tokens, which guidance does not change: set guidance_scale to 1 or "
            "choose another solver"
        )
    if settings.replacement and run.task == "translation":
        raise ValueError("replacement is for given tokens; a translation has none")
    if settings.replacement and objective.masking != "none":
        raise ValueError("replacement is for models trained with objective.masking none")
    if settings.replacement and settings.guidance_scale != 1.0:
        raise ValueError("replacement cannot be guided: set guidance_scale to 1")
    trained = "a model trained with self-conditioning"
    effects = [
        (settings.warp, "warp true", ("warp_temperature", "warp_uniformity")),
        (settings.is_stochastic, "solver ancestral or bridge", PUT_BACK),
        (settings.solver in ("euler", "heun"), "solver euler or heun", ("exact_temperature",)),
        (objective.self_conditioning, trained, ("self_conditioning",)),
    ]
    refuse_without_effect(changes, effects)
    return settings
