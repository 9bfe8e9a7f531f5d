"""The models that a server has, each with its worker, and how they are described."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cdcd.inference.load import load_any
from cdcd.inference.names import INSTALL, installed_models
from cdcd.inference.text_model import AutoregressiveTextModel, DiffusionTextModel
from cdcd.inference.translator import Translator
from cdcd.serving.controls import controls_of
from cdcd.serving.jobs import Worker
from cdcd.serving.limits import Limits
from cdcd.serving.recipes import Source
from cdcd.settings import unknown


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its name, its source and its worker."""

    name: str
    source: Source
    model: Any
    """A `TextModel` or a `Translator`."""
    worker: Worker

    @property
    def is_translator(self) -> bool:
        return isinstance(self.model, Translator)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The settings that hold where a request has none of its own."""
        # Several samples of a translator; the decoder whose steps can be watched of a model of text.
        return asdict(self.model.settings(self.forced, 2 if self.is_translator else 1))

    @property
    def forced(self) -> dict[str, Any]:
        """Settings of every request: what is watched are the steps of the ODE."""
        run = self.model.config
        is_other = isinstance(self.model, DiffusionTextModel) and run.decoder != "ode"
        return {"decoder": "ode"} if is_other else {}

    def description(self) -> dict[str, Any]:
        """Returns what the page and other clients are told."""
        run = self.model.config
        is_diffusion = run.model == "diffusion"
        return {
            "name": self.name,
            "task": run.task,
            "model": run.model,
            "length": run.data.length,
            "vocabulary": self.model.tokenizer.vocab_size,
            "languages": list(run.data.direction) if self.is_translator else None,
            "fills_gaps": not isinstance(self.model, AutoregressiveTextModel),
            "knows_ends": run.data.layout == "documents",
            "goes_back": isinstance(self.model, DiffusionTextModel),
            "is_diffusion": is_diffusion,
            "controls": controls_of(run, self.defaults),
            "waiting": len(self.worker),
        }


class Models:
    """The models of a server by name."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.by_name = {each.name: each for each in models}

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    def named(self, name: str, *, translator: bool) -> Served:
        """Returns a model by its name, or the first of its kind."""
        fitting = {each.name: each for each in self if each.is_translator == translator}
        if name and name not in self.by_name:
            raise unknown("model", name[:60], self.by_name)
        kind = "a translator" if translator else "a model of text"
        if name and name not in fitting:
            raise ValueError(f"{name} is not {kind}; models: {', '.join(fitting) or 'none'}")
        if not fitting:
            raise ValueError(f"this server has not {kind}; start it with one: cdcd serve RUN")
        return fitting[name] if name else next(iter(fitting.values()))


def load_models(runs: Sequence[Path | str], limits: Limits, device: str = "auto") -> Models:
    """Loads runs, or all installed models; a name is that of the folder, with a number where it is taken."""
    runs = runs or [*installed_models()]
    if not runs:
        raise ValueError(
            f"no model is installed ({INSTALL}); or give the runs to serve, such as runs/demo"
        )
    served: list[Served] = []
    for run in runs:
        model = load_any(run, device=device)
        name = Path(run).resolve().name or "model"
        taken = sum(each.name == name or each.name.startswith(f"{name}-") for each in served)
        name = f"{name}-{taken + 1}" if taken else name
        served.append(Served(name, Source(str(run), device), model, Worker(name, limits.queue)))
    return Models(served)
