"""Packed models: what is shipped of a run, in one folder of safetensors, JSON and a tokenizer.

    MODEL/config.json           the settings, the format and the version, the SHA-256 of the other files
    MODEL/model.safetensors     the averaged weights, in bfloat16 or in int8 with a scale for each row
    MODEL/tokenizer/            as in a run
    MODEL/README.md             the card

A packed model is read like a run with one checkpoint, so every command that takes a run takes it. Nothing
in it is trusted: the header of the weights is compared with the model before memory is taken for them.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cdcd._version import __version__
from cdcd.config import RunConfig
from cdcd.data.tokenizers import tokenizer_file
from cdcd.files import (
    VOCABULARY_LIMIT,
    file_hash,
    read_bounded,
    read_json,
    refuse_links_out_of,
    write_durably,
)
from cdcd.settings import flatten, override, unknown
from cdcd.training.build import meta_weights
from cdcd.training.checkpoint import Checkpoint, RunDirectory, without_prefix
from cdcd.training.distributed import ALONE, World
from cdcd.training.tensor_files import (
    Tensors,
    check_finite,
    check_shapes,
    read_header,
    read_tensors,
    to_bytes,
)

FORMAT = 1
"""Number of the format that this version writes; it reads all up to it."""
SAMPLES = ("decoder", "sampling", "mask_predict", "unmasking", "decoding", "beam")
"""Sections of the configuration that say how samples are drawn."""
PACKED = "model.safetensors"
SCALE = ".scale"
"""End of the name of a tensor with the scales of another one's rows."""
Weights = Literal["bfloat16", "int8"]


