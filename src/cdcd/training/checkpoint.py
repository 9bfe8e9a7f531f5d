"""Run directories and checkpoints: safetensors and JSON, nothing half-written, nothing lost.

    RUN/config.json, RUN/tokenizer/, RUN/metrics.jsonl, RUN/checkpoints/step-00000500/
        weights.safetensors     model.*, average.* (the moving average, where kept), warp.*
        optimiser.safetensors   Adam's moments and what is not logged yet, only needed to resume
        sharded/                instead of Adam's moments, where the model is sharded (fsdp)
        checkpoint.json         step, the SHA-256 of each file, and those of the tokenizer's file and
                                of the settings of model and data that the checkpoint belongs to

config.json has, beside the settings, the size of the vocabulary, the version of cdcd, the SHA-256 of the
text that is trained on, and that of the path where the run was made (`made_at`).

A checkpoint is written under a temporary name, flushed to disk and renamed, so that it is whole or
not there. A run directory is created the same way and is loadable from its first moment.
"""

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcd._version import __version__
from cdcd.config import RunConfig, read_config
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, tokenizer_file
from cdcd.files import (
    VOCABULARY_LIMIT,
    file_hash,
    read_bounded,
    read_json,
    refuse_links_out_of,
    warn,
    write_atomically,
    write_durably,
)
from cdcd.lock import Lock, refuse_locked
from cdcd.training.build import meta_weights
from cdcd.training.distributed import ALONE, World
from cdcd.training.tensor_files import (
    Tensors,
    check_finite,
    check_shapes,
    read_header,
    read_tensors,
    to_bytes,
)

