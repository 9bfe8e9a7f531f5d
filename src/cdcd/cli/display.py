"""Samples on a terminal: their progress, and text whose given tokens are marked."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from cdcd.cli.messages import printable
from cdcd.data.tokenizers import Tokenizer
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.decoding import DecodingStep
from cdcd.inference.text_model import Generated
from cdcd.inference.unmasking import UnmaskingStep

GIVEN_STYLE = "bold cyan"


class SamplingProgress:
    """A progress bar on stderr, used as a callback: by steps, by positions filled, or by the share done."""

    def __init__(self, what: str = "sampling") -> None:
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn(what),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("sample", total=None, text="")

    def __call__(self, info: StepInfo | UnmaskingStep | DecodingStep | float) -> None:
        if isinstance(info, float | int):
            done, total, text = info, 1.0, f"{info:.0%}"
        else:
            is_token = isinstance(info, DecodingStep)
            text = f"token {info.index + 1}" if is_token else f"t = {info.t:.3g}"
            done, total = info.index + 1, info.num_steps
        self.progress.update(self.task, total=total, completed=done, text=text)

    def __enter__(self) -> "SamplingProgress":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def marked(generated: Generated, tokenizer: Tokenizer, *, plain: bool = False) -> Text:
    """Returns the text with its given tokens marked: by colour, or by «» in plain text."""
    text, length = Text(), 0
    tokens, is_given = generated.tokens, generated.is_given
    for start, end in _runs(is_given):
        whole = tokenizer.decode(tokens[:end])
        part, length = whole[length:], len(whole)
        if is_given[start] and plain:
            stripped = part.lstrip(" ")
            part = part[: len(part) - len(stripped)] + f"«{stripped}»"
        text.append(printable(part), GIVEN_STYLE if is_given[start] else "")
    return text


def _runs(flags: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Returns the stretches of equal flags, as (start, end)."""
    edges = [i for i in range(1, len(flags)) if flags[i] != flags[i - 1]]
    return list(zip([0, *edges], [*edges, len(flags)], strict=True)) if flags else []
