"""A replay: every step of a sample in one HTML file, which needs no server and loads nothing.

It is the viewer of the playground, its modules joined in the order in which they need each other.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from cdcd.inference.snapshots import AnyStep
from cdcd.inference.text_model import Generated, TextModel
from cdcd.serving.generation import Prompt, Stream, words_in
from cdcd.serving.recipes import Source, text_command

MODULES = ("dom.js", "tokens.js", "chart.js", "viewer.js", "replay.js")
"""Modules of the viewer; each needs earlier ones alone."""
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {script_hash}; style-src {style_hash}; base-uri 'none'; form-action 'none'">
<title>A sample, step by step</title>
<style>{style}</style>
<body class="replay">
<main id="replay"></main>
<script type="application/json" id="recording">{recording}</script>
<script>{script}</script>
</body>
</html>
"""
IMPORT = re.compile(r"^import .*\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=function|const|class|async)", re.MULTILINE)


def static(name: str) -> str:
    """Returns a file of the page."""
    return files("cdcd.serving").joinpath("static", name).read_text(encoding="utf-8")


class Recorder:
    """A sampling callback that keeps every step."""

    def __init__(self, model: TextModel, source: Source, prompt: Prompt) -> None:
        self.model, self.known = model, set[int]()
        self.recording: dict[str, Any] = {"frames": [], "words": {}}
        self.stream = Stream(model, prompt, self._note)
        self.recording["command"] = text_command(source, prompt)

    def _note(self, kind: str, data: Any) -> None:
        if kind == "start":
            self.recording["start"] = data
            return
        self.recording["words"] |= words_in(self.model, data, self.known)
        self.recording["frames"].append(data)

    def __call__(self, info: AnyStep) -> None:
        self.stream(info)

    def page(self, generated: Generated) -> str:
        """Returns the page of the sample at its end."""
        return replay_page(self.recording | {"end": self.stream.end(generated)})


def replay_of(model: TextModel, source: Source, prompt: Prompt, check: Callable[..., None]) -> str:
    """Generates a sample and returns its replay; `check` is called at every step."""
    recorder = Recorder(model, source, prompt)

    def callback(info: AnyStep) -> None:
        check()
        recorder(info)

    options = {"seed": prompt.seed, "changes": prompt.changes, "callback": callback}
    [generated] = model.generate(recorder.stream.canvas, **options, **prompt.settings)
    return recorder.page(generated)


def replay_page(recording: Mapping[str, Any]) -> str:
    """Returns the page that shows a recording."""
    script = joined(static(name) for name in MODULES)
    style = static("style.css")
    # Nothing in the data can end the element that holds it.
    data = json.dumps(recording, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return PAGE.format(
        script=script,
        style=style,
        recording=data,
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def joined(modules: Any) -> str:
    """Returns modules as one script: what they import from each other stands before it."""
    text = "\n".join(EXPORT.sub("", IMPORT.sub("", module)) for module in modules)
    return f'(() => {{\n"use strict";\n{text}\n}})();\n'


def _hash(text: str) -> str:
    """Returns the hash by which a content security policy knows a script or a style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
