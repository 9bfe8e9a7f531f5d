"""Sweeps over settings: their rows and labels, their progress, and the rows that are finished."""

import hashlib
import itertools
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from cdcd.files import read_json, write_json

Setting = dict[str, Any]


def sweep_settings(sweeps: Sequence[str]) -> list[Setting]:
    """Returns every combination of `name=value,value` sweeps; without one, the setting of no changes."""
    names, values = [], []
    for text in sweeps:
        name, _, listed = text.partition("=")
        names.append(name.strip().lstrip("-").replace("-", "_"))
        values.append([value.strip() for value in listed.split(",")])
        if not names[-1] or not all(values[-1]):
            raise ValueError(f"a sweep is written name=value,value, not {text!r}")
        # Samples that are drawn twice would look like certain ones.
        if len(set(values[-1])) < len(values[-1]) or names[-1] in names[:-1]:
            raise ValueError(f"the sweep {text!r} repeats a value or a name; give each once")
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def label_of(system: str, settings: Setting) -> str:
    """Returns the name of a row."""
    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"{system} ({text})" if text else system


def tracked(
    jobs: Sequence[Any], console: Console, description: str
) -> Iterator[tuple[Any, Callable[[float], None]]]:
    """Yields jobs, each with a function that shows the finished share of it, under a bar of progress."""
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=len(jobs))
        for number, job in enumerate(jobs):
            yield job, lambda share, number=number: progress.update(task, completed=number + share)
            progress.update(task, completed=number + 1)


def finished_row(
    folder: Path, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """Returns the row that a folder keeps under a key, else computes and keeps it; and whether it was there.

    So an evaluation that was stopped goes on. The key holds all that the row depends on: a row is used
    again if and only if it would be computed again.
    """
    path = folder / f"{hashed(key)}.json"
    was_there = path.is_file()
    if not was_there:
        row = compute()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "row": row})
    return read_json(path)["row"], was_there


def hashed(content: Any) -> str:
    """Returns a short hash of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def hardware(device: torch.device) -> str:
    """Returns the name of a processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"
