"""The queue for lent GPUs: it runs on between calls, and what came back can be carried to another machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the script needs setsid and GNU's split"
)
SCRIPT = ROOT / "scripts" / "lent_gpu.sh"
JOBS = """
# The first two run side by side; the second needs what was carried.
until [ -e $RESULTS/release ]; do sleep 0.05; done; echo late > $RESULTS/first.txt
cp $RESULTS/before.txt second.txt; mkdir $RESULTS/data; echo corpus > $RESULTS/data/corpus.txt
ls tree 2>/dev/null || exit 3
cp second.txt $RESULTS/'the copy.txt'
"""


@pytest.fixture
def call(tmp_path):
    """Calls the script from a small working tree; returns what it prints and the folder that comes back."""
    tree, carried = tmp_path / "tree", tmp_path / "carried"
    for folder in (tree, carried):
        folder.mkdir()
    (tree / "jobs.txt").write_text(JOBS)
    (carried / "before.txt").write_text("earlier\n")
    environment = os.environ | {"CARRIED": str(carried), "PYTHON": sys.executable, "MPS": "0"}

    def call(seconds: int) -> tuple[str, Path]:
        out = tmp_path / f"out-{seconds}"
        command = ["bash", str(SCRIPT), "jobs.txt", str(tmp_path / "work"), str(seconds), str(out)]
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment | {"WORKERS": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        subprocess.run(f"cat {out}/results.tar.xz.* | tar xJ -C {out}", shell=True, check=True)
        return done.stdout, out

    return call


def test_a_queue_runs_on_between_calls(call, tmp_path):
    printed, out = call(2)
    assert "the queue is still running" in printed
    assert (out / "before.txt").is_file()
    assert not (out / "first.txt").exists()
    (tmp_path / "work" / "results" / "release").touch()
    printed, out = call(60)
    assert "the queue has ended" in printed
    # Each started once, in order, from a copy of the tree; one that fails stops none.
    assert (out / "first.txt").read_text() == "late\n"
    assert (out / "the copy.txt").read_text() == "earlier\n"
    assert not (out / "data").exists()
    ended = sorted(line.split(" ", 1)[1] for line in (out / "logs" / "queue.log").open())
    assert [line.split(":")[0] for line in ended] == [
        f"{number} ended with code {code}" for number, code in ((1, 0), (2, 0), (3, 3), (4, 0))
    ]