WEIGHTS, OPTIMISER = "weights.safetensors", "optimiser.safetensors"
MAX_VOCAB_SIZE = 2**24
SHARD_LIMIT = 100_000_000
"""Bytes that a shard may have beside its tensors."""
FREE = ("training", "decoder", "sampling", "mask_predict", "decoding", "beam")
"""Sections of the configuration that a resumed run can change; all others describe its model and data."""
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
        self.path, self._lock = path, None
        if not (path / "config.json").is_file():
            problem = "is not a run directory (no config.json in it)"
            problem = problem if path.exists() else "does not exist"
            command = f"cdcd train --out {shlex.quote(str(path))}"
            raise ValueError(f"{path} {problem}; train one with: {command}")
        refuse_links_out_of(path)

    @staticmethod
    def create(
        path: Path,
        config: RunConfig,
        tokenizer: Tokenizer,
        first: Checkpoint,
        text_hash: str | None = None,
    ) -> "RunDirectory":
        """Makes a new run directory with its first checkpoint, locked; refuses one that exists."""
        refuse_existing(path)
        building = path.with_name(f".{path.name}.building-{os.getpid()}")
        try:
            (building / "tokenizer").mkdir(parents=True)
            lock = Lock(building)
            described = {"cdcd_version": __version__, "vocab_size": tokenizer.vocab_size}
            described |= {"made_at": _hash_of(path), "text_sha256": text_hash}
            described["config"] = dataclasses.asdict(config)
            write_durably(building / "config.json", json.dumps(described, indent=2).encode())
            tokenizer.save(building / "tokenizer")
            RunDirectory(building)._write(first)
            building.rename(path)
            lock.folder = path
        except OSError as error:
            refuse_existing(path)  # Another process may have been faster.
            raise ValueError(f"could not create the run {path}: {error.strerror}") from None
        finally:
            shutil.rmtree(building, ignore_errors=True)
        run = RunDirectory(path)
        run._lock = lock
        return run

    def lock(self) -> None:
        """Locks the run for this process, or raises an error that names the one that writes it."""
        self._lock = Lock(self.path)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def remove(self) -> None:
        """Deletes a run that could not be begun."""
        self.unlock()
        _remove(self.path)

    @property
    def config(self) -> RunConfig:
        described = self._described()
        try:
            return read_config(described["config"])
        except ValueError as error:
            raise ValueError(
                f"{self.path / 'config.json'}, written by cdcd {described.get('cdcd_version')} (this "
                f"is {__version__}): {error}"
            ) from None

    @property
    def vocab_size(self) -> int:
        return self._described()["vocab_size"]

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer, size = load_tokenizer(self.path / "tokenizer"), self.vocab_size
        if tokenizer.vocab_size != size:
            raise ValueError(
                f"the tokenizer in {self.path / 'tokenizer'} has {tokenizer.vocab_size} tokens, "
                f"vocab_size in {self.path / 'config.json'} is {size}; put the right one back"
            )
        return tokenizer

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def _described(self) -> dict[str, Any]:
        file = self.path / "config.json"
        described = read_json(file)
        for name in ("config", "vocab_size"):
            if name not in described:
                raise ValueError(f"{file} is damaged: it has no {name}")
        if not isinstance(described["config"], dict):
            raise ValueError(f"{file} is damaged: its config is not a JSON object")
        size = described["vocab_size"]
        if type(size) is not int or not 2 <= size <= MAX_VOCAB_SIZE:
            raise ValueError(
                f"{file} is damaged: vocab_size is {size!r:.40}, it must be a whole number from 2 to "
                f"{MAX_VOCAB_SIZE}"
            )
        return described

    @property
    def text_hash(self) -> str | None:
        """The SHA-256 of the text that the run is trained on, where it is known."""
        return self._described().get("text_sha256")

    @property
    def is_where_it_was_made(self) -> bool:
        return self._described().get("made_at") == _hash_of(self.path)

    def replace_config(self, config: RunConfig, *, text_hash: str | None = None) -> None:
        """Records what a resumed run can change; all else stays as it was written, for its checksum.

        With the hash of a text that the user has confirmed, the run belongs to where it is now.
        """
        described, changed = self._described(), dataclasses.asdict(config)
        described["config"] |= {name: changed[name] for name in FREE}
        described["config"].setdefault("data", {})["source"] = config.data.source
        if text_hash is not None:
            described |= {"made_at": _hash_of(self.path), "text_sha256": text_hash}
        write_atomically(self.path / "config.json", json.dumps(described, indent=2).encode())

    def belongings(self) -> dict[str, str]:
        """Returns the SHA-256 of the tokenizer's file and of the settings of the model and the data.

        A run can be resumed with its text elsewhere, so the path of the text is left out. The settings
        are taken as they were written: a later version may have more of them.
        """
        described = self._described()
        fixed = {name: v for name, v in described["config"].items() if name not in FREE}
        data = fixed.get("data", {})
        if isinstance(data, dict):
            fixed["data"] = {name: value for name, value in data.items() if name != "source"}
        settings = json.dumps([described["vocab_size"], fixed], sort_keys=True).encode()
        file = tokenizer_file(self.path / "tokenizer")
        words = read_bounded(file, VOCABULARY_LIMIT)
        contents = {"config.json": settings, f"tokenizer/{file.name}": words}
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}

    def _check_belongings(self, checkpoint: Path, saved: Mapping[str, str] | None) -> None:
        """Refuses a tokenizer or a configuration of another run than the checkpoint's."""
        if saved is None:
            warn(
                f"{checkpoint} was written by an earlier version of cdcd: whether the tokenizer and "
                f"the configuration of the run belong to it is not known"
            )
            return
        present = self.belongings()
        for name in sorted({*present, *saved}):
            if present.get(name) != saved.get(name):
                part = "the settings of model and data in " if name == "config.json" else ""
                raise ValueError(
                    f"{part}{self.path / name} do{'' if part else 'es'} not belong to the checkpoint "
                    f"{checkpoint}: changed since it was written; put the right file back"
                )

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, in order."""
        names = (folder.name for folder in (self.path / "checkpoints").glob("step-*"))
        return sorted(int(name[5:]) for name in names if re.fullmatch("step-[0-9]{8,18}", name))

    def set_aside_after(self, step: int) -> None:
        """Renames later checkpoints, so that a run resumed from `step` has one history."""
        for later in [s for s in self.steps() if s > step]:
            shutil.rmtree(self.aside(later), ignore_errors=True)
            self.folder(later).rename(self.aside(later))

    def aside(self, step: int) -> Path:
        return self.folder(step).with_name(f"set-aside-step-{step:08d}")

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
                (WEIGHTS, checkpoint.weights),
                (OPTIMISER, checkpoint.optimiser),
            ):
                content = to_bytes(tensors)
                write_durably(temporary / name, content)
                sums[name] = hashlib.sha256(content).hexdigest()
            for file in sorted(shards.iterdir()) if shards is not None else ():
                sums[f"{SHARDS}/{file.name}"] = file_hash(file)
            described = {"step": checkpoint.step, "sha256": sums, "belongs_to": self.belongings()}
            write_durably(temporary / "checkpoint.json", json.dumps(described, indent=2).encode())
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

        The weights are compared with the model before any memory is taken for them. Each of several
        ranks verifies some of the shards.
        """
        step = self.existing_step(step)
        folder, owner = self.folder(step), f"the checkpoint of step {step} in {self.path}"
        with self._naming_damage(step):
            sums, saved = _sums(folder, step)
            header = read_header(folder / WEIGHTS)
        expected = meta_weights(self.config, self.vocab_size)
        check_shapes(expected, header, owner)
        self._check_belongings(folder, saved)
        most = SHARD_LIMIT + 4 * sum(tensor.nbytes for tensor in expected.values())
        optimiser: Tensors = {}
        with self._naming_damage(step):
            weights = read_tensors(folder / WEIGHTS, sums.get(WEIGHTS))
            if with_optimiser:
                read_header(folder / OPTIMISER)
                optimiser = read_tensors(folder / OPTIMISER, sums.get(OPTIMISER))
                shards = sorted(name for name in sums if name.startswith(f"{SHARDS}/"))
                for name in shards[world.rank :: world.size]:
                    _verify_shard(folder, name, sums[name], most)
        check_finite(weights, owner)
        shards = folder / SHARDS
        return Checkpoint(step, weights, optimiser, shards if shards.exists() else None)

    @contextmanager
    def _naming_damage(self, step: int) -> Iterator[None]:
        """Adds the checkpoint and the one before it to the errors that are raised inside."""
        try:
            yield
        except (OSError, ValueError) as error:
            earlier = [s for s in self.steps() if s < step]
            offer = f"; use the one before it with --checkpoint {earlier[-1]}" if earlier else ""
            raise ValueError(
                f"the checkpoint {self.folder(step)} is damaged: {error}{offer}"
            ) from None


