"""The Trainer: draws -> loss -> gradients -> Adam, moving average, warp; checkpoints on the way.

Every draw is a function of (seed, step), and so is the order of the data: a resumed run is the
uninterrupted run, bit for bit on a CPU.
"""

import shlex
import signal
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float, Int
from rich.console import Console
from torch import Tensor, nn

from cdcd.data.corpus import Shuffled
from cdcd.diffusion.objective import Draws, training_loss
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.language_model import LanguageModel
from cdcd.networks.precision import Autocast, choose_device, choose_dtype
from cdcd.training.checkpoint import (
    Checkpoint,
    RunDirectory,
    Tensors,
    check_shapes,
    with_prefix,
    without_prefix,
)
from cdcd.training.config import RunConfig
from cdcd.training.draws import draw_for_step
from cdcd.training.logging import Display, MetricsLog
from cdcd.training.optimiser import MovingAverage, learning_rate_at, make_adam, make_muon
from cdcd.training.validation import ValidationReport, validate


def build_model(config: RunConfig, vocab_size: int) -> LanguageModel:
    """A newly initialised model, a function of the seed; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        return LanguageModel(
            config.network,
            config.embedding,
            config.process,
            vocab_size=vocab_size,
            length=config.data.length,
        )


def initial_checkpoint(config: RunConfig, vocab_size: int) -> Checkpoint:
    """The state of a run before its first step."""
    model = build_model(config, vocab_size)
    warp = TimeWarp(config.warp, config.process)
    weights = with_prefix("model", model.state_dict()) | with_prefix("warp", warp.state_dict())
    if config.training.average_decay:
        weights |= with_prefix("average", dict(model.named_parameters()))
    return Checkpoint(0, weights, {})


@dataclass
class Health:
    """Where the loss stopped being finite, kept on the device so that no step waits for it."""

    bad_step: Int[Tensor, ""]
    bad_t: Float[Tensor, ""]

    def update(
        self, step: int, losses: Float[Tensor, " batch"], t: Float[Tensor, " batch"]
    ) -> None:
        bad = ~losses.isfinite()
        first = (self.bad_step < 0) & bad.any()
        self.bad_step = torch.where(first, step, self.bad_step)
        self.bad_t = torch.where(first, t[bad.float().argmax()], self.bad_t)


class Stopped(Exception):  # noqa: N818
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class Trainer:
    """Trains one run from its last checkpoint to its last step."""

    def __init__(
        self,
        run: RunDirectory,
        train: Int[Tensor, "sequences length"],
        valid: Int[Tensor, "held_out length"],
        *,
        config: RunConfig | None = None,
        checkpoint: int | None = None,
        console: Console | None = None,
    ) -> None:
        self.run, self.config = run, config or run.config
        self.console = console or Console()
        training = self.config.training
        self.device = choose_device(training.device)
        self.dtype = choose_dtype(training.dtype, self.device)
        self.data = Shuffled(train, training.batch_size, training.seed)
        self.valid = valid[: training.valid_sequences].long().to(self.device)
        self.model = build_model(self.config, run.vocab_size).to(self.device)
        self.warp = TimeWarp(self.config.warp, self.config.process).to(self.device)
        betas = (training.beta1, training.beta2)
        self.optimiser = (
            make_muon(self.model, self.model.blocks, betas, training.momentum)
            if training.optimiser == "muon"
            else make_adam(self.model, betas)
        )
        self.warp_optimiser = make_adam(self.warp, (0.9, 0.99))
        self.average = (
            MovingAverage(self.model, training.average_decay) if training.average_decay else None
        )
        self.step = 0
        self.meter = _Meter(train.shape[1] * training.batch_size)
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=8)
        self._restore(run.load(checkpoint, with_optimiser=True))
        if training.compile == "on" or (training.compile == "auto" and self.device.type == "cuda"):
            self.model.compile(dynamic=False)
        self.network = Autocast(self.model, self.device, self.dtype)
        self.health = Health(
            torch.tensor(-1, device=self.device), torch.tensor(0.0, device=self.device)
        )

    # State

    def _tensors(self) -> Tensors:
        weights = with_prefix("model", self.model.state_dict())
        weights |= with_prefix("warp", self.warp.state_dict())
        if self.average is not None:
            weights |= with_prefix("average", self.average.tensors())
        return weights

    def state(self) -> Checkpoint:
        """Everything that the next step and the next line of metrics depend on."""
        optimiser = with_prefix("model", self.optimiser.tensors())
        optimiser |= with_prefix("warp", self.warp_optimiser.tensors())
        optimiser |= with_prefix("log", self._not_logged())
        return Checkpoint(self.step, self._tensors(), optimiser)

    def _not_logged(self) -> Tensors:
        tensors = {f"mean.{i}": loss for i, loss in enumerate(self.meter.losses)}
        for i, (t, losses) in enumerate(self.recent):
            tensors |= {f"recent_t.{i}": t, f"recent_losses.{i}": losses}
        return tensors

    def _restore_log(self, saved: Tensors) -> None:
        def listed(name: str) -> list[Tensor]:
            found = without_prefix(name, saved)
            return [found[str(i)].to(self.device) for i in range(len(found))]

        self.meter.losses = listed("mean")
        self.recent.extend(zip(listed("recent_t"), listed("recent_losses"), strict=True))

    def _restore(self, saved: Checkpoint) -> None:
        what = f"the checkpoint of step {saved.step} in {self.run.path}"
        check_shapes(self._tensors(), saved.weights, what)
        self.model.load_state_dict(without_prefix("model", saved.weights))
        self.warp.load_state_dict(without_prefix("warp", saved.weights))
        if self.average is not None:
            for name, tensor in self.average.tensors().items():
                tensor.copy_(saved.weights[f"average.{name}"])
        self.optimiser.restore(without_prefix("model", saved.optimiser))
        self.warp_optimiser.restore(without_prefix("warp", saved.optimiser))
        self._restore_log(without_prefix("log", saved.optimiser))
        self.step = saved.step

    def save(self) -> Path:
        self._check_health()
        state = self.state()
        for name, tensor in state.weights.items():
            if not tensor.isfinite().all():
                raise ValueError(self._not_finite(f"{name} is not finite after step {self.step}"))
        return self.run.save(state, keep=self.config.training.keep_checkpoints)

    # One step

    def train_step(self) -> Float[Tensor, ""]:
        """One optimiser step; the loss per noisy token, still on the device."""
        config = self.config
        tokens = self.data.batch(self.step).to(self.device, non_blocking=True)
        draws = draw_for_step(
            (len(tokens), tokens.shape[1], config.embedding.dim),
            config.objective,
            self.warp.training_schedule(),
            seed=config.training.seed,
            step=self.step,
            device=self.device,
        )
        losses, per_sequence = self._backward(tokens, draws)
        self._update_model()
        self._update_warp(draws.t, per_sequence)
        self.health.update(self.step, per_sequence, draws.t)
        self.recent.append((draws.t, per_sequence))
        self.step += 1
        return losses

    def _backward(self, tokens: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Accumulate gradients of the mean over all noisy tokens of the batch, part by part."""
        config, parts = self.config, self.config.training.accumulate
        num_noisy = draws.is_noisy.sum()
        means, per_sequence = [], []
        for part in range(parts):
            rows = slice(part * len(tokens) // parts, (part + 1) * len(tokens) // parts)
            losses = training_loss(
                self.network,
                self.model.embedding.table(),
                tokens[rows],
                draws.rows(rows),
                objective=config.objective,
                embedding=config.embedding,
                first_row=rows.start,
            )
            mean = losses.total / num_noisy
            mean.backward()
            means.append(mean.detach())
            per_sequence.append(losses.per_sequence)
        return torch.stack(means).sum(), torch.cat(per_sequence)

    def _update_model(self) -> None:
        training = self.config.training
        if training.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.clip_norm)
        self.optimiser.step(learning_rate_at(self.step, training))
        if self.average is not None:
            self.average.update(self.step)

    def _update_warp(self, t: Tensor, losses: Tensor) -> None:
        self.warp.fitting_loss(t, losses).backward()
        self.warp_optimiser.step(self.config.warp.learning_rate)
        self.warp.update_average()

    # The loop

    def train(self) -> ValidationReport:
        """Train to the last step, saving on the way and when interrupted."""
        training = self.config.training
        log = MetricsLog(self.run.path, first_step=self.step)
        signals = _Signals()
        try:
            with signals, Display(self.console, training.steps, self.step) as display:
                self.meter.start()
                while self.step < training.steps:
                    self.meter.add(self.train_step())
                    if self.step % training.log_every == 0 or self.step == training.steps:
                        self._log(log, display)
                    if _due(self.step, training.validate_every) and self.step < training.steps:
                        self._validate(log)
                    if signals.received is not None and self.step < training.steps:
                        raise Stopped(signals.received, self._interrupted())
                    if _due(self.step, training.checkpoint_every) and self.step < training.steps:
                        self.save()
                report = self._validate(log)
                self.save()
            return report
        finally:
            log.close()

    def _log(self, log: MetricsLog, display: Display) -> None:
        loss, speed = self.meter.read()
        self._check_health()
        display.update(self.step, loss, speed)
        rate = learning_rate_at(self.step - 1, self.config.training)
        log.write(
            {"step": self.step, "loss": loss, "learning_rate": rate, "tokens_per_second": speed}
        )

    def _validate(self, log: MetricsLog) -> ValidationReport:
        with self.averaged_weights():
            table = self.model.embedding.table().detach()
            schedule = self.warp.schedule()
            report = validate(self.network, table, self.valid, schedule, self.config)
        row = {"step": self.step, "valid_loss": report.loss, "validation": report.as_dict()}
        log.write(row | ({"losses": self._recent_losses()} if self.recent else {}))
        return report

    def _recent_losses(self) -> dict[str, list[float]]:
        """Noise levels and losses of recent sequences: what the warp was fitted to, for plots."""
        t, losses = (
            torch.cat(columns)[:512].tolist() for columns in zip(*self.recent, strict=True)
        )
        return {"t": t, "loss": losses}

    def averaged_weights(self) -> "_Swapped":
        """Use the moving average of the weights for a while."""
        return _Swapped(self.average)

    def _interrupted(self) -> str:
        self.save()
        return f"stopped at step {self.step} and saved; go on with: {self._resume_command()}"

    def _check_health(self) -> None:
        bad_step = int(self.health.bad_step)
        if bad_step >= 0:
            where = f"step {bad_step}, at noise level t = {float(self.health.bad_t):.3g}"
            raise ValueError(self._not_finite(f"the loss is not finite at {where}"))

    def _not_finite(self, what: str) -> str:
        return (
            f"{what}; the last good checkpoint is {self.run.folder(self.run.steps()[-1])}. Resume "
            f"from it with a lower --training.learning-rate: {self._resume_command()}"
        )

    def _resume_command(self) -> str:
        return f"cdcd train --resume --out {shlex.quote(str(self.run.path))}"


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class _Swapped:
    """Exchanges the model's weights with their average, and back."""

    def __init__(self, average: MovingAverage | None) -> None:
        self.average = average

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if self.average is not None:
            for current, average in zip(self.average.current, self.average.average, strict=True):
                held = current.clone()
                current.copy_(average)
                average.copy_(held)


class _Meter:
    """Mean loss and tokens a second since the last reading."""

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


class _Signals:
    """Notes the first Ctrl-C or SIGTERM; a second one acts as usual."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.previous: dict[int, Any] = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = number
        for signal_number, handler in self.previous.items():
            signal.signal(signal_number, handler)

    def __enter__(self) -> None:
        import threading

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
