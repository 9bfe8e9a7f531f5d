"""`cdcd demo`: what models that are installed can do; with --train, a model that is trained here."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule

from cdcd.cli.plot import draw_sample
from cdcd.cli.training_demo import show, show_demo
from cdcd.inference.load import load, load_translator
from cdcd.inference.names import installed_models
from cdcd.inference.text_model import TextModel

RUN = Path("runs/demo")
PICTURES = Path("runs")


@dataclass(frozen=True)
class Texts:
    """The texts that a language model is shown with."""

    prompts: tuple[str, ...]
    gaps: str
    between: str
    """A beginning and an end, with a gap between them."""
    num_samples: int = 2
    """Samples of each, fewer of a large model: all is to be shown within half a minute on a CPU."""


STORIES = {
    "stories": Texts(
        prompts=("Once upon a time, there was a little girl named Lily. She loved to",),
        gaps="Tom had a red ball. [12]. He was very sad. [14]. Then Tom was happy again.",
        between="One day, a small cat found a big box. [60] And the cat never opened a box again.",
        num_samples=1,
    ),
    "tales": Texts(
        prompts=("One sunny day Mia", "Oscar was at the busy market. He"),
        gaps="Max was [4]. He found [2] kites [3]. [6]. [6]. Where did Max find them? [3].",
        between="One sunny day Mia [28]. Who has the kite now? Mia.",
    ),
}
"""Language models, the better ones first."""
SENTENCES = {
    "en-de": ("Good morning! Did you sleep well?", "The children are playing in the garden."),
    "numerals": ("Anna gets up at half past two in the morning.",),
}
"""Translators, the better ones first."""


def demo(options: Any) -> None:
    """Shows installed models; with --train or --out, or where none is installed, trains one."""
    models = installed_models()
    name = next((name for name in STORIES if name in models), None)
    if options.train or options.out is not None or name is None:
        show_demo(options.out or RUN)
    else:
        translator = next((name for name in SENTENCES if name in models), None)
        show_installed(name, translator)


def show_installed(name: str, translator: str | None, console: Console | None = None) -> None:
    """Shows what an installed language model and a translator can do."""
    console, started = console or Console(highlight=False), time.monotonic()
    console.print(Rule("CDCD: continuous diffusion for categorical data"))
    model, texts = load(name, device="cpu"), STORIES[name]
    console.print(f"The installed model {name} (about it: cdcd models), seed 0, nothing chosen.")
    console.print(Rule("Completions (given text is marked)"))
    for prompt in texts.prompts:
        _show_filled(model, console, prompt, texts.num_samples)
    console.print(Rule("Filling gaps, anywhere in a text"))
    _show_filled(model, console, texts.gaps, texts.num_samples)
    console.print(Rule("A middle for a given beginning and a given end"))
    _show_filled(model, console, texts.between, texts.num_samples)
    if translator is not None:
        console.print(Rule(f"Translation ({translator})"))
        _show_translations(translator, SENTENCES[translator], console)
    _show_picture(model, texts.prompts[0], console)
    console.print(Rule("Try next"))
    for command in next_commands(name, translator, texts):
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print(f"\nshown in {time.monotonic() - started:.0f} s")


def next_commands(name: str, translator: str | None, texts: Texts) -> list[str]:
    """Returns commands to go on with."""
    commands = [
        "cdcd models",
        f'cdcd sample {name} --prompt "{texts.prompts[0]}" --num-samples 4 --seed 1',
        f'cdcd infill {name} "{texts.gaps}"',
    ]
    if translator is not None:
        commands.append(f'echo "{SENTENCES[translator][0]}" | cdcd translate {translator}')
    commands += [f"cdcd serve {name}", "cdcd demo --train"]
    return commands if shutil.which("cdcd") else [activation(), *commands]


def activation() -> str:
    """Returns the command that puts `cdcd` on the path of a shell, where its environment is not active."""
    script = Path(sys.prefix) / "bin" / "activate"
    here = Path.cwd()
    return f"source {script.relative_to(here) if script.is_relative_to(here) else script}"


def _show_filled(model: TextModel, console: Console, text: str, num_samples: int) -> None:
    """Shows completions of a prompt, or a text with gaps and ways to fill them."""
    has_gap = "[" in text
    if has_gap:
        console.print(f"  {text}", style="dim", markup=False)
    canvas = model.infill_canvas(text) if has_gap else model.prompt_canvas(text)
    generated = model.generate(canvas, num_samples=num_samples, seed=0)
    show(model, console, [("•", each) for each in generated])


def _show_translations(name: str, sentences: Sequence[str], console: Console) -> None:
    translator = load_translator(name, device="cpu")
    for source, target in zip(sentences, translator.translate(sentences, seed=0), strict=True):
        console.print(f"  {source}\n  → {target}", markup=False)


def _show_picture(model: TextModel, prompt: str, console: Console) -> None:
    console.print(Rule("A picture: a text while it is denoised"))
    path = PICTURES / "denoising.png"
    PICTURES.mkdir(exist_ok=True)
    try:
        draw_sample(model, path, prompt=prompt)
    except ValueError as error:
        console.print(f"  no picture: {error}", markup=False)
    else:
        console.print(f"  {path}")
