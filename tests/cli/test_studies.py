"""The study of recipes: its variants are configurations, and its script trains, resumes and files them."""

import json
import subprocess
import sys
import tomllib

import pytest
from paths import ROOT

from cdcd.cli.effects import effects
from cdcd.presets import preset
from cdcd.settings import override, refuse_without_effect

STUDY = tomllib.loads((ROOT / "scripts" / "studies.toml").read_text(encoding="utf-8"))
TINY = """
[common]
"data.num_documents" = 200
"data.length" = 24
"embedding.dim" = 8
"network.width" = 32
"network.num_blocks" = 1
"network.num_heads" = 2
"training.steps" = 2
"training.batch_size" = 8
"training.warmup_steps" = 0
"training.valid_sequences" = 4
"training.log_every" = 1
[variants.base]
[variants.gates]
"network.zero_gates" = true
"""


@pytest.mark.parametrize("name", STUDY["variants"])
def test_a_variant_is_a_configuration_of_its_own(name):
    changes = STUDY["common"] | STUDY["variants"][name]
    config = override(preset("small"), changes | {"data.source": "prepared"})
    refuse_without_effect(changes, effects(config))
    base = override(preset("small"), STUDY["common"])
    assert (override(base, STUDY["variants"][name]) == base) == (name == "base")


def test_a_study_is_trained_filed_and_not_trained_again(tmp_path):
    (tmp_path / "study.toml").write_text(TINY)
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        str(ROOT / "scripts" / "studies.py"),
        "tales",
        str(tmp_path / "runs"),
    ]
    command += [str(results), "--study", str(tmp_path / "study.toml"), "--workers", "2"]
    command += ["--seeds", "0", "1", "--only", "gates"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "gates  (2 seeds)" in first.stdout
    rows = json.loads(results.read_text())["rows"]
    assert [(row["variant"], row["seed"], row["step"]) for row in rows] == [
        ("gates", 0, 2),
        ("gates", 1, 2),
    ]
    assert len(rows[0]["levels"]) == 12
    assert rows[0]["valid_loss"] != rows[1]["valid_loss"]
    written = [path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("weights.safetensors")]
    subprocess.run(command, capture_output=True, check=True)
    again = [path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("weights.safetensors")]
    assert again == written
    wrong = subprocess.run([*command[:-1], "dropuot"], capture_output=True, text=True, check=False)
    assert wrong.returncode
    assert wrong.stderr.strip() == "unknown variants dropuot; known: base, gates"
