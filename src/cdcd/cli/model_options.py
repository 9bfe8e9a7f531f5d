"""Options of the verbs that use a trained model: which checkpoint, where it runs, and how it decodes."""

import argparse
from pathlib import Path
from typing import Any, get_args

from cdcd.settings import add_options, chosen


def run_options(parser: argparse.ArgumentParser, run: str = "run directory") -> None:
    """Adds the run, what is drawn of it and where."""
    parser.add_argument("run", metavar="RUN", type=Path, help=run)
    parser.add_argument("--seed", metavar="INT", type=int, default=0, help="seed of the noise")
    parser.add_argument(
        "--batch-size", metavar="INT", type=int, default=64, help="samples at a time"
    )
    parser.add_argument(
        "--checkpoint", metavar="STEP", type=int, help="checkpoint (default: the last)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    device_options(parser)


def device_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.networks.capture import MODES

    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to run on"
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


def load_options(options: Any) -> dict[str, Any]:
    """Returns the arguments of `cdcd.load` and `cdcd.load_translator`."""
    names = ("checkpoint", "device", "dtype", "compile")
    return {name: getattr(options, name) for name in names}


def setting_options(parser: argparse.ArgumentParser, *, beam: bool = False) -> None:
    """Adds the settings of every decoder; one that several have is added once."""
    from cdcd.config import BeamConfig, Decoder, DecodingConfig, MaskPredictConfig
    from cdcd.diffusion.sampling import SamplingConfig

    parser.add_argument(
        "--decoder",
        choices=get_args(Decoder),
        default=argparse.SUPPRESS,
        help="decoder of a diffusion model (default: the run's)",
    )
    add_options(parser, SamplingConfig)
    groups: list[tuple[str, type, list[str]]] = [
        ("of --decoder mask-predict", MaskPredictConfig, ["temperature"]),
        ("of autoregressive models", DecodingConfig, ["nucleus"]),
    ]
    if beam:
        groups.append(("of beam search, the default of autoregressive models", BeamConfig, []))
    for title, settings, shared in groups:
        note = f"--{shared[0]} is one of them." if shared else None
        group: Any = parser.add_argument_group(title, note)
        add_options(group, settings, leave_out=shared)


def chosen_settings(options: Any) -> dict[str, Any]:
    """Returns the decoder and those of its settings that the user gave."""
    from cdcd.inference.decoder_settings import DECODERS

    decoder = {"decoder": options.decoder} if hasattr(options, "decoder") else {}
    given = [chosen(options, settings) for settings in DECODERS]
    return {name: value for part in (decoder, *given) for name, value in part.items()}
