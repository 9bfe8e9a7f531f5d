"""The scripts' options are those of today's commands."""

import json
import re
import subprocess
import sys

import pytest
from paths import ROOT

from cdcd.cli.verbs import VERBS, build_parser

QUEUES = sorted((ROOT / "scripts" / "queues").glob("*.txt"))
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), *QUEUES]
OTHERS = {"--nproc-per-node", "--tokens", "--query-gpu", "--format", "--restore", "--exclude"}
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
    assert used or script in QUEUES
    assert not {each.replace("_", "-") for each in used} - known - OTHERS


def test_filed_rows_become_a_folder_again(tmp_path):
    script = ROOT / "scripts" / "file_reproduction.py"
    row = {"row": "table1/base/base", "seed": 0, "nll": 1.23456, "examples": ["«a»b"]}
    record = {
        "config": {},
        "validation": {"valid_loss": 2.5, "losses": [1.5]},
        "warp": {"l": [0.5]},
    }
    record["environment"] = {"command": "/tmp/a/work.py job.json", "gpu": None}
    out, filed, again = (tmp_path / name for name in ("out", "filed", "again"))
    for path, content in (
        ("protocol.json", {"scale": "tiny"}),
        ("rows/table1.base.base.0.json", row),
        ("runs/base.0/record.json", record),
        ("runs/prefix.0/record.json", record),
    ):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(json.dumps(content))
    subprocess.run([sys.executable, script, out, filed], check=True)
    subprocess.run([sys.executable, script, "--restore", filed, again], check=True)
    kept = {str(p.relative_to(again)): json.loads(p.read_text()) for p in again.rglob("*.json")}
    assert kept == {"protocol.json": {"scale": "tiny"}, "rows/table1.base.base.0.json": row}
    subprocess.run([sys.executable, script, again, filed], check=True)
    trainings = json.loads((filed / "trainings.json").read_text())
    assert trainings["base.0"]["environment"]["command"] == "work.py job.json"
    assert [name for name, each in trainings.items() if "warp" in each] == ["base.0"]
    assert len(trainings) == 2
