"""Trackers: programs that show the numbers of a run while it trains.

metrics.jsonl is always written. A tracker is a second reader of its rows: TensorBoard where it is
installed, Weights & Biases or trackio, which share one interface, where a run asks for it.
"""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cdcd.config import RunConfig
from cdcd.settings import flatten

PROJECT = "cdcd"
"""The project of all runs in Weights & Biases and trackio."""
WITHOUT_TRACKER = "or leave it to --training.tracker off"


@runtime_checkable
class Tracker(Protocol):
    """A receiver of numbers with their step, as runs of Weights & Biases and trackio are."""

    def log(self, numbers: dict[str, Any], *, step: int) -> Any: ...
    def finish(self) -> Any: ...


class TensorBoard:
    """A tracker that writes TensorBoard's files into the folder of the run."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def log(self, numbers: dict[str, Any], *, step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self.writer.close()


def check_tracker(name: str) -> None:
    """Raises an error where the tracker that a run asks for is not installed."""
    if name not in ("auto", "off") and find_spec(name) is None:
        raise ValueError(
            f"training.tracker is {name}, which is not installed: pip install {name}, {WITHOUT_TRACKER}"
        )


def open_tracker(config: RunConfig, folder: Path, *, is_resumed: bool) -> Tracker | None:
    """Starts the tracker of a run, if it has one."""
    name = config.training.tracker
    check_tracker(name)
    if name == "off" or (name == "auto" and find_spec("tensorboard") is None):
        return None
    if name in ("auto", "tensorboard"):
        return TensorBoard(folder)
    try:
        return importlib.import_module(name).init(
            project=PROJECT,
            name=folder.name,
            config=flatten(config),
            resume="allow" if is_resumed else "never",
        )
    except Exception as error:
        raise ValueError(
            f"{name} did not start: {str(error).rstrip('.')}; set it up as its documentation says, {WITHOUT_TRACKER}"
        ) from error