def _sums(checkpoint: Path, step: int) -> tuple[dict[str, str], dict[str, str] | None]:
    """Returns the SHA-256 of each file of a checkpoint, and of what it belongs to, where it is known."""
    described = read_json(checkpoint / "checkpoint.json")
    if described.get("step") != step:
        raise ValueError(f"checkpoint.json is not of step {step}")
    belongs_to = _texts(described, "belongs_to") if "belongs_to" in described else None
    return _texts(described, "sha256"), belongs_to


def _texts(described: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns an object of a checkpoint's description whose values are all texts."""
    texts = described.get(name)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"checkpoint.json has no {name}")
    return texts


def _verify_shard(checkpoint: Path, name: str, checksum: str, most: int) -> None:
    """Compares a shard with its checksum; it is no larger than the state of the model could be."""
    file = checkpoint / name
    if file != checkpoint / SHARDS / file.name or file.stat().st_size > most:
        raise ValueError(f"{name} is not a shard of this model")
    if file_hash(file) != checksum:
        raise ValueError(f"{name} does not match its checksum")


def refuse_existing(path: Path) -> None:
    """Refuses to overwrite a run, or anything else."""
    refuse_locked(path)
    if (path / "config.json").exists():
        raise ValueError(
            f"{path} already holds a run; go on with it (--resume) or choose another --out"
        )
    if path.exists():
        raise ValueError(f"{path} already exists and is not a run; choose another --out")


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


def _hash_of(path: Path) -> str:
    """Returns the SHA-256 of where a run is, which tells nobody the path."""
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
