"""`cdcd sample` and `cdcd infill`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.cli.shared import chosen_settings, device_options, setting_options

if TYPE_CHECKING:
    from cdcd.inference.text_model import Canvas, TextModel


def _generation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument(
        "--num-samples", metavar="INT", type=int, default=1, help="samples for each text"
    )
    parser.add_argument("--seed", metavar="INT", type=int, default=0, help="seed of the noise")
    parser.add_argument(
        "--batch-size", metavar="INT", type=int, default=64, help="sequences at a time"
    )
    parser.add_argument(
        "--checkpoint", metavar="STEP", type=int, help="checkpoint (default: the last)"
    )
    device_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    setting_options(parser)


def sample_options(parser: argparse.ArgumentParser) -> None:
    _generation_options(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", metavar="TEXT", default="", help="begin with this text")
    prompts.add_argument("--prompt-file", metavar="PATH", type=Path, help="one prompt a line")
    parser.add_argument("--length", metavar="INT", type=int, help="tokens to show (default: all)")
    parser.add_argument(
        "--ignore-eos", action="store_true", help="show what follows the end of the text"
    )


def infill_options(parser: argparse.ArgumentParser) -> None:
    _generation_options(parser)
    parser.add_argument(
        "text",
        metavar="TEXT",
        help=r"a text with gaps: [5] stands for five tokens; \[5] is plain text",
    )


def sample(options: Any) -> None:
    model = _load(options)
    prompts = [options.prompt]
    if options.prompt_file is not None:
        prompts = options.prompt_file.read_text(encoding="utf-8").splitlines()
        if not prompts:
            raise ValueError(f"{options.prompt_file} holds no prompt")
    canvases = [model.prompt_canvas(prompt, options.length) for prompt in prompts]
    _generate(options, model, canvases, length=options.length, ignore_eos=options.ignore_eos)


def infill(options: Any) -> None:
    model = _load(options)
    _generate(options, model, [model.infill_canvas(options.text)])


def _load(options: Any) -> "TextModel":
    from cdcd.inference.load import load

    return load(
        options.run,
        checkpoint=options.checkpoint,
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
    )


def _generate(options: Any, model: "TextModel", canvases: "Sequence[Canvas]", **more: Any) -> None:
    from rich.console import Console

    from cdcd.cli.display import SamplingProgress, marked

    settings = chosen_settings(options)
    with SamplingProgress(model.length) as progress:
        generated = model.generate(
            canvases,
            num_samples=options.num_samples,
            seed=options.seed,
            batch_size=options.batch_size,
            callback=progress,
            **settings,
            **more,
        )
    if options.json:
        print(
            json.dumps(
                {"settings": settings, "samples": [asdict(g) for g in generated]},
                ensure_ascii=False,
            )
        )
        return
    console = Console(soft_wrap=True)
    for each in generated:
        if console.is_terminal:
            console.print(marked(each, model.tokenizer))
        else:
            print(each.text)
