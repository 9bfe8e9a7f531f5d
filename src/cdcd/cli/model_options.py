"""The options of the verbs that use a trained model, as arguments of the library."""

from typing import Any

from cdcd.inference.decoder_settings import DECODERS
from cdcd.settings import chosen


def load_options(options: Any) -> dict[str, Any]:
    """Returns the arguments of `cdcd.load` and `cdcd.load_translator`."""
    names = ("checkpoint", "device", "dtype", "compile")
    return {name: getattr(options, name) for name in names}


def chosen_settings(options: Any) -> dict[str, Any]:
    """Returns the decoder and those of its settings that the user gave."""
    decoder = {"decoder": options.decoder} if hasattr(options, "decoder") else {}
    given = [chosen(options, settings) for settings in DECODERS]
    return {name: value for part in (decoder, *given) for name, value in part.items()}
