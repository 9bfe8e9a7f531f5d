"""Recipes: the command, and the lines of Python, that give the same text again."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcd.inference.changes import as_json
from cdcd.serving.generation import Prompt
from cdcd.serving.translation import Sentence


@dataclass(frozen=True)
class Source:
    """A run, and the device that its model runs on: others round otherwise."""

    run: str
    device: str = "auto"

    @property
    def options(self) -> list[str]:
        """The options of a command for this device."""
        return [] if self.device == "auto" else ["--device", self.device]

    @property
    def arguments(self) -> str:
        """The arguments of `cdcd.load`."""
        return repr(self.run) if self.device == "auto" else f"{self.run!r}, device={self.device!r}"


def text_command(source: Source, prompt: Prompt) -> str:
    """Returns the command of a sample."""
    changes = (json.dumps(as_json(each), ensure_ascii=False) for each in prompt.changes)
    options = ["--seed", str(prompt.seed), *_options(prompt.settings)]
    options += [word for each in changes for word in ("--change", each)]
    options += source.options
    # A text that begins with a dash would be taken for an option.
    given = [source.run, prompt.text]
    is_odd = any(word.startswith("-") for word in given)
    words = [*options, "--", *given] if is_odd else [*given, *options]
    return shlex.join(["cdcd", "infill", *words])


def _options(settings: Mapping[str, Any]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", _value(value)) for name, value in settings.items())
    return [word for pair in pairs for word in pair]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def translation_command(source: Source, asked: Sentence) -> str:
    """Returns the command of a translation."""
    options = ["--num-samples", str(asked.num_samples), "--seed", str(asked.seed)]
    options += ["--utility", asked.utility, *_options(asked.settings), *source.options]
    words = ["cdcd", "translate", source.run, "--source", "-", *options]
    return f"printf '%s\\n' {shlex.quote(asked.text)} | {shlex.join(words)}"


def text_python(source: Source, prompt: Prompt) -> str:
    """Returns the lines of Python of a sample."""
    lines = ["import cdcd"]
    arguments = [repr(prompt.text), f"seed={prompt.seed}", *_keywords(prompt.settings)]
    if prompt.changes:
        lines.append("from cdcd.inference.changes import Change")
        changes = ", ".join(_call("Change", as_json(each)) for each in prompt.changes)
        arguments.append(f"changes=[{changes}]")
    lines += [
        "",
        f"model = cdcd.load({source.arguments})",
        f"print(model.infill({', '.join(arguments)}))",
    ]
    return "\n".join(lines)


def _call(name: str, values: dict[str, Any]) -> str:
    if "tokens" in values:
        values = values | {"tokens": {int(i): word for i, word in values["tokens"].items()}}
    return f"{name}({', '.join(_keywords(values))})"


def _keywords(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def translation_python(source: Source, asked: Sentence) -> str:
    """Returns the lines of Python of a translation."""
    arguments = [repr([asked.text]), f"num_samples={asked.num_samples}", f"seed={asked.seed}"]
    arguments += [f"utility={asked.utility!r}", *_keywords(asked.settings)]
    call = f"translator.translate({', '.join(arguments)})"
    return f"import cdcd\n\ntranslator = cdcd.load_translator({source.arguments})\nprint({call}[0])"
