"""The state of a run beside its weights: losses and speed, the best validation, signals."""

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cdcd.training.checkpoint import RunDirectory, Tensors, without_prefix
from cdcd.training.logging import read_metrics

RECENT = 8
"""Batches whose losses are kept for the picture of the warp."""


class Best:
    """The best validation of a run, also over interruptions, and how many have come since.

    It is kept where training may stop early (`patience`), or always ends with it.
    """

    def __init__(self, patience: int, *, is_kept: bool = False) -> None:
        self.patience, self.waited = patience, 0
        self.is_kept = is_kept or patience > 0
        self.step: int | None = None
        self.loss = float("inf")

    @classmethod
    def read(cls, run: RunDirectory, patience: int, *, is_kept: bool = False) -> "Best":
        """Reads what a run has logged so far."""
        best, saved = cls(patience, is_kept=is_kept), run.steps()
        for row in read_metrics(run.metrics_path) if best.is_kept else ():
            if "valid_loss" in row:
                # A run that has not kept its best weights so far: only a validation whose checkpoint
                # still exists can be the best.
                if row["step"] in saved:
                    best.update(row["step"], row["valid_loss"])
                elif best.step is not None:
                    best.waited += 1
        return best

    def update(self, step: int, loss: float) -> bool:
        """Notes a validation, and returns True where its checkpoint must be kept."""
        is_better = self.is_kept and loss < self.loss
        if is_better:
            self.step, self.loss = step, loss
        self.waited = 0 if is_better else self.waited + 1
        return is_better

    @property
    def waited_enough(self) -> bool:
        return 0 < self.patience <= self.waited


class Stopped(Exception):  # noqa: N818
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class Meter:
    """The losses that are not logged yet and those of the last batches, on the device: no step waits."""

    def __init__(self, tokens_per_step: int, device: torch.device) -> None:
        self.tokens_per_step, self.device = tokens_per_step, device
        self.kept: dict[str, deque[Tensor]] = {
            "mean": deque(),
            "recent_t": deque(maxlen=RECENT),
            "recent_losses": deque(maxlen=RECENT),
        }
        self.start()

    def start(self) -> None:
        """Starts the clock, and forgets what has been logged."""
        self.num_steps, self.started = 0, time.perf_counter()
        self.levels: list[Tensor] = []

    def add(
        self,
        mean: Float[Tensor, ""],
        losses: Float[Tensor, " batch"],
        t: Float[Tensor, " batch"] | None,
    ) -> None:
        """Notes the mean loss of a step, and the losses and noise levels of its sequences."""
        self.num_steps += 1
        self.kept["mean"].append(mean)
        if t is not None:
            self.kept["recent_t"].append(t)
            self.kept["recent_losses"].append(losses)
            # Not t[index]: an index that is a single number is read back.
            first_bad = (~losses.isfinite()).float().argmax(0, keepdim=True)
            self.levels.append(t.gather(0, first_bad))

    def read(self) -> tuple[float, float]:
        """Returns the mean loss and the tokens a second since the last reading."""
        loss = float(torch.stack([*self.kept["mean"]]).mean())
        speed = self.num_steps * self.tokens_per_step / (time.perf_counter() - self.started)
        self.kept["mean"].clear()
        self.start()
        return loss, speed

    def first_not_finite(self) -> tuple[int, float | None] | None:
        """Returns how many steps ago a loss was first not finite, and the noise level, if there was one."""
        means = self.kept["mean"]
        is_finite = torch.stack([*means]).isfinite().tolist() if means else []
        if all(is_finite):
            return None
        steps_ago = len(means) - is_finite.index(False)
        return steps_ago, float(self.levels[-steps_ago]) if self.levels else None

    def recent_losses(self) -> dict[str, Any]:
        """Returns noise levels and losses of recent sequences, for the picture of the warp."""
        t, losses = self.kept["recent_t"], self.kept["recent_losses"]
        if not t:
            return {}
        columns = {"t": t, "loss": losses}
        return {"losses": {n: torch.cat([*each])[:512].tolist() for n, each in columns.items()}}

    def tensors(self) -> Tensors:
        return {f"{name}.{i}": t for name, kept in self.kept.items() for i, t in enumerate(kept)}

    def restore(self, tensors: Tensors) -> None:
        for name, kept in self.kept.items():
            saved = without_prefix(name, tensors)
            if set(saved) != {str(i) for i in range(len(saved))}:
                raise ValueError(f"it has not all of log.{name}")
            kept.extend(saved[str(i)].to(self.device) for i in range(len(saved)))
        noted = [[t.shape for t in self.kept[name]] for name in ("recent_t", "recent_losses")]
        is_whole = noted[0] == noted[1] and all(t.numel() == 1 for t in self.kept["mean"])
        if not is_whole or any(t.dtype != torch.float32 for t in tensors.values()):
            raise ValueError("its tensors of log are of another shape or type")


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Lists the first Ctrl-C or SIGTERM when it comes; a second one acts as usual."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        previous |= {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        restore()
