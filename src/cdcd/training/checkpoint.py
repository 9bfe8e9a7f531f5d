"""Run directories and checkpoints: safetensors and JSON, nothing half-written, nothing lost.

    RUN/config.json, RUN/tokenizer/, RUN/metrics.jsonl, RUN/checkpoints/step-00000500/
        weights.safetensors     model.*, average.* (the moving average, where kept), warp.*
        optimiser.safetensors   Adam's moments and what is not logged yet, only needed to resume
        sharded/                instead of Adam's moments, where the model is sharded (fsdp)
        checkpoint.json         step, and the SHA-256 of each file

A checkpoint is written under a temporary name, flushed to disk and renamed, so that it is whole or
not there. A run directory is created the same way and is loadable from its first moment.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from cdcd._version import __version__
from cdcd.config import RunConfig, read_config
from cdcd.data.tokenizers import Tokenizer, load_tokenizer
from cdcd.files import file_hash, read_json, write_atomically, write_durably
from cdcd.training.distributed import ALONE, World

Tensors = dict[str, Tensor]

SHARDS = "sharded"
"""Folder of a checkpoint that holds the training state of a sharded model."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run at a step. Draws and data position are functions of the step."""

    step: int
    weights: Tensors
    optimiser: Tensors
    shards: Path | None = None
    """The folder of a sharded model's training state."""


class RunDirectory:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            problem = "is not a run directory (no config.json in it)"
            problem = problem if path.exists() else "does not exist"
            command = f"cdcd train --out {shlex.quote(str(path))}"
            raise ValueError(f"{path} {problem}; train one with: {command}")

    @staticmethod
    def create(
        path: Path, config: RunConfig, tokenizer: Tokenizer, first: Checkpoint
    ) -> "RunDirectory":
        """Makes a new run directory with its first checkpoint; refuses one that exists."""
        refuse_existing(path)
        building = path.with_name(f".{path.name}.building-{os.getpid()}")
        try:
            (building / "tokenizer").mkdir(parents=True)
            described = {"cdcd_version": __version__, "vocab_size": tokenizer.vocab_size}
            described["config"] = dataclasses.asdict(config)
            write_durably(building / "config.json", json.dumps(described, indent=2).encode())
            tokenizer.save(building / "tokenizer")
            RunDirectory(building)._write(first)
            building.rename(path)
        except OSError as error:
            raise ValueError(f"could not create the run {path}: {error.strerror}") from None
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return RunDirectory(path)

    @property
    def config(self) -> RunConfig:
        return read_config(self._described()["config"])

    @property
    def vocab_size(self) -> int:
        return self._described()["vocab_size"]

    @property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.path / "tokenizer")

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def _described(self) -> dict[str, Any]:
        described = read_json(self.path / "config.json")
        for name in ("config", "vocab_size"):
            if name not in described:
                raise ValueError(f"{self.path / 'config.json'} is damaged: it has no {name}")
        return described

    def replace_config(self, config: RunConfig) -> None:
        """Records a configuration that was changed on resuming."""
        described = self._described() | {"config": dataclasses.asdict(config)}
        write_atomically(self.path / "config.json", json.dumps(described, indent=2).encode())

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, in order."""
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted(int(folder.name.removeprefix("step-")) for folder in folders)

    def set_aside_after(self, step: int) -> None:
        """Renames later checkpoints, so that a run resumed from `step` has one history."""
        for later in [s for s in self.steps() if s > step]:
            folder = self.folder(later)
            aside = folder.with_name(f"set-aside-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def folder(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}"

    def save(self, checkpoint: Checkpoint, *, keep: int, spare: int | None = None) -> Path:
        """Writes a checkpoint, and deletes all but the last `keep` and that of step `spare`."""
        final = self._write(checkpoint)
        for step in [s for s in self.steps() if s != checkpoint.step][: -(keep - 1) or None]:
            if step != spare:
                _remove(self.folder(step))
        return final

    def begin(self, step: int) -> Path:
        """Makes the hidden folder in which a checkpoint is written, and removes those of dead processes."""
        final = self.folder(step)
        for left_over in final.parent.glob(".step-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        temporary = final.with_name(f".{final.name}.writing")
        temporary.mkdir(parents=True)
        return temporary

    def _write(self, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint; its shards, if there are any, are in the folder of `begin` already."""
        shards = checkpoint.shards
        temporary = self.begin(checkpoint.step) if shards is None else shards.parent
        try:
            sums = {}
            for name, tensors in (
                ("weights.safetensors", checkpoint.weights),
                ("optimiser.safetensors", checkpoint.optimiser),
            ):
                content = save(_contiguous(tensors))
                write_durably(temporary / name, content)
                sums[name] = hashlib.sha256(content).hexdigest()
            for file in sorted(shards.iterdir()) if shards is not None else ():
                sums[f"{SHARDS}/{file.name}"] = file_hash(file)
            described = json.dumps({"step": checkpoint.step, "sha256": sums}, indent=2)
            write_durably(temporary / "checkpoint.json", described.encode())
            final = self.folder(checkpoint.step)
            _remove(final)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return final

    def existing_step(self, step: int | None = None) -> int:
        """Returns `step` if it has a checkpoint; without it, the step of the last checkpoint."""
        steps = self.steps()
        if not steps:
            raise ValueError(f"{self.path} holds no checkpoint")
        if step is not None and step not in steps:
            raise ValueError(
                f"{self.path} holds no checkpoint of step {step}, only of {', '.join(map(str, steps))}"
            )
        return steps[-1] if step is None else step

    def load(
        self, step: int | None = None, *, with_optimiser: bool = False, world: World = ALONE
    ) -> Checkpoint:
        """Reads a checkpoint, the last one unless `step` is given, and verifies its checksums.

        Each of several ranks verifies some of the shards.
        """
        step = self.existing_step(step)
        folder = self.folder(step)
        try:
            weights = load(_verified(folder, "weights.safetensors"))
            optimiser = {}
            if with_optimiser:
                optimiser = load(_verified(folder, "optimiser.safetensors"))
                shards = sorted(n for n in _checksums(folder) if n.startswith(f"{SHARDS}/"))
                for name in shards[world.rank :: world.size]:
                    _verified(folder, name)
        except (OSError, ValueError, KeyError) as error:
            earlier = [s for s in self.steps() if s < step]
            offer = f"; use the one before it with --checkpoint {earlier[-1]}" if earlier else ""
            raise ValueError(f"the checkpoint {folder} is damaged: {error}{offer}") from None
        shards = folder / SHARDS
        return Checkpoint(step, weights, optimiser, shards if shards.exists() else None)


