"""Systems under evaluation: runs and a baseline, their names, and the rows that each has in a report."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdcd.config import BeamConfig, DecodingConfig, RunConfig
from cdcd.data.remote import is_remote
from cdcd.evaluation.sweep import Setting, hardware
from cdcd.inference.decoder_settings import names_of
from cdcd.inference.names import open_named
from cdcd.training.packed_model import weights_hash

MODELS = {"diffusion": "cdcd", "autoregressive": "autoregressive", "masked": "masked"}
"""The names of models in reports."""
BASELINE = "baseline"


@dataclass(frozen=True)
class System:
    """A run under evaluation."""

    run: str
    name: str
    """The name in the report."""
    model: Any
    """The text model or the translator."""
    config: RunConfig
    """The run's configuration, with its text where it is now."""
    checkpoint: str
    """Step and checksum of its weights."""
    how: str = ""
    """Precision and compilation."""

    @property
    def is_baseline(self) -> bool:
        return self.name == BASELINE

    @property
    def kind(self) -> str:
        """The name of its model: runs of one model are averaged."""
        return BASELINE if self.is_baseline else MODELS[self.config.model]

    @property
    def hardware(self) -> str:
        return hardware(self.model.device)


def load_systems(
    load: Callable[..., Any],
    runs: Sequence[Path],
    baseline: Path | None = None,
    *,
    data: str | None = None,
    **options: Any,
) -> list[System]:
    """Loads the last checkpoints of runs, each with a name of its own, and of a baseline.

    `data` says where their text has moved.
    """
    if len(set(runs)) < len(runs):
        raise ValueError("a run is given twice; give each once")
    systems = [_load_system(load, run, data, options) for run in runs]
    short = [run.resolve().name for run in runs]
    own = short if len(set(short)) == len(short) else [str(run) for run in runs]
    kinds = [each.kind for each in systems]
    named = [
        replace(each, name=kind if kinds.count(kind) == 1 else f"{kind} {name}")
        for each, kind, name in zip(systems, kinds, own, strict=True)
    ]
    if baseline is not None:
        named.append(replace(_load_system(load, baseline, data, options), name=BASELINE))
    return named


def _load_system(
    load: Callable[..., Any], run: Path, data: str | None, options: dict[str, Any]
) -> System:
    directory = open_named(run)
    step, saved = directory.existing_step(), weights_hash(directory)
    model = load(run, **options)
    source = model.config.data.source
    if is_remote(source) and data is None and not directory.is_where_it_was_made:
        raise ValueError(
            f"{run} was made elsewhere; its data is said to be at {source}: give --data PATH to confirm"
        )
    how = ", ".join(f"{name} {options.get(name, 'auto')}" for name in ("dtype", "compile"))
    return System(str(run), "", model, moved(model.config, data), f"{step} {saved[:16]}", how)


def moved(config: RunConfig, source: str | None) -> RunConfig:
    """Returns a run's configuration with its text in another file or folder, if one is given."""
    if source is None:
        return config
    return replace(config, data=replace(config.data, source=source))


@dataclass(frozen=True)
class Job:
    """A system under one setting: a row to be computed."""

    system: System
    changes: Setting
    """Changes of the run's own settings."""
    reported: Setting
    """Those of them that name the row."""
    settings: Any
    """All settings."""
    num_samples: int

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
    def names(self) -> dict[str, Any]:
        """The fields of a translator's row that name it; they depend on the other runs of an evaluation."""
        mode = f": {self.mode}" if self.mode else ""
        return {
            "system": self.system.name + mode,
            "model": self.system.kind + mode,
            "settings": self.reported,
            "run": self.system.run,
        }


def jobs_of(
    systems: Sequence[System],
    base: Setting,
    sweep: Sequence[Setting],
    baseline_sweep: Sequence[Setting],
    num_samples: int = 1,
) -> list[Job]:
    """Returns the rows of a report: each system under each setting; a baseline has settings of its own.

    An autoregressive translator also has rows of its usual modes; a setting that is one of them counts
    once. Of models of several kinds each takes the settings that its decoder has, if another has the rest.
    A bad setting is refused here, before an hour of sampling.
    """
    jobs: dict[tuple[str, str], Job] = {}
    of_texts = [s for s in systems if s.config.task == "text" and not s.is_baseline]
    for system in systems:
        changes, settings = ({}, baseline_sweep) if system.is_baseline else (base, sweep)
        if system in of_texts:
            settings = [_own(system, {**base, **each}, each, of_texts) for each in settings]
            changes = _own(system, base, base, of_texts)
        searches = system.config.task == "translation" and system.config.model == "autoregressive"
        rows = _with_usual_modes if searches else _one_each
        for job in rows(system, changes, settings, num_samples):
            jobs.setdefault((job.names["system"], repr(job.settings)), job)
    return list(jobs.values())


def _own(system: System, chosen: Setting, changes: Setting, systems: Sequence[System]) -> Setting:
    """Returns changes without those that only other systems' decoders have."""
    own = _names(system, chosen)
    others = frozenset[str]().union(*(_names(each, chosen) for each in systems))
    return {name: value for name, value in changes.items() if name in own or name not in others}


def _names(system: System, chosen: Setting) -> frozenset[str]:
    """Returns the settings of a system's decoder; a diffusion model has a choice of them."""
    if system.config.model != "diffusion":
        return names_of(type(system.model.settings({})))
    decoder = {name: value for name, value in chosen.items() if name == "decoder"}
    return names_of(type(system.model.settings(decoder))) | {"decoder"}


def _one_each(
    system: System, base: Setting, sweep: Sequence[Setting], num_samples: int
) -> Iterator[Job]:
    return (_job(system, base, changes, num_samples) for changes in sweep)


def _with_usual_modes(
    system: System, base: Setting, sweep: Sequence[Setting], num_samples: int
) -> Iterator[Job]:
    """Yields the rows of an autoregressive translator; several samples are drawn where they can differ."""
    usual: list[Setting] = [{}, {"temperature": 0.0}]
    for changes in [*usual, *filter(None, sweep)]:
        one = _job(system, base, changes, 1)
        if one.mode == "greedy":
            one.reported.pop("temperature", None)
        yield _job(system, base, changes, num_samples) if one.mode == "samples" else one
    if num_samples > 1:
        yield _job(system, base, {}, num_samples)


def _job(system: System, base: Setting, changes: Setting, num_samples: int) -> Job:
    chosen = {**base, **changes}
    settings = system.model.settings(chosen, num_samples)
    reported = {name: getattr(settings, name, value) for name, value in changes.items()}
    return Job(system, chosen, reported, settings, num_samples)
