"""Translators under evaluation: their checkpoints, names, and the rows that each has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdcd.config import BeamConfig, DecodingConfig, RunConfig
from cdcd.evaluation.sweep import Setting, hardware
from cdcd.files import read_json
from cdcd.inference.load import load_translator
from cdcd.inference.translator import Translator
from cdcd.training.checkpoint import RunDirectory

MODELS = {"diffusion": "cdcd", "autoregressive": "autoregressive"}
"""The names of models in reports."""
BASELINE = "baseline"


@dataclass(frozen=True)
class System:
    """A run that translates."""

    run: str
    name: str
    """The name in the report."""
    translator: Translator
    checkpoint: str
    """Step and checksum of its weights."""
    how: str = ""
    """Precision and compilation."""

    @property
    def config(self) -> RunConfig:
        return self.translator.config

    @property
    def hardware(self) -> str:
        return hardware(self.translator.device)


def load_system(
    run: Path, name: str, *, data: str | None, device: str, dtype: str, compile: str
) -> System:
    """Loads a run's last checkpoint; `data` says where its pairs have moved."""
    directory = RunDirectory(run)
    step = directory.existing_step()
    saved = read_json(directory.folder(step) / "checkpoint.json")["sha256"]["weights.safetensors"]
    translator = load_translator(run, device=device, dtype=dtype, compile=compile)
    if data is not None:
        config = translator.config
        translator.config = replace(config, data=replace(config.data, source=data))
    how = f"dtype {dtype}, compile {compile}"
    return System(str(run), name, translator, f"{step} {saved[:16]}", how)


def load_systems(runs: Sequence[Path], **options: Any) -> list[System]:
    """Loads several runs, each with a name of its own."""
    if len(set(runs)) < len(runs):
        raise ValueError("a run is given twice; give each once")
    systems = [load_system(run, "", **options) for run in runs]
    models = [MODELS[each.config.model] for each in systems]
    short = [run.resolve().name for run in runs]
    own = short if len(set(short)) == len(short) else [str(run) for run in runs]
    return [
        replace(each, name=model if models.count(model) == 1 else f"{model} {name}")
        for each, model, name in zip(systems, models, own, strict=True)
    ]


@dataclass(frozen=True)
class Job:
    """A row to be computed."""

    system: System
    changes: Setting
    """Changes of the run's own settings."""
    reported: Setting
    """Those of them that name the row."""
    num_samples: int
    settings: Any
    """All settings."""

    @property
    def mode(self) -> str:
        """The way in which an autoregressive translator decodes."""
        match self.settings:
            case BeamConfig():
                return "beam search"
            case DecodingConfig():
                return "greedy" if self.settings.temperature == 0 else "samples"
        return ""

    @property
    def label(self) -> str:
        return self.named(self.system.name)

    @property
    def names(self) -> dict[str, Any]:
        """The fields of the row that name it; they depend on the other runs of an evaluation."""
        model = self.named(MODELS[self.system.config.model])
        return {
            "system": self.label,
            "model": model,
            "settings": self.reported,
            "run": self.system.run,
        }

    def named(self, name: str) -> str:
        return f"{name}: {self.mode}" if self.mode else name


def jobs_of(
    system: System, base: Setting, settings: Sequence[Setting], num_samples: int
) -> Iterator[Job]:
    """Yields the rows of a system: one for each setting, for an autoregressive one also its usual modes.

    Several samples are drawn where they can differ.
    """
    if system.config.model == "diffusion":
        yield from (_job(system, base, changes, num_samples) for changes in settings)
        return
    usual: list[Setting] = [{}, {"temperature": 0.0}]
    for changes in [*usual, *filter(None, settings)]:
        one = _job(system, base, changes, 1)
        yield _job(system, base, changes, num_samples) if one.mode == "samples" else one
    if num_samples > 1:
        yield _job(system, base, {}, num_samples)


def _job(system: System, base: Setting, changes: Setting, num_samples: int) -> Job:
    settings = system.translator.settings({**base, **changes}, num_samples)
    reported = {name: getattr(settings, name, value) for name, value in changes.items()}
    job = Job(system, {**base, **changes}, reported, num_samples, settings)
    if job.mode == "greedy":
        reported.pop("temperature", None)
    return job
