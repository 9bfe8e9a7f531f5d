"""Mutation check: each deliberate fault must make one of its tests fail.

    python tests/mutants/mutation_check.py                   all faults
    python tests/mutants/mutation_check.py heun sign         those whose names contain one of the words
    python tests/mutants/mutation_check.py --tenth 3         every tenth, from the third
    python tests/mutants/mutation_check.py --tenth commit    a tenth chosen by the commit

The repository is copied, one fault is put in, and the tests that should notice it run on the copy.
The exit code is 1 if a fault goes unnoticed. `mutant.py` explains how a fault is written.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from mutant import Mutant, load_mutants

ROOT = Path(__file__).resolve().parents[2]
COPIED = ["src", "tests", "examples", "pyproject.toml"]
# Imported once, before the process of each fault is forked.
PRELOADED = ["torch", "numpy", "pytest", "beartype", "hypothesis", "jaxtyping", "safetensors.torch"]


@dataclass(frozen=True)
class Outcome:
    """Whether the tests of a fault fail, and the seconds that they take."""

    name: str
    is_noticed: bool
    seconds: float


def run_tests_on(mutant: Mutant) -> Outcome:
    """Runs the tests of a fault on a faulty copy; the process is of no further use."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy_repository(copy)
        path, text = mutant.faulty(copy / "src" / "cdcd")
        path.write_bytes(text)
        code, log = _run_pytest(copy, mutant.test_arguments(copy / "tests"))
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{mutant.name}: pytest could not run {mutant.tests}\n{log}")
    is_noticed = code == pytest.ExitCode.TESTS_FAILED
    return Outcome(mutant.name, is_noticed, time.perf_counter() - start)


def _copy_repository(copy: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name)
        elif source.exists():
            shutil.copy2(source, copy / name)


def _run_pytest(copy: Path, arguments: Sequence[str]) -> tuple[int, str]:
    os.environ.update(PYTHONPATH=str(copy / "src"), OMP_NUM_THREADS="1")
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    log = copy / "log.txt"
    with (
        log.open("w", encoding="utf-8") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        code = pytest.main(["-x", "-p", "no:cacheprovider", *arguments])
    os.chdir(ROOT)
    return code, log.read_text("utf-8")


def run_all(mutants: Sequence[Mutant]) -> list[Outcome]:
    """Runs the tests of every fault, each in a process of its own, over all cores."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
        return list(pool.map(run_tests_on, mutants))


def tenth_of_commit() -> int:
    """Returns a number from 0 to 9 by the commit's hash or, outside git, by the source's."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        key = subprocess.run(command, check=True, capture_output=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        key = b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py")))
    return hashlib.sha256(key).digest()[0] % 10


def main() -> int:
    """Runs the chosen faults and reports which of them go unnoticed."""
    parser = argparse.ArgumentParser(description="Checks that deliberate faults make tests fail.")
    parser.add_argument("words", nargs="*", help="run the faults whose names contain one of these")
    parser.add_argument("--tenth", help="run every tenth fault, from this one; or 'commit'")
    options = parser.parse_args()
    chosen = [
        m for m in load_mutants() if not options.words or any(w in m.name for w in options.words)
    ]
    if options.tenth:
        first = tenth_of_commit() if options.tenth == "commit" else int(options.tenth)
        chosen = chosen[first::10]
    outcomes = run_all(chosen)
    for outcome in outcomes:
        verdict = "noticed" if outcome.is_noticed else "UNNOTICED"
        print(f"{verdict:9} {outcome.seconds:5.1f} s  {outcome.name}")
    num_noticed = sum(outcome.is_noticed for outcome in outcomes)
    print(f"{num_noticed} of {len(outcomes)} faults noticed")
    return 0 if num_noticed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