class PackedModel(RunDirectory):
    """A packed model on disk: a run with one checkpoint, which cannot be resumed."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, None
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a model (no config.json in it)")
        refuse_links_out_of(_root(path))

    def described(self) -> dict[str, Any]:
        """Returns the content of config.json, if this version can read it."""
        described = read_json(self.path / "config.json")
        number = described.get("format")
        if type(number) is not int or number < 1:
            raise ValueError(
                f"{self.path / 'config.json'} is damaged: its format is {number!r:.40}"
            )
        if number > FORMAT:
            newer = f"{described.get('cdcd_version')!s:.20}"
            raise ValueError(
                f"{self.path} was written by cdcd {newer} in format {number}; this is cdcd "
                f"{__version__}, which reads formats up to {FORMAT}: install cdcd {newer} or newer"
            )
        for name, kind in (("sha256", dict), ("about", dict), ("step", int), ("weights", str)):
            if type(described.get(name)) is not kind:
                raise ValueError(f"{self.path / 'config.json'} is damaged: it has no {name}")
        if described["weights"] not in ("bfloat16", "int8"):
            raise ValueError(
                f"{self.path / 'config.json'} is damaged: weights is {described['weights']!r:.40}, it "
                f"must be bfloat16 or int8"
            )
        return described

    def _described(self) -> dict[str, Any]:
        self.described()
        return super()._described()

    @property
    def about(self) -> dict[str, str]:
        """The texts that describe the model in lists."""
        return {str(name): str(text) for name, text in self.described()["about"].items()}

    @property
    def weights_hash(self) -> str:
        return self._checksum(PACKED)

    def steps(self) -> list[int]:
        return [self.described()["step"]]

    def load(
        self, step: int | None = None, *, with_optimiser: bool = False, world: World = ALONE
    ) -> Checkpoint:
        """Reads the weights and verifies the checksums of all files."""
        step = self.existing_step(step)
        file, kind = self.path / PACKED, self.described()["weights"]
        expected = model_tensors(meta_weights(self.config, self.vocab_size))
        try:
            header = read_header(file)
        except (OSError, ValueError) as error:
            raise self._wrong(PACKED, str(error)) from None
        check_shapes(pack(expected, kind), header, str(file))
        vocabulary = tokenizer_file(self.path / "tokenizer")
        self._verify(f"tokenizer/{vocabulary.name}")
        try:
            packed = read_tensors(file, self._checksum(PACKED))
        except ValueError as error:
            raise self._wrong(PACKED, str(error)) from None
        weights = unpack(packed, expected)
        check_finite(weights, str(file))
        return Checkpoint(step, weights, {})

    def _checksum(self, name: str) -> str:
        checksum = self.described()["sha256"].get(name)
        if not isinstance(checksum, str):
            raise ValueError(f"{self.path / 'config.json'} is damaged: no sha256 of {name}")
        return checksum

    def _verify(self, name: str) -> None:
        read_bounded(self.path / name, VOCABULARY_LIMIT)
        if file_hash(self.path / name) != self._checksum(name):
            raise self._wrong(name, "it does not match its checksum")

    def _wrong(self, name: str, problem: str) -> ValueError:
        """Returns the error of a file that is cut short or another one, with both hashes."""
        file = self.path / name
        try:
            present = file_hash(file)
        except (OSError, ValueError):
            present = "unknown"
        return ValueError(
            f"{file} is damaged or another file: {problem}; its SHA-256 is {present:.16}, it should "
            f"be {self._checksum(name):.16}: fetch the model again"
        )


def open_run(path: Path) -> RunDirectory:
    """Returns the run, or the packed model, in a folder."""
    return PackedModel(path) if (path / PACKED).is_file() else RunDirectory(path)


def weights_hash(run: RunDirectory) -> str:
    """Returns the SHA-256 of the last weights of a run."""
    if isinstance(run, PackedModel):
        return run.weights_hash
    described = read_json(run.folder(run.existing_step()) / "checkpoint.json")
    return described["sha256"]["weights.safetensors"]


def _root(path: Path) -> Path:
    """Returns the folder that links in a model may not lead out of.

    In the cache of the hub, the files of all revisions are links to one folder of the repository.
    """
    folder = Path(os.path.abspath(path))
    is_cached = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
    return folder.parents[1] if is_cached else path


# Weights


def model_tensors(weights: Tensors) -> Tensors:
    """Returns the tensors that sampling uses: the averaged weights, where they are kept, and the warp."""
    model = without_prefix("model", weights) | without_prefix("average", weights)
    warp = without_prefix("warp", weights)
    return {f"model.{name}": tensor for name, tensor in model.items()} | {
        f"warp.{name}": tensor for name, tensor in warp.items()
    }


def _is_matrix(name: str, tensor: Tensor) -> bool:
    return name.startswith("model.") and tensor.is_floating_point() and tensor.ndim >= 2


def pack(tensors: Tensors, kind: str) -> Tensors:
    """Returns tensors with the matrices in few bits; biases, gains and the warp stay as they are."""
    packed: Tensors = {}
    for name, tensor in tensors.items():
        if not _is_matrix(name, tensor):
            packed[name] = tensor
        elif kind == "bfloat16":
            packed[name] = tensor.bfloat16()
        else:
            scale = tensor.flatten(1).abs().amax(1).clamp(min=1e-30).float() / 127
            rows = scale.view(-1, *[1] * (tensor.ndim - 1))
            packed[name] = (tensor / rows).round().to(torch.int8)
            packed[name + SCALE] = scale
    return packed


def unpack(packed: Tensors, expected: Tensors) -> Tensors:
    """Returns the tensors that were packed, of the types that are expected."""
    tensors = {}
    for name, like in expected.items():
        tensor = packed[name].to(like.dtype)
        if packed[name].dtype == torch.int8 and _is_matrix(name, like):
            tensor *= packed[name + SCALE].view(-1, *[1] * (tensor.ndim - 1))
        tensors[name] = tensor
    return tensors


# Writing


def write_packed(
    run: RunDirectory,
    out: Path,
    weights: Weights,
    about: Mapping[str, str],
    *,
    checkpoint: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> PackedModel:
    """Writes the packed model of a run into a new folder, which appears whole.

    `changes` are settings of its samples, such as the number of steps.
    """
    config = _changed(run.config, changes or {})
    check_free(out)
    saved, tokenizer = run.load(checkpoint), run.tokenizer
    building = out.with_name(f".{out.name}.building-{os.getpid()}")
    try:
        (building / "tokenizer").mkdir(parents=True)
        tokenizer.save(building / "tokenizer")
        write_durably(building / PACKED, to_bytes(pack(model_tensors(saved.weights), weights)))
        names = [PACKED, f"tokenizer/{tokenizer_file(building / 'tokenizer').name}"]
        described = {
            "format": FORMAT,
            "cdcd_version": __version__,
            "vocab_size": tokenizer.vocab_size,
            "step": saved.step,
            "weights": weights,
            "text_sha256": run.text_hash,
            "sha256": {name: file_hash(building / name) for name in names},
            "about": dict(about),
            "config": dataclasses.asdict(_without_path(config)),
        }
        content = json.dumps(described, indent=1, ensure_ascii=False)
        write_durably(building / "config.json", content.encode())
        building.rename(out)
    except OSError as error:
        raise ValueError(f"could not write the model {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return PackedModel(out)


def check_free(out: Path, *, replace: bool = False) -> None:
    """Raises an error where a folder exists; with `replace`, where it is no packed model."""
    is_model = (out / PACKED).is_file()
    if os.path.lexists(out) and not (replace and is_model):
        hint = "replace it with --replace" if is_model else "choose another --out"
        raise ValueError(f"{out} already exists: {hint}")


def move_model(model: PackedModel, out: Path) -> PackedModel:
    """Moves a packed model to a folder of the same name, in the place of the model that is there."""
    shutil.rmtree(out, ignore_errors=True)
    model.path.rename(out)
    return PackedModel(out)


def _changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Returns a configuration with other settings of its samples; those of the model stay."""
    known = [name for name in flatten(config) if name.partition(".")[0] in SAMPLES]
    for name in changes:
        if name not in known:
            raise unknown("setting of samples", name, known)
    return override(config, changes)


def _without_path(config: RunConfig) -> RunConfig:
    """Returns a configuration with only the name of its text, since a path is of one machine."""
    data = dataclasses.replace(config.data, source=Path(config.data.source).name)
    return dataclasses.replace(config, data=data)


def num_bytes(folder: Path) -> int:
    """Returns the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
