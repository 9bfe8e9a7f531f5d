"""The state of a run beside its weights: finite losses, the best validation, speed, signals."""

import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics


@dataclass
class Health:
    """The first step whose loss was not finite, kept on the device so that no step waits for it."""

    bad_step: Int[Tensor, ""]
    bad_t: Float[Tensor, ""]

    def update(
        self, step: int, losses: Float[Tensor, " batch"], t: Float[Tensor, " batch"] | None
    ) -> None:
        is_bad = ~losses.isfinite()
        is_first = (self.bad_step < 0) & is_bad.any()
        self.bad_step = torch.where(is_first, step, self.bad_step)
        if t is not None:
            # Not t[index]: an index that is a single number is read back.
            index = is_bad.float().argmax(0, keepdim=True)
            self.bad_t = torch.where(is_first, t.gather(0, index)[0], self.bad_t)


class Best:
    """The best validation of a run, also over interruptions, and how many have come since."""

    def __init__(self, run: RunDirectory, patience: int) -> None:
        self.patience, self.waited = patience, 0
        self.step: int | None = None
        self.loss = float("inf")
        saved = run.steps()
        for row in read_metrics(run.metrics_path) if patience else ():
            if "valid_loss" in row:
                # A run that had no patience so far has not kept its best weights: only a validation
                # whose checkpoint still exists can be the best.
                if row["step"] in saved:
                    self.update(row["step"], row["valid_loss"])
                elif self.step is not None:
                    self.waited += 1

    def update(self, step: int, loss: float) -> bool:
        """Notes a validation, and returns True where its checkpoint must be kept."""
        is_better = self.patience > 0 and loss < self.loss
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
    """The mean loss and the tokens a second since the last reading."""

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.losses: list[Tensor] = []
        self.start()

    def start(self) -> None:
        self.num_steps, self.started = 0, time.perf_counter()

    def add(self, loss: Tensor) -> None:
        self.losses.append(loss)
        self.num_steps += 1

    def read(self) -> tuple[float, float]:
        loss = float(torch.stack(self.losses).mean())
        speed = self.num_steps * self.tokens_per_step / (time.perf_counter() - self.started)
        self.losses = []
        self.start()
        return loss, speed


class Signals:
    """Notes the first Ctrl-C or SIGTERM; a second one acts as usual."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.previous: dict[int, Any] = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        self._restore()
