"""Help: a screen of what matters at once and without torch, everything by `--help-all`."""

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
from tiny import cdcd_main

from cdcd import presets
from cdcd.cli import options
from cdcd.cli.verbs import VERBS
from cdcd.config import Decoder
from cdcd.metrics import bleu
from cdcd.networks import capture
from cdcd.settings import Bounds

COMMANDS = [
    *([verb.name] for verb in VERBS),
    ["data", "prepare"],
    ["data", "verify"],
    ["bench", "train"],
    ["bench", "sample"],
]
WITH_SETTINGS = [
    ["train"],
    ["sample"],
    ["infill"],
    ["translate"],
    ["evaluate"],
    ["data", "prepare"],
]


def options_in(text):
    return set(re.findall(r"^  (?:-h, )?(--[a-z][a-z0-9.-]*)", text, flags=re.MULTILINE))


def test_help_imports_neither_torch_nor_numpy():
    """All commands in one process; the modules of the actions would load both."""
    code = f"""
import json, sys
from cdcd.cli import main
for command in {COMMANDS!r}:
    try:
        main([*command, "--help"])
    except SystemExit as stopped:
        assert not stopped.code, command
print(json.dumps([name for name in ("torch", "numpy", "rich", "sentencepiece") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


HEAVY = [
    *(
        "accelerate",
        "datasets",
        "fsspec",
        "gguf",
        "huggingface_hub",
        "matplotlib",
        "pandas",
        "pyarrow",
    ),
    *("sacrebleu", "scipy", "shtab", "tensorboard", "trackio", "transformers", "wandb"),
]
"""Packages that few commands need."""


def test_the_library_imports_what_it_needs_and_no_more():
    """`import cdcd` nothing, what loads a model nothing that it does without."""
    code = f"""
import json, sys
import cdcd
light = [name for name in ("torch", "numpy", "rich") if name in sys.modules]
import torch
heavy = {HEAVY} + ([] if torch.backends.cuda.is_built() else ["triton"])
before = set(sys.modules)
cdcd.load
print(json.dumps([light, [name for name in heavy if name in set(sys.modules) - before]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]


def test_completion_knows_verbs_options_and_choices(capsys):
    """Asked as bash asks; dots and dashes are parts of a word."""
    pytest.importorskip("shtab", reason="shtab writes the completion and is not installed")
    assert cdcd_main("completion", "bash") == 0
    script = capsys.readouterr().out
    asked = {
        "cdcd tra": "train translate",
        "cdcd data ": "prepare verify",
        "cdcd train --training.lear": "--training.learning-rate",
        "cdcd train --training.optimiser m": "muon",
        "cdcd sample --solver h": "heun",
    }
    for line in asked:
        words = " ".join(f"'{word}'" for word in line.split(" "))
        script += f"""
COMP_WORDS=({words}); COMP_CWORD={line.count(" ")}; COMPREPLY=(); _shtab_cdcd; echo "${{COMPREPLY[*]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert dict(zip(asked, done.stdout.splitlines(), strict=True)) == asked


@pytest.mark.parametrize("command", WITH_SETTINGS, ids=" ".join)
def test_the_short_help_is_a_part_of_the_whole(capsys, command):
    assert cdcd_main(*command, "--help") == 0
    short = capsys.readouterr().out
    assert f"cdcd {' '.join(command)} --help-all" in short
    assert cdcd_main(*command, "--help-all") == 0
    whole = capsys.readouterr().out
    assert 6 <= len(options_in(short)) < len(options_in(whole))
    assert options_in(short) <= options_in(whole)
    assert len(short.splitlines()) <= 80
    # The same words and bounds, though the short one reads the source.
    for option in options_in(short):
        assert described(short, option) == described(whole, option), option


def described(text, option):
    """Returns the help of an option without its line breaks."""
    match = re.search(
        rf"^  (?:-h, )?{option}\b(?! is one)(.*?)(?=^  -|^\S|\n\n|\Z)",
        text,
        re.DOTALL | re.MULTILINE,
    )
    assert match, option
    return " ".join(match[1].split())


def test_bounds_are_shown(capsys):
    assert cdcd_main("train", "--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--network.width INT Units of the residual stream (from 1 to 65,536)." in text
    assert "--training.average-decay FLOAT" in text
    assert "0: no average (from 0 to 1, without 1)." in text
    assert "--decoding.temperature FLOAT Divisor of the logits; 0: always the most likely" in text
    assert str(Bounds(0.5, 2, also=(0,))) == "from 0.5 to 2, or 0"


def test_names_that_help_knows_are_those_of_the_library():
    assert options.PRESETS == presets.PRESETS
    assert get_args(Decoder) == options.DECODERS
    assert options.COMPILE_MODES == capture.MODES
    assert options.UTILITIES == bleu.UTILITIES
