"""The Trainer: batch -> loss -> gradients -> optimiser, moving average; checkpoints on the way.

Every draw is a function of (seed, step), and so is the order of the data: a resumed run is the
uninterrupted run, bit for bit on a CPU. Several ranks share each batch: every rank computes the loss
of its rows, all make the same update, and the main one writes.
"""

import shlex
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor, nn

from cdcd.config import RunConfig
from cdcd.data.sequences import Sequences, ShuffledBatches
from cdcd.networks.precision import choose_dtype
from cdcd.training.build import blocks_of, make_task
from cdcd.training.captured import CapturedStep, Parts, Results
from cdcd.training.checkpoint import (
    SHARDS,
    Checkpoint,
    RunDirectory,
    Tensors,
    check_shapes,
    with_prefix,
    without_prefix,
)
from cdcd.training.compiling import is_graphed
from cdcd.training.distributed import ALONE, World, is_lost_contact
from cdcd.training.logging import Display, MetricsLog, NoLog
from cdcd.training.monitoring import Best, Health, Meter, Signals, Stopped
from cdcd.training.optimiser import MovingAverage, learning_rate_at, make_adam, make_muon
from cdcd.training.parallel import check_shares, part_of, whole
from cdcd.training.tasks import listed

AGREE_EVERY = 5
"""Steps after which several ranks ask each other whether one was told to stop."""


