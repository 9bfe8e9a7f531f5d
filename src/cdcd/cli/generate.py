"""`cdcd sample` and `cdcd infill`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from cdcd.cli.display import SamplingProgress, marked
from cdcd.cli.model_options import chosen_settings, load_options
from cdcd.cli.translate import check_out
from cdcd.cli.watch import Watch
from cdcd.files import write_atomically
from cdcd.inference.load import load
from cdcd.inference.snapshots import AnyStep, Snapshots
from cdcd.inference.text_model import Canvas, Generated, TextModel, as_prompt


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
    settings, console = chosen_settings(options), Console(soft_wrap=True)
    recorder = _recorder(options, model, canvases, settings, more)
    with _steps_display(options, model, canvases, settings, console) as show:

        def callback(info: AnyStep) -> None:
            show(info)
            if recorder is not None:
                recorder(info)

        generated = model.generate(
            canvases,
            num_samples=options.num_samples,
            seed=options.seed,
            best_of=options.best_of,
            batch_size=options.batch_size,
            changes=options.change,
            callback=callback,
            **settings,
            **more,
        )
    if recorder is not None:
        write_atomically(options.replay, recorder.page(generated[0]).encode())
    if options.json:
        report = {"settings": settings, "samples": [_as_dict(each) for each in generated]}
        print(json.dumps(report, ensure_ascii=False))
        return
    for each in generated:
        if console.is_terminal:
            console.print(marked(each, model.tokenizer))
        else:
            print(each.text)


def _steps_display(
    options: Any,
    model: TextModel,
    canvases: Sequence[Canvas],
    settings: Mapping[str, Any],
    console: Console,
) -> Watch | SamplingProgress:
    """Returns what is shown of the steps: the text, if that is asked for on a terminal, or their number."""
    # The first of one batch can be watched; of several batches, their number is more.
    is_one = len(canvases) * options.num_samples * options.best_of <= options.batch_size
    if not (options.watch and is_one and console.is_terminal) or options.json:
        return SamplingProgress()
    changes = model.resolved(options.change, settings) if options.change else []
    return Watch(Snapshots(canvases[0], changes), model.tokenizer, Console())


def _recorder(
    options: Any,
    model: TextModel,
    canvases: Sequence[Canvas],
    settings: Mapping[str, Any],
    more: Mapping[str, Any],
) -> Any:
    """Returns the recorder of a replay, if one is asked for."""
    if options.replay is None:
        return None
    if len(canvases) * options.num_samples * options.best_of > 1 or any(more.values()):
        raise ValueError(
            "--replay is of one whole sample: leave out --num-samples, --best-of, --length, --ignore-eos "
            "and all prompts but one"
        )
    check_out(options.replay, "--replay")
    from cdcd.serving.generation import Prompt
    from cdcd.serving.recipes import Source
    from cdcd.serving.replay import Recorder

    text = options.text if hasattr(options, "text") else as_prompt(options.prompt)
    seed, changes = options.seed, options.change
    prompt = Prompt(text=text, seed=seed, settings=settings, changes=changes)
    return Recorder(model, Source(str(options.run), options.device), prompt)


def _as_dict(generated: Generated) -> dict[str, Any]:
    """Returns a sample as JSON has it, with its score where it has one."""
    return {name: value for name, value in asdict(generated).items() if value is not None}
