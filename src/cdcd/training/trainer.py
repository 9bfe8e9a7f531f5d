"""The Trainer: batch -> loss -> gradients -> optimiser, moving average; checkpoints on the way.

Every draw is a function of (seed, step), and so is the order of the data: a resumed run is the
uninterrupted run, bit for bit on a CPU. Several ranks share each batch: every rank computes the loss
of its rows, all make the same update, and the main one writes.
"""

import shlex
from dataclasses import asdict, replace
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor, nn

from cdcd.config import RunConfig
from cdcd.data.sequences import DamagedDataError, Sequences, ShuffledBatches
from cdcd.networks.precision import choose_dtype
from cdcd.training.build import make_task
from cdcd.training.checkpoint import (
    OPTIMISER,
    SHARDS,
    Checkpoint,
    RunDirectory,
    Tensors,
    with_prefixes,
    without_prefix,
)
from cdcd.training.compiling import CapturedStep, Parts, Results, is_graphed
from cdcd.training.distributed import ALONE, World, is_lost_contact
from cdcd.training.logging import Display, MetricsLog
from cdcd.training.memory import refuse_what_cannot_fit
from cdcd.training.monitoring import Best, Meter, Stopped, noted_signals
from cdcd.training.optimiser import MovingAverage, learning_rate_at, make_optimiser
from cdcd.training.parallel import check_shares, part_of, whole
from cdcd.training.tasks import Task
from cdcd.training.tensor_files import check_shapes
from cdcd.training.trackers import open_tracker

AGREE_EVERY = 5
"""Steps after which several ranks ask each other whether one was told to stop."""


