"""`cdcd sample` and `cdcd infill`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from cdcd.cli.display import SamplingProgress, marked
from cdcd.cli.model_options import chosen_settings, load_options
from cdcd.inference.load import load
from cdcd.inference.text_model import Canvas, Generated, TextModel


def sample(options: Any) -> None:
    model = load(options.run, **load_options(options))
    prompts = [options.prompt]
    if options.prompt_file is not None:
        prompts = options.prompt_file.read_text(encoding="utf-8").splitlines()
        if not prompts:
            raise ValueError(f"{options.prompt_file} holds no prompt")
    canvases = [model.prompt_canvas(prompt, options.length) for prompt in prompts]
    _generate(options, model, canvases, length=options.length, ignore_eos=options.ignore_eos)


def infill(options: Any) -> None:
    model = load(options.run, **load_options(options))
    _generate(options, model, [model.infill_canvas(options.text)])


def _generate(options: Any, model: TextModel, canvases: Sequence[Canvas], **more: Any) -> None:
    settings = chosen_settings(options)
    with SamplingProgress() as progress:
        generated = model.generate(
            canvases,
            num_samples=options.num_samples,
            seed=options.seed,
            best_of=options.best_of,
            changes=options.change,
            batch_size=options.batch_size,
            callback=progress,
            **settings,
            **more,
        )
    if options.json:
        report = {"settings": settings, "samples": [_as_dict(each) for each in generated]}
        print(json.dumps(report, ensure_ascii=False))
        return
    console = Console(soft_wrap=True)
    for each in generated:
        if console.is_terminal:
            console.print(marked(each, model.tokenizer))
        else:
            print(each.text)


def _as_dict(generated: Generated) -> dict[str, Any]:
    """Returns a sample as JSON has it, with its score where it has one."""
    return {name: value for name, value in asdict(generated).items() if value is not None}
