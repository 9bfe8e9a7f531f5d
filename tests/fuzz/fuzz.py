"""The fuzzer of the command line: `python tests/fuzz/fuzz.py --cases 20000 --seed 1`.

Half of the cases are command lines with odd values, half are damaged runs and data sets. Every command
must end in time with exit code 0, or with exit code 2, one line and nothing left behind.
"""

import argparse
import collections
import faulthandler
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

for folder in ("helpers", "fuzz"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from command_lines import command_lines
from damages import DamagedCase, damaged_cases
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from outcomes import ALLOWED_BYTES, Opened, run_command
from place import RUNS, Place

from cdcd.training import validation


@dataclass(frozen=True)
class Problem:
    """A case, what is wrong with it and what it wrote to stderr."""

    case: str
    wrong: str
    errors: str

    @property
    def kind(self) -> str:
        """The problem without its numbers and names, equal for cases of one cause."""
        return f"{self.wrong.split(':')[0]} {re.sub(r'/.*|[0-9]+', '', self.errors)[:200]}"

    def __str__(self) -> str:
        return f"{self.wrong}\n  {self.case[:1_500]!r}\n  {self.errors[-1_500:]!r}"


HOSTILE_BYTES = 250_000_000
"""Memory for a hostile run, whose weights take less than one of these megabytes."""
OUTSIDE = ("/outside-", "/etc/hostname", "/dev/zero")
"""Parts of the paths that links lead to, out of runs."""
OPENED = Opened()


class Fuzzer:
    """A folder to work in, and the problems and exit codes of the cases so far."""

    def __init__(self, folder: Path, allowed_bytes: int = ALLOWED_BYTES) -> None:
        self.place, self.allowed_bytes = Place(folder), allowed_bytes
        self.last = folder / "last-case.txt"
        self.problems: list[Problem] = []
        self.codes: collections.Counter[int | str] = collections.Counter()

    def run(self, number: int, seed: int | None = None, only: str = "") -> None:
        """Runs so many cases, with a seed or always the same ones."""
        damaged = damaged_cases(self.place.folder, only)
        both = st.one_of(command_lines(), damaged)
        cases = {"": both, "lines": command_lines()}.get(only, damaged)

        @settings(
            max_examples=number,
            derandomize=seed is None,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def run_all(case: list[str] | DamagedCase) -> None:
            self.check(case)

        (run_all if seed is None else seeded(seed)(run_all))()

    def check(self, case: list[str] | DamagedCase) -> None:
        """Runs one case and notes what is wrong with it."""
        with _inside(self.place.folder):
            if isinstance(case, DamagedCase):
                case.prepare(self.place.folder)
            words = case.command if isinstance(case, DamagedCase) else case
            name = str(case) if isinstance(case, DamagedCase) else repr(case)
            self.last.write_text(name, encoding="utf-8", errors="backslashreplace")
            with OPENED.noted() as opened:
                outcome, problem = run_command(list(words), self.place.folder, self.allowed_bytes)
            if isinstance(case, DamagedCase) and case.source in RUNS:
                outside = [path for path in opened if any(part in path for part in OUTSIDE)]
                problem = f"opened {outside}" if outside else problem
        self.codes[outcome.code] += 1
        if problem:
            self.problems.append(Problem(name, problem, outcome.errors))
        self.place.put_back()


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Works in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> int:
    """Runs the fuzzer as a command and prints every problem as it is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="lines, runs or one folder's name")
    options = parser.parse_args()
    validation.NUM_LEVELS = 2
    faulthandler.register(signal.SIGUSR1)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="cdcd-fuzz-") as folder:
        tempfile.tempdir = folder
        fuzzer = Fuzzer(Path(folder), HOSTILE_BYTES if options.only == "runs" else ALLOWED_BYTES)
        fuzzer.run(options.cases, options.seed, options.only)
    kinds = collections.Counter(problem.kind for problem in fuzzer.problems)
    for problem in {problem.kind: problem for problem in fuzzer.problems}.values():
        print(f"{kinds[problem.kind]} × {problem}")
    codes = ", ".join(f"{count:,} with {code}" for code, count in fuzzer.codes.most_common())
    seconds = time.time() - start
    print(f"{sum(fuzzer.codes.values()):,} cases in {seconds:.0f} s ended: {codes}")
    print(f"{len(fuzzer.problems):,} problems")
    return min(len(fuzzer.problems), 1)


if __name__ == "__main__":
    sys.exit(main())
