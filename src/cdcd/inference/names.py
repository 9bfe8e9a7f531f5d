"""The names of trained models: a run directory, a model that is installed, or one on the hub.

A name is looked up in this order:

1. a folder with a run or a packed model;
2. an installed model: a folder of the package cdcd_models (`pip install ./models`), or of the folders
   that the environment variable CDCD_MODELS lists;
3. `hf:owner/name` or `hf:owner/name@revision`: a model on the hub, kept in its local cache.
"""

import difflib
import importlib.util
import os
import re
import shlex
from pathlib import Path

from cdcd.files import expanded
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.packed_model import PACKED, open_run

HUB = "hf:"
INSTALL = "pip install ./models in a clone of cdcd"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
DIRECTION = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")


def open_named(name: str | Path) -> RunDirectory:
    """Returns the run or the model of a name."""
    return open_run(find_run(name))


def find_run(name: str | Path) -> Path:
    """Returns the folder of the run or model of a name."""
    text = str(name)
    if text.startswith(HUB):
        from cdcd.inference.hub import download

        return download(text.removeprefix(HUB))
    path = expanded(text)
    if (path / "config.json").is_file() or not NAME.fullmatch(text):
        return path
    if text in (models := installed_models()):
        return models[text]
    if path.exists():
        return path
    raise ValueError(_problem(text, list(models)))


def installed_models() -> dict[str, Path]:
    """Returns the folders of the installed models by their names, in alphabetical order."""
    models: dict[str, Path] = {}
    for root in filter(Path.is_dir, _roots()):
        for folder in root.iterdir():
            if (folder / PACKED).is_file():
                # The first of two models of one name counts.
                models.setdefault(folder.name, folder)
    return dict(sorted(models.items()))


def _roots() -> list[Path]:
    listed = os.environ.get("CDCD_MODELS", "")
    roots = [expanded(path) for path in listed.split(os.pathsep) if path]
    package = importlib.util.find_spec("cdcd_models")
    if package is not None and package.submodule_search_locations:
        roots += map(Path, package.submodule_search_locations)
    return roots


def _problem(name: str, models: list[str]) -> str:
    """Returns the line that says that there is no model of a name, and what to do."""
    train = f"train one with: cdcd train --out {shlex.quote(name)}"
    if not models:
        return (
            f"{name} does not exist; {train}; or, if it is a model that comes with cdcd, install "
            f"them: {INSTALL}"
        )
    pairs = [model for model in models if DIRECTION.fullmatch(model)]
    if (asked := DIRECTION.fullmatch(name)) and pairs:
        source, target = asked.groups()
        return f"no installed model translates {source} to {target}; installed: {', '.join(pairs)}"
    near = difflib.get_close_matches(name, models, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"installed: {', '.join(models)}"
    return f"there is no run and no installed model {name}; {hint} (or {train})"
