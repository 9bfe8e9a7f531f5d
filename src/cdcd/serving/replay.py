"""A replay: every step of a sample in one HTML file, which needs no server and loads nothing.

It is the viewer of the playground, its modules joined in the order in which they need each other.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from cdcd.inference.text_model import TextModel
from cdcd.serving.generation import Emit, Prompt, generate, words_in
from cdcd.serving.recipes import text_command, text_python

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


def record(model: TextModel, run: str, prompt: Prompt, emit: Emit) -> dict[str, Any]:
    """Generates a sample and returns all of its steps; `emit` is told of each."""
    recording: dict[str, Any] = {"start": {}, "frames": [], "words": {}}
    known: set[int] = set()

    def note(kind: str, data: Any) -> None:
        if kind == "start":
            recording["start"] = data
        else:
            recording["words"] |= words_in(model, data, known)
            recording["frames"].append(data)
        emit("progress", {"share": len(recording["frames"]) / max(1, recording["start"]["steps"])})

    recording["end"] = generate(model, prompt, note)
    recording["command"] = text_command(run, prompt)
    recording["python"] = text_python(run, prompt)
    return recording


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
