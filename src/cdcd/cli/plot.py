"""`cdcd plot`: draws a run."""

from pathlib import Path
from typing import Any

from cdcd.cli.messages import for_terminal
from cdcd.evaluation.plots import Trace, plot_denoising, plot_time_warping, plot_training
from cdcd.inference.load import load, load_translator
from cdcd.inference.names import open_named
from cdcd.inference.text_model import AutoregressiveTextModel, Canvas, DiffusionTextModel, TextModel
from cdcd.inference.translator import DiffusionTranslator, Translator
from cdcd.training.logging import read_metrics
from cdcd.training.packed_model import PackedModel


def plot(options: Any) -> None:
    """Draws a run, and prints the paths of the pictures."""
    for path in draw_run(options.run, options.out, prompt=options.prompt, seed=options.seed):
        print(for_terminal(str(path)))


def draw_run(path: Path, out: Path | None = None, *, prompt: str = "", seed: int = 0) -> list[Path]:
    """Draws the training, the time warp and a sample of a run, and returns the paths of the pictures."""
    run = open_named(path)
    # An installed model is not written into.
    out = out or (Path() if isinstance(run, PackedModel) else path)
    if run.config.task == "translation":
        if prompt:
            raise ValueError(f"{path} is a translator: there is no sample to draw with a prompt")
        return _draw_training(path, out, load_translator(path, device="cpu"))
    model = load(path, device="cpu")
    canvas = model.prompt_canvas(prompt)
    pictures = _draw_training(path, out, model)
    if not isinstance(model, AutoregressiveTextModel):
        pictures.append(out / "denoising.png")
        _draw_canvas(model, canvas, pictures[-1], seed)
    return pictures


def draw_sample(model: TextModel, path: Path, *, prompt: str = "", seed: int = 0) -> None:
    """Draws a sample of a diffusion or masked model while it is denoised."""
    _draw_canvas(model, model.prompt_canvas(prompt), path, seed)


def _draw_canvas(model: TextModel, canvas: Canvas, path: Path, seed: int) -> None:
    trace = Trace()
    sample = model.generate(canvas, seed=seed, callback=trace)[0]
    if not sample.tokens:
        # An empty text has no picture: what follows its end has one.
        sample = model.generate(canvas, seed=seed, ignore_eos=True)[0]
    plot_denoising(trace, sample.tokens, sample.is_given, model.tokenizer.piece, path)


def _draw_training(path: Path, out: Path, model: TextModel | Translator) -> list[Path]:
    """Draws the curves of the training, and the time warp of a diffusion model."""
    out.mkdir(parents=True, exist_ok=True)
    metrics = read_metrics(open_named(path).metrics_path)
    pictures = []
    if any("valid_loss" in row for row in metrics):
        pictures.append(out / "training.png")
        plot_training(metrics, pictures[-1])
    validated = [row for row in metrics if "losses" in row]
    if validated and isinstance(model, DiffusionTextModel | DiffusionTranslator):
        pictures.append(out / "time_warping.png")
        losses = validated[-1]["losses"]
        plot_time_warping(model.sampler.warp, losses["t"], losses["loss"], pictures[-1])
    return pictures
