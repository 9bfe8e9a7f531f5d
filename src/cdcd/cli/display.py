"""What a person sees of runs and samples: progress, marked text, descriptions, pictures."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.sampling import StepInfo
from cdcd.evaluation.plots import Trace, plot_denoising, plot_time_warping, plot_training
from cdcd.inference.diffusion_text import DiffusionTextModel
from cdcd.inference.diffusion_translator import DiffusionTranslator
from cdcd.inference.load import load, load_translator
from cdcd.inference.text_model import Generated, TextModel
from cdcd.inference.translator import Translator
from cdcd.training.build import build_model
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

GIVEN_STYLE = "bold cyan"


class SamplingProgress:
    """A progress bar on stderr, used as a callback: by steps, by positions filled, or by the share done."""

    def __init__(self, length: int, what: str = "sampling") -> None:
        self.length = length
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn(what),
            BarColumn(),
            TextColumn("{task.fields[place]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("sample", total=None, place="")

    def __call__(self, info: StepInfo | int | float) -> None:
        if isinstance(info, float):
            done, total, place = info, 1.0, f"{info:.0%}"
        elif isinstance(info, int):
            done, total, place = info + 1, self.length, f"token {info + 1}"
        else:
            done, total, place = info.index + 1, info.num_steps, f"t = {info.t:.3g}"
        self.progress.update(self.task, total=total, completed=done, place=place)

    def __enter__(self) -> "SamplingProgress":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def marked(generated: Generated, tokenizer: Tokenizer, *, plain: bool = False) -> Text:
    """The text with its given tokens set off: by colour, or in «» where there is none."""
    text, shown = Text(), 0
    tokens, is_given = generated.tokens, generated.is_given
    for start, end in _runs(is_given):
        whole = tokenizer.decode(tokens[:end])
        part, shown = whole[shown:], len(whole)
        if is_given[start] and plain:
            stripped = part.lstrip(" ")
            part = part[: len(part) - len(stripped)] + f"«{stripped}»"
        text.append(part, GIVEN_STYLE if is_given[start] else "")
    return text


def _runs(flags: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Stretches of equal flags, as (start, end)."""
    edges = [i for i in range(1, len(flags)) if flags[i] != flags[i - 1]]
    return list(zip([0, *edges], [*edges, len(flags)], strict=True)) if flags else []


def describe(path: Path) -> dict[str, Any]:
    """What is known of a run."""
    run = RunDirectory(path)
    with torch.device("meta"):
        model = build_model(run.config, run.vocab_size)
    metrics = read_metrics(run.metrics_path)
    last = run.steps()[-1] if run.steps() else 0
    # A run that stopped early has lines beyond the checkpoint that it kept.
    metrics = [row for row in metrics if row["step"] <= last]
    valid = [row for row in metrics if "valid_loss" in row]
    train = [row for row in metrics if "loss" in row]
    return {
        "run": str(path),
        "task": run.config.task,
        "model": run.config.model,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": run.vocab_size,
        "checkpoints": run.steps(),
        "step": run.steps()[-1] if run.steps() else None,
        "loss": train[-1]["loss"] if train else None,
        "valid_loss": valid[-1]["valid_loss"] if valid else None,
        "tokens_per_second": train[-1]["tokens_per_second"] if train else None,
        "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        "config": asdict(run.config),
    }


def print_description(description: dict[str, Any]) -> None:
    """A run as tables."""
    console = Console(highlight=False)
    config = description["config"]
    facts = Table(show_header=False, box=None, title=description["run"], title_justify="left")
    for name, value in description.items():
        if name not in ("run", "config"):
            facts.add_row(name, _readable(value))
    console.print(facts)
    for section, fields in config.items():
        if not isinstance(fields, dict):
            continue
        table = Table(show_header=False, box=None, title=f"\n{section}", title_justify="left")
        for name, value in fields.items():
            table.add_row(f"  {name}", _readable(value))
        console.print(table)


def _readable(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def draw_run(path: Path, out: Path | None = None, *, prompt: str = "", seed: int = 0) -> list[Path]:
    """Draw everything that can be drawn of a run; the paths of the pictures."""
    out = out or path
    if RunDirectory(path).config.task == "translation":
        if prompt:
            raise ValueError(f"{path} is a translator: there is no sample to draw with a prompt")
        return _draw_training(path, out, load_translator(path, device="cpu"))
    model = load(path, device="cpu")
    canvas = model.prompt_canvas(prompt)
    pictures = _draw_training(path, out, model)
    if not isinstance(model, DiffusionTextModel):
        return pictures
    trace = Trace()
    shown = model.generate(canvas, seed=seed, callback=trace)[0]
    pictures.append(out / "denoising.png")
    plot_denoising(trace, shown.tokens, shown.is_given, model.tokenizer.piece, pictures[-1])
    return pictures


def _draw_training(path: Path, out: Path, model: TextModel | Translator) -> list[Path]:
    """Draw what training has left: its curves, and the time warp of a diffusion model."""
    out.mkdir(parents=True, exist_ok=True)
    metrics = read_metrics(RunDirectory(path).metrics_path)
    pictures = []
    if any("valid_loss" in row for row in metrics):
        pictures.append(out / "training.png")
        plot_training(metrics, pictures[-1])
    validated = [row for row in metrics if "losses" in row]
    if validated and isinstance(model, DiffusionTextModel | DiffusionTranslator):
        pictures.append(out / "time_warping.png")
        losses = validated[-1]["losses"]
        plot_time_warping(model.warp, losses["t"], losses["loss"], pictures[-1])
    return pictures
