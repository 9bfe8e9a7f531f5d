"""Other versions of Python that are on the machine: the source is theirs too, and the command line answers."""

import os
import shutil
import subprocess

import pytest
from paths import ROOT


@pytest.fixture(params=["3.11", "3.12", "3.13"])
def interpreter(request):
    """An interpreter of a supported version; without it the test is skipped."""
    name = f"python{request.param}"
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no {name} on this machine")
    return found


def test_the_source_compiles_and_the_command_line_answers(interpreter, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONPYCACHEPREFIX": str(tmp_path),
        "PYTHONWARNINGS": "error",
    }
    compiled = subprocess.run(
        [interpreter, "-m", "compileall", "-q", "-f", str(ROOT / "src" / "cdcd")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    answered = subprocess.run(
        [interpreter, "-m", "cdcd", "train", "--help"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert answered.returncode == 0, answered.stderr
    assert "--preset" in answered.stdout
