"""Trains the variants of a study side by side, measures them and files one JSON.

    python scripts/studies.py DATA OUT results/studies.json --judge JUDGE --workers 4
    python scripts/studies.py DATA OUT results/studies.json --only base dropout --seeds 0 1 2

DATA is a prepared data set, JUDGE an autoregressive run on its judge's share (`scripts/enwiki.sh DATA OUT
prepare judge` makes both). The variants are in `scripts/studies.toml`. Runs are in OUT; one that is done is
not done again, one that was stopped goes on. The JSON is written anew whenever a run is done: losses at
fixed noise levels and, with a judge, the points of the frontier. A table of it comes last.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """A variant with a seed."""

    variant: str
    seed: int
    settings: Mapping[str, Any]
    out: Path

    @property
    def options(self) -> list[str]:
        """The settings as options of `cdcd train`."""
        settings = {**self.settings, "training.seed": self.seed}
        texts = {name: str(value).lower() for name, value in settings.items()}
        return [w for n, text in texts.items() for w in (f"--{n.replace('_', '-')}", text)]


def list_jobs(study: Path, out: Path, only: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Lists the runs of a study, seed by seed, so that all variants have the first one early."""
    described = tomllib.loads(study.read_text(encoding="utf-8"))
    variants = described["variants"]
    if unknown := {*only} - {*variants}:
        raise SystemExit(
            f"unknown variants {', '.join(sorted(unknown))}; known: {', '.join(variants)}"
        )
    return [
        Job(name, seed, described["common"] | variants[name], out / f"{name}-seed-{seed}")
        for seed in seeds
        for name in only or variants
    ]


def run(arguments: Sequence[object], log: Path) -> None:
    """Runs a command of cdcd, whose output goes to a file."""
    with log.open("a") as output:
        subprocess.run(
            [sys.executable, "-m", "cdcd", *map(str, arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            check=True,
        )


def perform(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Trains and measures one variant with one seed."""
    started, log = time.time(), job.out.with_suffix(".log")
    train = ["train", "--preset", "small", "--data", options.data, "--resume", "auto"]
    run([*train, "--out", job.out, *job.options, *options.training_options.split()], log)
    report, count = job.out / "evaluation", options.num_samples
    if options.judge and not (report / "report.json").exists():
        evaluate = [
            "evaluate",
            job.out,
            "--judge",
            options.judge,
            "--split",
            "test",
            "--out",
            report,
        ]
        evaluate += ["--num-samples", count, "--batch-size", count, "--sweep", options.sweep]
        evaluate += ["--mauve", "false", "--matches", "false"]
        run([*evaluate, *options.evaluation_options.split()], log)
    row = {"variant": job.variant, "seed": job.seed, "settings": dict(job.settings)}
    return row | measured(job.out) | {"wall_seconds": round(time.time() - started, 1)}


def measured(out: Path) -> dict[str, Any]:
    """Returns the last validation of a run, its speed, and the points of its report, if it has one."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "valid_loss" in line][-1]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    row = {"step": last["step"], "valid_loss": last["valid_loss"]}
    row |= {
        "levels": last["validation"]["levels"],
        "tokens_per_second": sorted(speeds)[len(speeds) // 2],
    }
    row["curve"] = [[line["step"], line["valid_loss"]] for line in lines if "valid_loss" in line]
    report = out / "evaluation" / "report.json"
    if report.exists():
        read = json.loads(report.read_text())
        row["points"] = [
            {name: each[name] for name in ("system", "settings", "mean", "measured")}
            for each in read["rows"]
        ]
        row["frontiers"] = read["frontiers"]
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each variant, the best loss first."""
    losses: dict[str, list[float]] = {}
    for row in rows:
        losses.setdefault(row["variant"], []).append(row["valid_loss"])
    lines = []
    for name, values in sorted(losses.items(), key=lambda item: fmean(item[1])):
        spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        lines.append(f"{fmean(values):.4f}{spread}  {name}  ({len(values)} seeds)")
    return lines


def write(results: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows so far, with the machine and the versions."""
    import torch

    from cdcd import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    environment = {"cdcd": __version__, "torch": torch.__version__, "device": device}
    results.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(rows, key=lambda row: (row["variant"], row["seed"]))
    results.write_text(json.dumps({"environment": environment, "rows": ordered}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", help="prepared data set, or any other corpus of cdcd train")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("results", type=Path, help="JSON file")
    parser.add_argument("--study", type=Path, default=HERE / "studies.toml")
    parser.add_argument("--judge", help="run, or hf:NAME; without one only losses are measured")
    parser.add_argument("--only", nargs="+", default=[], metavar="VARIANT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--num-samples", type=int, default=1024)
    parser.add_argument("--sweep", default="score-temperature=1.0,0.95,0.9,0.85")
    parser.add_argument("--training-options", default="", help="more options of cdcd train")
    parser.add_argument("--evaluation-options", default="", help="more options of cdcd evaluate")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = list_jobs(options.study, options.out, options.only, options.seeds)
    rows, failed = [], []
    with ThreadPoolExecutor(options.workers) as pool:
        running = {pool.submit(perform, job, options): job for job in jobs}
        for done in as_completed(running):
            name = running[done].out.name
            try:
                rows.append(done.result())
            except subprocess.CalledProcessError as error:
                failed.append(f"{name} failed with exit code {error.returncode}: see its log")
                print(failed[-1], flush=True)
                continue
            print(f"{len(rows)} of {len(jobs)}: {name}", flush=True)
            write(options.results, rows)
    print("\n".join(summary(rows)))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