def _checksums(checkpoint: Path) -> dict[str, str]:
    return read_json(checkpoint / "checkpoint.json")["sha256"]


def _verified(checkpoint: Path, name: str) -> bytes:
    """Reads a file of a checkpoint, and compares it with its checksum."""
    content = (checkpoint / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != _checksums(checkpoint)[name]:
        raise ValueError(f"{name} ({len(content)} bytes) does not match its checksum")
    return content


def refuse_existing(path: Path) -> None:
    """Refuses to overwrite a run, or anything else."""
    if (path / "config.json").exists():
        raise ValueError(
            f"{path} already holds a run; go on with it (--resume) or choose another --out"
        )
    if path.exists():
        raise ValueError(f"{path} already exists and is not a run; choose another --out")


def check_shapes(expected: Tensors, weights: Tensors, owner: str) -> None:
    """Refuses weights of another model, and names the first tensor that differs."""
    for name, tensor in expected.items():
        if name not in weights:
            raise ValueError(f"{owner} has no tensor {name}: it is of another model")
        if weights[name].shape != tensor.shape:
            raise ValueError(
                f"{owner} is of another model size: {name} is {tuple(weights[name].shape)} there and "
                f"{tuple(tensor.shape)} here"
            )
    if extra := sorted(set(weights) - set(expected)):
        raise ValueError(f"{owner} has a tensor {extra[0]} that this model has not")


def with_prefixes(groups: Mapping[str, Tensors]) -> Tensors:
    return {f"{prefix}.{n}": tensor for prefix, ts in groups.items() for n, tensor in ts.items()}


def without_prefix(prefix: str, tensors: Tensors) -> Tensors:
    start = f"{prefix}."
    return {n.removeprefix(start): tensor for n, tensor in tensors.items() if n.startswith(start)}


def _remove(folder: Path) -> None:
    """Deletes a folder under another name, so that a crash leaves no half of it under its own."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.deleting")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _contiguous(tensors: Tensors) -> Tensors:
    # A copy, because safetensors refuses tensors that share memory.
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
