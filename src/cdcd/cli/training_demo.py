"""`cdcd demo --train`: trains on the tales, shows completions, gaps, settings, quality, pictures.

The machine is measured first: a slow one trains for fewer steps, so that all is done in six minutes.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.rule import Rule
from rich.table import Table

from cdcd.cli.display import marked
from cdcd.cli.plot import draw_run
from cdcd.config import RunConfig
from cdcd.inference.load import load
from cdcd.inference.text_model import Canvas, Generated, TextModel
from cdcd.languages.tales_quality import TalesQuality, count_tokens, judge_tales, unigram_texts
from cdcd.presets import preset
from cdcd.settings import override
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.corpora import load_documents

PROMPTS = ("One sunny day Mia", "Oscar was at the busy market. He")
GAPS = (
    "One [2] Lily [3] farm. She [2] [1] lamp. [6]. [3]. Who has [3]? [2]",
    "Max was [4]. He found [2] kites [3]. [6]. [6]. Where did Max find them? [3].",
)
SCORE_TEMPERATURES = (1.0, 0.9, 0.8, 0.5)
GUIDANCE_SCALES = (1.0, 2.0, 4.0)
NUM_JUDGED = 128
TRAINING_SECONDS = 290
"""Time that training may take; samples and pictures take about a minute more on a slow machine."""
WARM_UP, TIMED = 5, 25
"""Steps of training that are not timed, and that are."""
NEXT = """\
  cdcd serve {out}
  cdcd sample {out} --prompt "One rainy evening Tom" --num-samples 4 --score-temperature 0.8
  cdcd infill {out} "Emma was [4]. She [4]. [6]. [3]. Who has the [1] now? [2]"
  cdcd sample {out} --solver heun --num-steps 20 --json
  cdcd info {out}
  cdcd plot {out}
  cdcd train --preset demo --data my_stories.txt --out runs/mine"""


def show_demo(out: Path, console: Console | None = None) -> TalesQuality:
    """Trains the demo run in `out`, or continues it, and shows its samples and their quality."""
    console = console or Console(highlight=False)
    console.print(Rule("CDCD: continuous diffusion for categorical data"))
    train_demo(out, console)
    model = load(out, device="cpu")
    console.print(Rule("Completions (given text is marked)"))
    for prompt in PROMPTS:
        completed = model.generate(model.prompt_canvas(prompt), num_samples=3, seed=0)
        show(model, console, [("•", generated) for generated in completed])
    console.print(Rule("Filling gaps"))
    for text in GAPS:
        console.print(f"  {text}", style="dim", markup=False)
        filled = model.generate(model.infill_canvas(text), num_samples=2, seed=0)
        show(model, console, [("•", generated) for generated in filled])
    console.print(Rule("One prompt, one seed, other settings"))
    canvas = model.prompt_canvas(PROMPTS[0])
    settings: list[dict[str, Any]] = [{"score_temperature": x} for x in SCORE_TEMPERATURES]
    settings += [{"guidance_scale": x} for x in GUIDANCE_SCALES]
    rows = []
    for setting in settings:
        [(name, value)] = setting.items()
        generated = model.generate(canvas, seed=1, **setting)[0]
        rows.append((f"{name.replace('_', ' ')} {value}", generated))
    show(model, console, rows)
    quality = show_quality(model, out, console)
    console.print(Rule("Pictures"))
    for path in draw_run(out, prompt=PROMPTS[0]):
        console.print(f"  {path}")
    console.print(Rule("Try next"))
    console.print(NEXT.format(out=out), markup=False, soft_wrap=True)
    return quality


def train_demo(out: Path, console: Console) -> None:
    """Trains a new run, continues an interrupted one, or keeps a finished one."""
    if not (out / "config.json").exists():
        if os.path.lexists(out):
            # Before the machine is measured.
            raise ValueError(f"{out} already exists and is not a run; choose another --out")
        console.print(f"Training a small diffusion language model on the built-in tales, in {out}.")
        runs.start(_affordable(preset("demo"), console), out, console=console).train()
    elif runs.is_finished(RunDirectory(out), {}):
        console.print(f"{out} is trained already; delete it to train again.")
    else:
        console.print(f"Going on with the training in {out}.")
        runs.resume(out, console=console).train()


def _affordable(config: RunConfig, console: Console) -> RunConfig:
    """Returns the configuration with no more steps than this machine does in the time for training."""
    per_step = seconds_a_step(config)
    training = config.training
    steps = max(1, min(training.steps, int(TRAINING_SECONDS / per_step)))
    speed = training.batch_size * config.data.length / per_step
    minutes = training.steps * per_step / 60
    line = f"This machine trains {speed:,.0f} tokens a second: {training.steps:,} steps take "
    line += f"about {minutes:.1f} minutes."
    if steps == training.steps:
        console.print(line)
        return config
    console.print(
        f"{line} That is too long for a demo: it trains {steps:,} steps, in about "
        f"{steps * per_step / 60:.1f} minutes. The stories will be worse than those in the README."
    )
    decay = round(training.decay_steps * steps / training.steps)
    return override(config, {"training.steps": steps, "training.decay_steps": decay})


def seconds_a_step(config: RunConfig) -> float:
    """Returns the seconds of a training step on this machine: the median of a few, of a run that is not kept."""
    small = override(config, {"data.num_documents": 500})
    seconds = []
    with TemporaryDirectory() as folder:
        trainer = runs.start(small, Path(folder) / "trial", console=Console(file=StringIO()))
        for _ in range(WARM_UP + TIMED):
            started = time.perf_counter()
            trainer.train_step()
            seconds.append(time.perf_counter() - started)
    return median(seconds[WARM_UP:])


def show(model: TextModel, console: Console, rows: Iterable[tuple[str, Generated]]) -> None:
    """Prints labelled texts below one another."""
    table, is_plain = Table.grid(padding=(0, 1, 0, 1)), not console.is_terminal
    for label, generated in rows:
        table.add_row(label, marked(generated, model.tokenizer, plain=is_plain))
    console.print(table)


def show_quality(model: TextModel, out: Path, console: Console) -> TalesQuality:
    """Measures and prints the quality of new stories beside the data's and a unigram baseline's."""
    split = load_documents(model.config)
    texts = {
        "this model": sample_stories(model, console),
        "data (held out)": split.valid[:NUM_JUDGED],
        "unigram": unigram_texts(split.train, NUM_JUDGED, seed=0),
    }
    num_tokens, known = min(map(count_tokens, texts.values())), set(split.train)
    judged = {
        name: judge_tales(stories, known, num_tokens=num_tokens) for name, stories in texts.items()
    }
    record = {"sampling": asdict(model.config.sampling)}
    record |= {name: asdict(quality) for name, quality in judged.items()}
    (out / "quality.json").write_text(json.dumps(record, indent=2))
    console.print(Rule(f"Quality of {NUM_JUDGED} stories, judged by the exact grammar"))
    table = Table("", *judged, box=None, pad_edge=True)
    columns = [_quality_rows(quality) for quality in judged.values()]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    return judged["this model"]


def sample_stories(model: TextModel, console: Console) -> list[str]:
    """Samples stories without a prompt, with the preset's settings."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        steps = NUM_JUDGED // 64 * model.config.sampling.num_steps
        task = progress.add_task("sampling stories", total=steps)

        def advance(_: Any) -> None:
            progress.advance(task)

        generated = model.generate(
            Canvas((None,) * model.length),
            num_samples=NUM_JUDGED,
            seed=0,
            callback=advance,
        )
    return [each.text for each in generated]


def _quality_rows(quality: TalesQuality) -> dict[str, str]:
    return {
        "sentences": f"{quality.num_sentences}",
        "sentences that parse": f"{quality.parse_share:.1%}",
        "references and answers that are right": f"{quality.reference_share:.1%}",
        "stories that are right throughout": f"{quality.story_share:.1%}",
        "their exact NLL (nats a token)": "–" if quality.nll is None else f"{quality.nll:.3f}",
        f"unigram entropy of {quality.num_tokens} tokens (nats)": f"{quality.entropy:.3f}",
        "stories copied from the training set": f"{quality.copied_share:.1%}",
        "distinct stories": f"{quality.distinct_share:.1%}",
    }
