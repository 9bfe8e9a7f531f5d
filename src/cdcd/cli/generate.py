"""`cdcd sample` and `cdcd infill`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.cli.model_options import chosen_settings, load_options, run_options, setting_options

if TYPE_CHECKING:
    from cdcd.inference.text_model import Canvas, TextModel


def _generation_options(parser: argparse.ArgumentParser) -> None:
    run_options(parser)
    parser.add_argument(
        "--num-samples", metavar="INT", type=int, default=1, help="samples for each text"
    )
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
    from cdcd.inference.load import load

    model = load(options.run, **load_options(options))
    prompts = [options.prompt]
    if options.prompt_file is not None:
        prompts = options.prompt_file.read_text(encoding="utf-8").splitlines()
        if not prompts:
            raise ValueError(f"{options.prompt_file} holds no prompt")
    canvases = [model.prompt_canvas(prompt, options.length) for prompt in prompts]
    _generate(options, model, canvases, length=options.length, ignore_eos=options.ignore_eos)


def infill(options: Any) -> None:
    from cdcd.inference.load import load

    model = load(options.run, **load_options(options))
    _generate(options, model, [model.infill_canvas(options.text)])


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
        report = {"settings": settings, "samples": [asdict(each) for each in generated]}
        print(json.dumps(report, ensure_ascii=False))
        return
    console = Console(soft_wrap=True)
    for each in generated:
        if console.is_terminal:
            console.print(marked(each, model.tokenizer))
        else:
            print(each.text)
