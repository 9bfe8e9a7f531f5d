"""Options that several verbs have."""

import argparse
from typing import Any

from cdcd.settings import add_options, chosen


def device_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.networks.capture import MODES

    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "float64", "bfloat16"),
        default="auto",
        help="precision",
    )
    parser.add_argument(
        "--compile",
        choices=MODES,
        default="auto",
        help="network calls of diffusion models: captured as a CUDA graph on a GPU (auto), "
        "compiled (on), both (graphs: slow to start, then fastest) or neither (off)",
    )


def setting_options(parser: argparse.ArgumentParser) -> None:
    """Sampling settings of diffusion models, then those of autoregressive ones."""
    from cdcd.config import DecodingConfig
    from cdcd.diffusion.sampling import SamplingConfig

    add_options(parser, SamplingConfig)
    group = parser.add_argument_group("of autoregressive models", "They take --nucleus too.")
    add_options(group, DecodingConfig, leave_out=["nucleus"])  # pyright: ignore[reportArgumentType]


def chosen_settings(options: Any) -> dict[str, Any]:
    from cdcd.config import DecodingConfig
    from cdcd.diffusion.sampling import SamplingConfig

    return chosen(options, SamplingConfig) | chosen(options, DecodingConfig)
