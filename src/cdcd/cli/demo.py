"""The first five minutes: train on the tales, then show completions, gaps, settings and quality."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.rule import Rule
from rich.table import Table

from cdcd.cli.display import draw_run, marked
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.load import load
from cdcd.inference.text_model import Canvas, Generated, TextModel
from cdcd.languages.quality import TalesQuality, count_tokens, judge_tales, unigram_texts
from cdcd.presets import preset
from cdcd.training import corpora
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory

PROMPTS = ("One sunny day Mia", "Oscar was at the busy market. He")
GAPS = (
    "One [2] Lily [3] farm. She [2] [1] lamp. [6]. [3]. Who has [3]? [2]",
    "Max was [4]. He found [2] kites [3]. [6]. [6]. Where did Max find them? [3].",
)
SCORE_TEMPERATURES = (1.0, 0.9, 0.8, 0.5)
GUIDANCE_SCALES = (1.0, 2.0, 4.0)
NUM_JUDGED = 128


def show_demo(out: Path, console: Console | None = None) -> TalesQuality:
    """Train (or take up) the demo run in `out`, and show what it can do."""
    console = console or Console(highlight=False)
    console.print(Rule("CDCD: continuous diffusion for categorical data"))
    train_demo(out, console)
    model = load(out, device="cpu")
    show_completions(model, console)
    show_gaps(model, console)
    show_settings(model, console)
    judged = show_quality(model, out, console)
    console.print(Rule("Pictures"))
    for path in draw_run(out, prompt=PROMPTS[0]):
        console.print(f"  {path}")
    show_next(out, console)
    return judged


def train_demo(out: Path, console: Console) -> None:
    """Train from nothing, go on where an earlier demo stopped, or keep what is there."""
    if not (out / "config.json").exists():
        console.print(f"Training a small diffusion language model on the built-in tales, in {out}.")
        trainer = runs.start(preset("demo"), out, console=console)
    elif RunDirectory(out).steps()[-1] < RunDirectory(out).config.training.steps:
        console.print(f"Going on with the training in {out}.")
        trainer = runs.resume(out, console=console)
    else:
        console.print(f"{out} is trained already; delete it to train again.")
        return
    trainer.train()


class _Listing:
    """Labelled texts below one another, given tokens marked."""

    def __init__(self, model: TextModel, console: Console) -> None:
        self.tokenizer, self.console = model.tokenizer, console
        self.table = Table.grid(padding=(0, 1, 0, 1))

    def add(self, label: str, generated: Generated) -> None:
        plain = not self.console.is_terminal
        self.table.add_row(label, marked(generated, self.tokenizer, plain=plain))

    def show(self) -> None:
        self.console.print(self.table)


def show_completions(model: TextModel, console: Console) -> None:
    """Several completions of each prompt."""
    console.print(Rule("Completions (what is given is marked)"))
    listing = _Listing(model, console)
    for prompt in PROMPTS:
        for generated in model.generate(model.prompt_canvas(prompt), num_samples=3, seed=0):
            listing.add("•", generated)
    listing.show()


def show_gaps(model: TextModel, console: Console) -> None:
    """Gaps filled from both sides."""
    console.print(Rule("Filling gaps"))
    for text in GAPS:
        console.print(f"  {text}", style="dim", markup=False)
        listing = _Listing(model, console)
        for generated in model.generate(model.infill_canvas(text), num_samples=2, seed=0):
            listing.add("•", generated)
        listing.show()


def show_settings(model: TextModel, console: Console) -> None:
    """One prompt and one seed under several sampling settings."""
    console.print(Rule("One prompt, one seed, other settings"))
    canvas, listing = model.prompt_canvas(PROMPTS[0]), _Listing(model, console)
    for temperature in SCORE_TEMPERATURES:
        generated = model.generate(canvas, seed=1, score_temperature=temperature)[0]
        listing.add(f"score temperature {temperature}", generated)
    for scale in GUIDANCE_SCALES:
        generated = model.generate(canvas, seed=1, guidance_scale=scale)[0]
        listing.add(f"guidance scale {scale}", generated)
    listing.show()


def show_quality(model: TextModel, out: Path, console: Console) -> TalesQuality:
    """The measured quality of fresh stories beside the data's and a unigram baseline's."""
    split = corpora.load_documents(model.config)
    texts = sample_stories(model, console)
    data = split.valid[:NUM_JUDGED]
    unigram = unigram_texts(split.train, NUM_JUDGED, seed=0)
    num_tokens = min(count_tokens(each) for each in (texts, data, unigram))
    known = set(split.train)
    judged = {
        name: judge_tales(each, known, num_tokens=num_tokens)
        for name, each in (("this model", texts), ("data (held out)", data), ("unigram", unigram))
    }
    settings = asdict(model.config.sampling)
    record = {"sampling": settings} | {name: asdict(quality) for name, quality in judged.items()}
    (out / "quality.json").write_text(json.dumps(record, indent=2))
    console.print(Rule(f"Quality of {NUM_JUDGED} stories, judged by the exact grammar"))
    console.print(_quality_table(judged))
    return judged["this model"]


def sample_stories(model: TextModel, console: Console) -> list[str]:
    """Unconditional stories with the preset's sampling settings."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        steps = NUM_JUDGED // 64 * model.config.sampling.num_steps
        task = progress.add_task("sampling stories", total=steps)

        def advance(_: StepInfo) -> None:
            progress.advance(task)

        canvas = Canvas((None,) * model.length)
        generated = model.generate(canvas, num_samples=NUM_JUDGED, seed=0, callback=advance)
    return [each.text for each in generated]


def _quality_table(judged: dict[str, TalesQuality]) -> Table:
    table = Table("", *judged, box=None, pad_edge=True)
    for row in zip(*(_quality_rows(quality) for quality in judged.values()), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    return table


def _quality_rows(quality: TalesQuality) -> Iterator[tuple[str, str]]:
    yield "sentences", f"{quality.num_sentences}"
    yield "sentences that parse", f"{quality.parse_share:.1%}"
    yield "references and answers that are right", f"{quality.reference_share:.1%}"
    yield "stories that are right throughout", f"{quality.story_share:.1%}"
    nll = "–" if quality.nll is None else f"{quality.nll:.3f}"
    yield "their exact NLL (nats a token)", nll
    yield f"unigram entropy of {quality.num_tokens} tokens (nats)", f"{quality.entropy:.3f}"
    yield "stories copied from the training set", f"{quality.copied_share:.1%}"
    yield "distinct stories", f"{quality.distinct_share:.1%}"


def show_next(out: Path, console: Console) -> None:
    """What to try next."""
    console.print(Rule("Try next"))
    for command in (
        f'cdcd sample {out} --prompt "One rainy evening Tom" --num-samples 4 --score-temperature 0.8',
        f'cdcd infill {out} "Emma was [4]. She [4]. [6]. [3]. Who has the [1] now? [2]"',
        f"cdcd sample {out} --solver heun --num-steps 20 --json",
        f"cdcd info {out}",
        f"cdcd plot {out}",
        "cdcd train --preset demo --data my_stories.txt --out runs/mine",
    ):
        console.print(f"  {command}", markup=False, soft_wrap=True)
