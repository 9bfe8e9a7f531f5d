"""The scripts' options are those of today's commands."""

import re

import pytest
from paths import ROOT

from cdcd.cli.verbs import VERBS, build_parser

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
OTHERS = {"--nproc-per-node", "--tokens", "--query-gpu", "--format"}
"""Options of other programs."""


@pytest.fixture(scope="module")
def known():
    """Every option of every verb."""
    options = set()
    for verb in VERBS:
        parsers = [build_parser([verb.name])]
        while parsers:
            parser = parsers.pop()
            options |= set(parser._option_string_actions)
            for action in parser._actions:
                if isinstance(action.choices, dict):
                    parsers += action.choices.values()
    return options


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_options_of_a_script_are_known(script, known):
    lines = [line for line in script.read_text("utf-8").splitlines() if line.lstrip()[:1] != "#"]
    used = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", "\n".join(lines)))
    assert used
    assert not {each.replace("_", "-") for each in used} - known - OTHERS
