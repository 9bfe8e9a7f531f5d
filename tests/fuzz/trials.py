"""Trials of what happens to commands at random moments: `python tests/fuzz/trials.py [kills|interrupts|locks]`.

Commands are killed and repeated until they end, interrupted, or started several at once. The result of
those that go on must be that of a command that was left alone, byte for byte on a CPU.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from forks import end_of, fork_cdcd
from text_corpus import write_corpus
from tiny import cdcd_process, contents, metrics, tiny_options, train_tiny

from cdcd.data.prepare import encoding, preparation
from cdcd.files import read_json
from cdcd.training.checkpoint import RunDirectory

Content = dict[str, Any]
MOST_KILLS = 4
"""Kills of one command before it is left alone."""
FINISHED = "already holds a finished data set"
TRAINING = {"training.steps": 30, "training.checkpoint_every": 4, "training.validate_every": 10}
INTERRUPTED_SECONDS = 2
LONGEST_START = 6.0


@dataclass
class Tally:
    """The counts of one kind of trial, and what went wrong."""

    name: str
    trials: int = 0
    right: int = 0
    problems: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0

    def note(self, problem: str | None) -> None:
        """Counts a trial."""
        self.trials += 1
        self.right += problem is None
        if problem is not None:
            self.problems.append(problem)


@dataclass(frozen=True)
class Work:
    """A command that writes a folder and that is repeated until it succeeds, and what it must have written."""

    name: str
    command: Callable[[Path], list[object]]
    content: Callable[[Path], Content]
    is_sound: Callable[[Path], bool]
    """Returns whether nothing is lost or cut in a folder whose writer was killed."""


# Kills


def works(place: Path) -> list[Work]:
    """Returns the commands that are killed, for runs and a corpus in a folder."""
    train_tiny(place / "run")
    train_tiny(place / "judge", {"model": "autoregressive"})
    corpus = write_corpus(place)
    prepare = ["data", "prepare", "--source", corpus, "--tokenizer", "bytes", "--workers", 1]
    more = ["--shard-tokens", 1_500, "--valid-share", 0.1, "--out"]
    training = ["train", "--resume", "auto", *tiny_options(TRAINING), "--out"]
    evaluate = ["evaluate", place / "run", "--judge", place / "judge", "--num-samples", 8]
    return [
        Work("train", lambda out: [*training, out], _run_content, _is_sound_run),
        Work("prepare", lambda out: [*prepare, *more, out], contents, lambda out: True),
        Work("evaluate", lambda out: [*evaluate, "--num-steps", 4, "--out", out], _report, _is_sound_report),
    ]  # fmt: skip


def _run_content(run: Path) -> Content:
    """Returns the last checkpoint of a run, its other files, and its metrics without the clock."""
    last = RunDirectory(run).steps()[-1]
    files = contents(run)
    names = [name for name in files if name != "metrics.jsonl" and "step-" not in name]
    folder = RunDirectory(run).folder(last)
    return {n: files[n] for n in names} | contents(folder) | {"metrics": metrics(run), "last": last}


def _report(out: Path) -> Content:
    return contents(out)


def _is_sound_run(run: Path) -> bool:
    """Returns whether a run that has a configuration can be read."""
    return not (run / "config.json").exists() or bool(RunDirectory(run).steps())


def _is_sound_report(out: Path) -> bool:
    return not (out / "report.json").exists() or bool(read_json(out / "report.json"))


def kill_at_random(work: Work, number: int, seed: int, place: Path) -> Tally:
    """Kills a command so many times in all, and compares what it has written at its end."""
    chance, tally, log = random.Random(seed), Tally(f"kill -9 of {work.name}"), place / "log"
    # At the path of those that are killed: a run knows where it was made.
    out = place / "out"
    seconds = _seconds(lambda: end_of(fork_cdcd(*work.command(out), output=log)))
    expected = work.content(out)
    while tally.trials < number:
        shutil.rmtree(out, ignore_errors=True)
        planned = min(chance.randint(1, MOST_KILLS), number - tally.trials)
        problems = [_kill_once(work, out, chance.uniform(0, seconds), log) for _ in range(planned)]
        log.write_text("")
        ended = end_of(fork_cdcd(*work.command(out), output=log)) == [0]
        if not ended and FINISHED not in log.read_text():
            problems[-1] = f"did not go on: {log.read_text()[-300:]}"
        elif differing := _differing(work.content(out), expected):
            problems[-1] = f"differs in {differing}"
        for problem in problems:
            tally.note(problem)
    return tally


def _kill_once(work: Work, out: Path, delay: float, log: Path) -> str | None:
    process = fork_cdcd(*work.command(out), output=log)
    time.sleep(delay)
    process.kill()
    process.join()
    return None if work.is_sound(out) else f"unsound after {delay:.3f} s"


def _differing(content: Content, expected: Content) -> list[str]:
    names = {**content, **expected}
    return sorted(name for name in names if content.get(name, 0) != expected.get(name, 0))


def _seconds(action: Callable[[], object]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


# Interrupts


def interrupt_at_random(number: int, seed: int, place: Path) -> Tally:
    """Interrupts processes that have just been started, or are at work, from 0.05 s on."""
    chance, tally = random.Random(seed), Tally("SIGINT")
    if not (place / "run").exists():
        train_tiny(place / "run")
    text = place / "long.txt"
    text.write_text("\n".join(f"{'some words and ' * 9}{n * 7919}" for n in range(100_000)))
    commands = [
        ["sample", place / "run", "--num-samples", 200_000],
        ["train", "--out", place / "new", *tiny_options({"training.steps": 10**6})],
        ["data", "prepare", "--source", text, "--out", place / "set", "--vocab-size", 4_000],
    ]
    for i in range(number):
        for name in ("new", "set"):
            shutil.rmtree(place / name, ignore_errors=True)
        _interrupt_once(commands[i % 3], chance.uniform(0.05, LONGEST_START), tally)
    return tally


def _interrupt_once(command: list[object], delay: float, tally: Tally) -> None:
    process = cdcd_process(*command)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = process.communicate()
    seconds = time.monotonic() - start
    tally.slowest_seconds = max(tally.slowest_seconds, seconds)
    lines = [line for line in errors.strip().splitlines() if line]
    wrong = []
    if process.returncode != 130:
        wrong.append(f"exit code {process.returncode}")
    if len(lines) != 1:
        wrong.append(f"{len(lines)} lines: {errors[-300:]}")
    if seconds > INTERRUPTED_SECONDS:
        wrong.append(f"{seconds:.1f} s")
    name = " ".join(map(str, command[:2]))
    tally.note(f"{name} after {delay:.2f} s: {', '.join(wrong)}" if wrong else None)


# Several processes at once


def start_at_once(processes: int, number: int, place: Path) -> Tally:
    """Resumes a run in several processes at once, of which one may write."""
    tally = Tally(f"{processes} processes on one run")
    if not (place / "run").exists():
        train_tiny(place / "run")
    resume = ["train", "--resume", "--training.steps", 60, "--out"]
    alone = shutil.copytree(place / "run", place / f"alone-of-{processes}")
    assert end_of(fork_cdcd(*resume, alone, output=place / "log")) == [0]
    expected = _run_content(alone)
    for _ in range(number):
        run = place / "shared"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(place / "run", run)
        outputs = [place / f"log-{i}" for i in range(processes)]
        codes = end_of(*[fork_cdcd(*resume, run, output=output) for output in outputs])
        differing = _differing(_run_content(run), expected)
        right = sorted(map(str, codes)) == ["0"] + ["2"] * (processes - 1) and not differing
        tally.note(None if right else f"codes {codes}, differs in {differing}")
    return tally


# The command


def run_trials(
    kinds: Iterable[str], kills: int, interrupts: int, races: int, seed: int
) -> list[Tally]:
    """Runs trials in a new folder."""
    encoding.CHUNK_CHARACTERS, preparation.SAVE_EVERY = 300, 1_000
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory(prefix="cdcd-trials-") as folder:
        place = Path(folder)
        if "kills" in kinds:
            shares = [kills // 3 + (i < kills % 3) for i in range(3)]
            for work, number in zip(works(place), shares, strict=True):
                (place / work.name).mkdir()
                tallies.append(kill_at_random(work, number, seed, place / work.name))
        if "interrupts" in kinds:
            tallies.append(interrupt_at_random(interrupts, seed, place))
        if "locks" in kinds:
            tallies += [start_at_once(processes, races, place) for processes in (2, 8)]
    return tallies


def main() -> int:
    """Runs trials as a command, and prints a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("kills", "interrupts", "locks")
    parser.add_argument("kinds", nargs="*", choices=[*kinds, []], default=kinds)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--interrupts", type=int, default=100)
    parser.add_argument("--races", type=int, default=20, help="repeats with 2 and with 8 processes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tallies = run_trials(**vars(options))
    for tally in tallies:
        slowest = f", slowest {tally.slowest_seconds:.1f} s" if tally.slowest_seconds else ""
        print(f"{tally.name:28} {tally.right:4} of {tally.trials:4} right{slowest}")
        for problem in tally.problems[:10]:
            print(f"    {problem}")
    print(json.dumps({tally.name: asdict(tally) for tally in tallies}))
    return int(any(tally.problems for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