def initial_checkpoint(config: RunConfig, vocab_size: int) -> Checkpoint:
    """Returns the state of a run before its first step."""
    task = make_task(config, vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    average = MovingAverage(task.model, config.training.average_decay)
    return Checkpoint(0, weights_of(task, average), {})


def weights_of(task: Task, average: MovingAverage) -> Tensors:
    """Returns what a checkpoint keeps as weights, as the tensors that are trained."""
    modules = {name: module.state_dict() for name, module in task.modules.items()}
    return with_prefixes({**modules, "average": average.tensors})


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
        self.console = (console or Console()) if world.is_main else Console(quiet=True)
        training = self.config.training
        check_shares(training.batch_size, training.accumulate, world)
        self.device = world.device(training.device)
        dtype = choose_dtype(training.dtype, self.device)
        # Before the model is built: it may be a stranger's, and ask for more than the weights have.
        saved = run.load(checkpoint, with_optimiser=True, world=world)
        self.data = ShuffledBatches(train, training.batch_size, training.seed)
        held_out = torch.arange(min(len(valid), training.valid_sequences))
        self.valid = valid.rows(held_out).to(self.device)
        refuse_what_cannot_fit(self.config, run.vocab_size, world)
        self.task = make_task(
            self.config, run.vocab_size, device=self.device, dtype=dtype, world=world
        )
        self.model, self.engine = self.task.model, self.task.engine
        betas, muon = (training.beta1, training.beta2), training.optimiser == "muon"
        momentum = training.momentum if muon else None
        self.optimiser = make_optimiser(self.model, betas, momentum, training.weight_decay)
        self.optimisers = {"model": self.optimiser, **self.task.optimisers}
        self.average = MovingAverage(self.model, training.average_decay)
        is_captured = is_graphed(training.compile, self.device) and world.size == 1
        self.update = CapturedStep(self._update) if is_captured else self._update
        self.meter = Meter(train.length * training.batch_size, self.device)
        self.log: MetricsLog | None = None
        self.best = Best(training.patience, is_kept=training.keep_best)
        self._restore(saved)

    # State

    @torch.no_grad()
    def _restore(self, saved: Checkpoint) -> None:
        weights, optimiser = weights_of(self.task, self.average), saved.optimiser
        check_shapes(
            weights, saved.weights, f"the checkpoint of step {saved.step} in {self.run.path}"
        )
        for name, tensor in weights.items():
            tensor.copy_(part_of(saved.weights[name], tensor))
        if saved.shards is not None:
            from cdcd.training.sharded import read_shards

            parameters: Tensors = dict(self.model.named_parameters())
            optimiser = optimiser | with_prefixes({"model": read_shards(saved.shards, parameters)})
        try:
            if extra := {name.partition(".")[0] for name in optimiser} - {*self.optimisers, "log"}:
                raise ValueError(f"it has tensors of {', '.join(sorted(extra))}")
            for name, each in self.optimisers.items():
                each.restore(without_prefix(name, optimiser))
            self.meter.restore(without_prefix("log", optimiser))
        except ValueError as error:
            file = self.run.folder(saved.step) / OPTIMISER
            raise ValueError(f"{file} is of another model or damaged: {error}") from None
        self.step = saved.step

    def state(self) -> Checkpoint:
        """Returns everything that the next step and the next line of metrics depend on.

        The main process has the whole weights; the optimiser of a sharded model is left out.
        """
        weights = {}
        for name, tensor in weights_of(self.task, self.average).items():
            gathered = whole(tensor)
            if self.world.is_main:
                weights[name] = gathered.cpu()
        optimisers = {name: each.tensors() for name, each in self.optimisers.items()}
        if self.engine.is_sharded:
            del optimisers["model"]
        optimisers["log"] = self.meter.tensors()
        return Checkpoint(self.step, weights, with_prefixes(optimisers))

    def save(self) -> Path:
        """Writes a checkpoint, and keeps the last few and the best."""
        self._check_losses()
        try:
            state = self.state()
            if self.engine.is_sharded:
                state = replace(state, shards=self._write_shards())
            return self.world.on_main(lambda: self._write(state))
        except OSError as error:
            raise ValueError(
                f"could not save the checkpoint of step {self.step} in {self.run.path}: "
                f"{error.strerror}; the checkpoint of step {self.run.steps()[-1]} is safe. Free some "
                f"space, then: {self._resume_command()}"
            ) from None

    def _write_shards(self) -> Path:
        """Writes the optimiser's state, of which each rank holds a part."""
        from cdcd.training.sharded import write_shards

        shards = self.world.on_main(lambda: self.run.begin(self.step)) / SHARDS
        write_shards(shards, self.optimiser.tensors())
        return shards

    def _write(self, state: Checkpoint) -> Path:
        for name, tensor in state.weights.items():
            if not tensor.isfinite().all():
                raise ValueError(self._not_finite(f"{name} is not finite after step {self.step}"))
        keep = self.config.training.keep_checkpoints
        return self.run.save(state, keep=keep, spare=self.best.step)

    # One step

    def train_step(self) -> Float[Tensor, ""]:
        """Makes one optimiser step and returns the loss per predicted token, still on the device."""
        self.task.begin_step(self.step, self.average)
        self.optimiser.set_rate(learning_rate_at(self.step, self.config.training))
        # What is captured has the shapes of whole sequences.
        is_whole = self.task.length_at(self.step) == self.config.data.length
        mean, losses, t = (self.update if is_whole else self._update)(self._parts())
        self.average.update(self.step)
        self.meter.add(mean, losses, t)
        self.step += 1
        return mean

    def _parts(self) -> Parts:
        """Returns the parts of this rank's rows of the batch, with their random inputs."""
        tokens = self.data.batch(self.step, rank=self.world.rank, world_size=self.world.size)
        tokens = tokens[:, : self.task.source_length + self.task.length_at(self.step)]
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
        losses = self.world.gather(torch.cat(losses))
        t = self.task.fit_warp([draws for _, draws in parts], losses)
        return self.world.sum(torch.stack(means).sum()), losses, t

    # The loop

    def train(self) -> float:
        """Trains to the last step, saves on the way and when interrupted, and returns the validation loss."""
        try:
            return self._train()
        except DamagedDataError as error:
            mended = f"when it is mended, go on with: {self._resume_command()}"
            raise ValueError(f"{error}; {mended}") from None
        except RuntimeError as error:
            if self.world.size > 1 and is_lost_contact(error):
                raise ValueError(self._lost_contact()) from None
            raise
        finally:
            if self.log is not None:
                self.log.close()
            self.run.unlock()

    def _train(self) -> float:
        training = self.config.training
        if self.world.is_main:
            tracker = open_tracker(self.config, self.run.path, is_resumed=self.step > 0)
            self.log = MetricsLog(self.run.path, first_step=self.step, tracker=tracker)
        self.best = self.world.on_main(
            lambda: Best.read(self.run, training.patience, is_kept=training.keep_best)
        )
        display = Display(self.console, training.steps, self.step)
        with display, noted_signals() as signals:
            self.meter.start()
            while self.step < training.steps and not self.best.waited_enough:
                self.train_step()
                ended = self.step == training.steps
                if self.step % training.log_every == 0 or ended:
                    self._log(display)
                if _due(self.step, training.validate_every) and not ended:
                    self._validate()
                if (number := self._stop_signal(signals)) and not ended:
                    self.save()
                    raise Stopped(
                        number,
                        f"stopped at step {self.step} and saved; go on with: "
                        f"{self._resume_command()}",
                    )
                if _due(self.step, training.checkpoint_every) and not ended:
                    self.save()
            return self._finish()

    def _stop_signal(self, signals: list[int]) -> int:
        """Returns the signal that asks all ranks to stop at this step, or 0."""
        if self.world.size > 1 and self.step % AGREE_EVERY:
            return 0
        return self.world.largest(max(signals, default=0))

    def _log(self, display: Display) -> None:
        self._check_losses()
        loss, speed = self.meter.read()
        display.update(self.step, loss, speed)
        rate = learning_rate_at(self.step - 1, self.config.training)
        if self.log is not None:
            self.log.write(
                {"step": self.step, "loss": loss, "learning_rate": rate, "tokens_per_second": speed}
            )

    def _validate(self) -> float:
        self.model.eval()
        self.average.swap()
        report = self.task.validate(self.valid)
        self.average.swap()
        self.model.train()
        # All ranks have computed the same; where they stop must not depend on its last bit.
        report = self.world.on_main(lambda: report)
        if self.log is not None:
            validation = {"loss": report.loss, **asdict(report)}
            row = {"step": self.step, "valid_loss": report.loss, "validation": validation}
            self.log.write(row | self.meter.recent_losses())
        if self.best.update(self.step, report.loss):
            self.save()
        return report.loss

    def _finish(self) -> float:
        """Keeps the last state, or goes back to the best one, where that is kept."""
        best = self.best
        if best.waited_enough:
            self.console.print(
                f"no better validation loss since step {best.step}: stopped at step {self.step}"
            )
        else:
            loss = self._validate()
            self.save()
            if best.step is None:
                return loss
        best_step = best.step
        assert best_step is not None
        self.world.on_main(lambda: self.run.set_aside_after(best_step))
        return best.loss

    # Errors

    def _check_losses(self) -> None:
        if (bad := self.meter.first_not_finite()) is not None:
            steps_ago, t = bad
            where = f"step {self.step - steps_ago}"
            if t is not None:
                where += f", at noise level t = {t:.3g}"
            raise ValueError(self._not_finite(f"the loss is not finite at {where}"))

    def _not_finite(self, problem: str) -> str:
        return (
            f"{problem}; the last good checkpoint is {self.run.folder(self.run.steps()[-1])}. Resume "
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