def initial_checkpoint(config: RunConfig, vocab_size: int) -> Checkpoint:
    """Returns the state of a run before its first step."""
    task = make_task(config, vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    weights = with_prefix("model", task.model.state_dict()) | task.weights()
    if config.training.average_decay:
        weights |= with_prefix("average", dict(task.model.named_parameters()))
    return Checkpoint(0, weights, {})


class Trainer:
    """Trains one run from its last checkpoint to its last step, or until it gets no better."""

    def __init__(
        self,
        run: RunDirectory,
        train: Sequences,
        valid: Sequences,
        *,
        config: RunConfig | None = None,
        checkpoint: int | None = None,
        console: Console | None = None,
        world: World = ALONE,
    ) -> None:
        self.run, self.config, self.world = run, config or run.config, world
        self.console = console or Console()
        if not world.is_main:
            self.console = Console(quiet=True)
        training = self.config.training
        check_shares(training.batch_size, training.accumulate, world)
        self.device = world.device(training.device)
        dtype = choose_dtype(training.dtype, self.device)
        self.data = ShuffledBatches(train, training.batch_size, training.seed)
        held_out = torch.arange(min(len(valid), training.valid_sequences))
        self.valid = valid.rows(held_out).to(self.device)
        self.task = make_task(
            self.config, run.vocab_size, device=self.device, dtype=dtype, world=world
        )
        self.model, self.engine = self.task.model, self.task.engine
        betas = (training.beta1, training.beta2)
        self.optimiser = (
            make_muon(self.model, blocks_of(self.model), betas, training.momentum)
            if training.optimiser == "muon"
            else make_adam(self.model, betas)
        )
        self.average = (
            MovingAverage(self.model, training.average_decay) if training.average_decay else None
        )
        is_captured = is_graphed(training.compile, self.device) and world.size == 1
        self.update = CapturedStep(self._update) if is_captured else self._update
        self.step = 0
        self.meter = Meter(train.length * training.batch_size)
        self._restore(
            run.load(checkpoint, with_optimiser=True, rank=world.rank, world_size=world.size)
        )
        self.health = Health(
            torch.tensor(-1, device=self.device), torch.tensor(0.0, device=self.device)
        )

    # State

    def _tensors(self) -> Tensors:
        weights = with_prefix("model", self.model.state_dict()) | self.task.weights()
        if self.average is not None:
            weights |= with_prefix("average", self.average.tensors())
        return weights

    def state(self) -> Checkpoint:
        """Returns everything that the next step and the next line of metrics depend on.

        Of a sharded model, the weights are gathered by the main process; its optimiser is left out.
        """
        optimiser = self.task.optimiser_state()
        optimiser |= {f"log.mean.{i}": loss for i, loss in enumerate(self.meter.losses)}
        if self.engine.is_sharded:
            return Checkpoint(self.step, self._gathered(), optimiser)
        optimiser |= with_prefix("model", self.optimiser.tensors())
        return Checkpoint(self.step, self._tensors(), optimiser)

    def _gathered(self) -> Tensors:
        weights = {}
        for name, tensor in self._tensors().items():
            gathered = whole(tensor)
            if self.world.is_main:
                weights[name] = gathered.cpu()
        return weights

    def _shards(self) -> Tensors:
        """Returns the tensors of which the ranks hold parts."""
        weights = {n: t for n, t in self._tensors().items() if n.startswith(("model.", "average."))}
        return weights | with_prefix("optimiser", self.optimiser.tensors())

    def _read_shards(self, saved: Checkpoint) -> Checkpoint:
        """Completes a checkpoint by the shards that the ranks saved, read into tensors spread as ours."""
        from cdcd.training.sharded import empty_state, read_shards

        if saved.shards is None:
            return saved
        parameters: Tensors = dict(self.model.named_parameters())
        optimiser = empty_state(saved.shards, "optimiser", parameters)
        weights = self._shards()
        read_shards(saved.shards, weights | optimiser)
        optimiser = with_prefix("model", without_prefix("optimiser", optimiser))
        return replace(
            saved, weights=saved.weights | weights, optimiser=saved.optimiser | optimiser
        )

    def _restore(self, saved: Checkpoint) -> None:
        what = f"the checkpoint of step {saved.step} in {self.run.path}"
        check_shapes(self._tensors(), saved.weights, what)
        saved = self._read_shards(saved)
        weights = {n: part_of(saved.weights[n], tensor) for n, tensor in self._tensors().items()}
        self.model.load_state_dict(without_prefix("model", weights))
        if self.average is not None:
            for name, tensor in self.average.tensors().items():
                tensor.copy_(weights[f"average.{name}"])
        self.optimiser.restore(without_prefix("model", saved.optimiser))
        self.task.restore(saved.weights, saved.optimiser)
        self.meter.losses = listed(saved.optimiser, "log.mean", self.device)
        self.step = saved.step

    def save(self, *, spare: int | None = None) -> Path:
        """Writes a checkpoint, keeps the last few, and that of step `spare`."""
        self._check_health()
        sums = self._write_shards() if self.engine.is_sharded else None
        state = self.state()
        return self.world.on_main(lambda: self._write(state, sums, spare))

    def _write(self, state: Checkpoint, sums: dict[str, str] | None, spare: int | None) -> Path:
        for name, tensor in state.weights.items():
            if not tensor.isfinite().all():
                raise ValueError(self._not_finite(f"{name} is not finite after step {self.step}"))
        keep = self.config.training.keep_checkpoints
        return self.run.save(state, keep=keep, spare=spare, sums=sums)

    def _write_shards(self) -> dict[str, str]:
        from cdcd.training.sharded import write_shards

        try:
            folder = self.world.on_main(lambda: self.run.begin(self.step))
            return write_shards(folder / SHARDS, self._shards(), self.world)
        except OSError as error:
            raise ValueError(self.run.not_saved(self.step, error)) from None

    # One step

    def train_step(self) -> Float[Tensor, ""]:
        """Makes one optimiser step and returns the loss per predicted token, still on the device."""
        self.optimiser.set_rate(learning_rate_at(self.step, self.config.training))
        mean, losses, t = self.update(self._parts())
        if self.average is not None:
            self.average.update(self.step)
        self.task.record(t, losses)
        self.health.update(self.step, losses, t)
        self.step += 1
        return mean

    def _parts(self) -> Parts:
        """Returns the parts of this rank's rows of the batch, with their random inputs."""
        tokens = self.data.batch(self.step, rank=self.world.rank, world_size=self.world.size)
        if self.device.type == "cuda":
            # Only from pinned memory is a copy not waited for.
            tokens = tokens.pin_memory()
        parts = tokens.to(self.device, non_blocking=True).chunk(self.config.training.accumulate)
        return list(zip(parts, self.task.draw(self.step), strict=True))

    def _update(self, parts: Parts) -> Results:
        """Updates the model and the warp by the mean loss over all predicted tokens of the global batch.

        Returns the mean, and the losses and noise levels of all sequences. Nothing here may depend on
        the step or read a value back: on a GPU it is recorded once.
        """
        counts = [self.task.num_targets(tokens, draws) for tokens, draws in parts]
        num_targets = self.world.sum(torch.stack(counts).sum())
        means, losses = [], []
        for i, (tokens, draws) in enumerate(parts):
            with self.engine.part(is_last=i == len(parts) - 1):
                total, per_sequence = self.task.losses(tokens, draws)
                self.engine.backward(total / num_targets)
            means.append(total.detach() / num_targets)
            losses.append(per_sequence)
        if clip_norm := self.config.training.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        self.optimiser.step()
        losses, t = self.world.gather(torch.cat(losses)), self._noise_levels(parts)
        self.task.fit_warp(t, losses)
        return self.world.sum(torch.stack(means).sum()), losses, t

    def _noise_levels(self, parts: Parts) -> Float[Tensor, " batch"] | None:
        levels = [self.task.noise_levels(draws) for _, draws in parts]
        levels = [t for t in levels if t is not None]
        return self.world.gather(torch.cat(levels)) if levels else None

    # The loop

    def train(self) -> float:
        """Trains to the last step, saves on the way and when interrupted, and returns the validation loss."""
        try:
            return self._train()
        except RuntimeError as error:
            if self.world.size > 1 and is_lost_contact(error):
                raise ValueError(self._lost_contact()) from None
            raise

    def _train(self) -> float:
        training = self.config.training
        log = MetricsLog(self.run.path, first_step=self.step) if self.world.is_main else NoLog()
        best = self.world.on_main(lambda: Best(self.run, training.patience))
        signals = Signals()
        try:
            with signals, Display(self.console, training.steps, self.step) as display:
                self.meter.start()
                while self.step < training.steps and not best.waited_enough:
                    self.meter.add(self.train_step())
                    ended = self.step == training.steps
                    if self.step % training.log_every == 0 or ended:
                        self._log(log, display)
                    if _due(self.step, training.validate_every) and not ended:
                        self._validate(log, best)
                    if (number := self._stop_signal(signals)) and not ended:
                        raise Stopped(number, self._interrupted(best))
                    if _due(self.step, training.checkpoint_every) and not ended:
                        self.save(spare=best.step)
                return self._finish(log, best)
        finally:
            log.close()

    def _stop_signal(self, signals: Signals) -> int:
        """Returns the signal that asks all ranks to stop at this step, or 0."""
        if self.world.size > 1 and self.step % AGREE_EVERY:
            return 0
        return self.world.largest(signals.received or 0)

    def _log(self, log: MetricsLog | NoLog, display: Display) -> None:
        loss, speed = self.meter.read()
        self._check_health()
        display.update(self.step, loss, speed)
        rate = learning_rate_at(self.step - 1, self.config.training)
        log.write(
            {"step": self.step, "loss": loss, "learning_rate": rate, "tokens_per_second": speed}
        )

    def _validate(self, log: MetricsLog | NoLog, best: Best) -> float:
        self.model.eval()
        with self.averaged_weights():
            report = self.task.validate(self.valid)
        self.model.train()
        # All ranks have computed the same; where they stop must not depend on its last bit.
        report = self.world.on_main(lambda: report)
        row = {"step": self.step, "valid_loss": report.loss, "validation": report.as_dict()}
        log.write(row | self.task.recorded())
        if best.update(self.step, report.loss):
            self.save(spare=best.step)
        return report.loss

    def _finish(self, log: MetricsLog | NoLog, best: Best) -> float:
        """Keeps the last state, or the best one where training may stop early."""
        if best.waited_enough:
            self.console.print(
                f"no better validation loss since step {best.step}: stopped at step {self.step}"
            )
        else:
            loss = self._validate(log, best)
            self.save(spare=best.step)
            if best.step is None:
                return loss
        best_step = best.step
        assert best_step is not None
        self.world.on_main(lambda: self.run.set_aside_after(best_step))
        return best.loss

    def averaged_weights(self) -> "_Swapped":
        """Returns a context in which the weights are their moving average."""
        return _Swapped(self.average)

    def _interrupted(self, best: Best) -> str:
        self.save(spare=best.step)
        return f"stopped at step {self.step} and saved; go on with: {self._resume_command()}"

    def _check_health(self) -> None:
        bad_step = int(self.health.bad_step)
        if bad_step >= 0:
            where = f"step {bad_step}"
            if bad_t := float(self.health.bad_t):
                where += f", at noise level t = {bad_t:.3g}"
            raise ValueError(self._not_finite(f"the loss is not finite at {where}"))

    def _not_finite(self, what: str) -> str:
        return (
            f"{what}; the last good checkpoint is {self.run.folder(self.run.steps()[-1])}. Resume "
            f"from it with a lower --training.learning-rate: {self._resume_command()}"
        )

    def _lost_contact(self) -> str:
        return (
            f"another rank does not answer after step {self.step}: it was killed, or it failed for a "
            f"reason that it has given; the last checkpoint is "
            f"{self.run.folder(self.run.steps()[-1])}. Go on with: {self._resume_command()}"
        )

    def _resume_command(self) -> str:
        command = f"cdcd train --resume --out {shlex.quote(str(self.run.path))}"
        if self.world.size == 1:
            return command
        return f"torchrun --nproc-per-node {self.world.local_size} -m {command}"


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
