"""A sample that becomes certain in place, on a terminal: the text of each step, shaded by its certainty."""

import math

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cdcd.cli.display import GIVEN_STYLE
from cdcd.cli.messages import printable
from cdcd.data.tokenizers import Tokenizer
from cdcd.inference.snapshots import AnyStep, Snapshot, Snapshots, parts_of

SHADES = ("#5b6b88", "#6f83a8", "#8ba3cb", "#b3c4e2", "default")
"""Colours of a token from uncertain to certain."""
REFRESH = 20
"""Pictures a second."""


class Watch:
    """The first sample of a batch while it is generated, used as a callback."""

    def __init__(self, snapshots: Snapshots, tokenizer: Tokenizer, console: Console) -> None:
        self.snapshots, self.tokenizer = snapshots, tokenizer
        self.snapshot: Snapshot | None = None
        # What is written elsewhere meanwhile would be mixed into the picture.
        self.live = Live(
            console=console, refresh_per_second=REFRESH, transient=True, get_renderable=self.text
        )

    def __call__(self, info: AnyStep) -> None:
        self.snapshot = self.snapshots.take(info)

    def __enter__(self) -> "Watch":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def text(self) -> Text:
        """Returns the text at the last step that was taken."""
        return Text() if self.snapshot is None else shaded(self.snapshot, self.tokenizer)


def shaded(snapshot: Snapshot, tokenizer: Tokenizer) -> Text:
    """Returns the text of a step, each token in the shade of its certainty, and a line about the step."""
    text = Text()
    parts = parts_of(tokenizer, snapshot.tokens)
    for part, p, given in zip(parts, snapshot.confidence, snapshot.is_given, strict=True):
        text.append(printable(part), GIVEN_STYLE if given else shade(p))
    level = f", t = {snapshot.t:.3g}" if snapshot.t else ""
    about = f"step {snapshot.index + 1} of {snapshot.num_steps}{level}, {snapshot.entropy:.2f} nats"
    return text.append(f"\n{about}", "dim")


def shade(p: float) -> str:
    """Returns the colour of a token of some probability."""
    return SHADES[min(math.floor(p * len(SHADES)), len(SHADES) - 1)]
