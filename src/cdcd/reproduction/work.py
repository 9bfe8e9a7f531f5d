"""The work of a plan: jobs one after another, or several processes side by side on one device.

    python -m cdcd.reproduction.work FILE

does the job that a file describes; the runner starts it so for each of several workers.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cdcd.benchmarks.measure import environment
from cdcd.config import read_config
from cdcd.evaluation.held_out import described
from cdcd.files import read_json, write_json
from cdcd.inference.diffusion_text import DiffusionTextModel
from cdcd.inference.load import load
from cdcd.reproduction.plan import JUDGE, Job, Plan
from cdcd.reproduction.rows import ROWS
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

POLL_SECONDS = 1.0


def perform(plan: Plan, *, workers: int, console: Console) -> list[str]:
    """Does all jobs of a plan and returns the names of those that failed."""
    failed: dict[str, str] = {}
    for job, error in _in_order(plan) if workers == 1 else _side_by_side(plan, workers):
        if error is None:
            console.print(f"{time.strftime('%H:%M:%S')} {job.name} done", highlight=False)
            continue
        console.print(f"{time.strftime('%H:%M:%S')} {job.name} failed: {error}", highlight=False)
        failed[job.name] = error
    return list(failed)


Outcome = tuple[Job, str | None]


def _in_order(plan: Plan) -> Iterator[Outcome]:
    failed: dict[str, str] = {}
    for job in plan.jobs():
        error = failed.get(job.training) or failed.get(JUDGE)
        yield (
            job,
            _noted(plan, job, error or _attempt(lambda job=job: do(describe(plan, job))), failed),
        )


def _noted(plan: Plan, job: Job, error: str | None, failed: dict[str, str]) -> str | None:
    """Notes an error with all rows that it leaves without a result."""
    if error is None:
        return None
    if not job.rows:
        failed[job.name] = f"{job.name}: {error}"
    for row, seed in job.rows:
        if plan.result(row, seed) is None:
            write_json(plan.path(row, seed), {"error": error})
    return error


def _attempt(work: Callable[[], None]) -> str | None:
    try:
        work()
    except (ValueError, OSError, RuntimeError) as error:
        return str(error).splitlines()[-1] if str(error) else type(error).__name__
    return None


def _side_by_side(plan: Plan, workers: int) -> Iterator[Outcome]:
    """Runs jobs as processes. The first training of a shape compiles alone; the others wait for it."""
    waiting, running = plan.jobs(), dict[Future[str | None], Job]()
    open_trainings = {job.name for job in waiting if not job.rows}
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        while waiting or running:
            for job in list(waiting):
                lost = failed.get(job.training) or failed.get(JUDGE)
                if lost:
                    waiting.remove(job)
                    yield job, _noted(plan, job, lost, failed)
                elif len(running) < workers and _is_ready(plan, job, open_trainings, running):
                    waiting.remove(job)
                    running[pool.submit(_process, plan, job)] = job
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                job = running.pop(future)
                open_trainings.discard(job.name)
                yield job, _noted(plan, job, future.result(), failed)


def _is_ready(
    plan: Plan, job: Job, open_trainings: set[str], running: dict[Future[str | None], Job]
) -> bool:
    if job.rows:
        return not open_trainings & {job.training, JUDGE}
    return not any(
        other.shape == job.shape and not other.rows and not _is_learning(plan, other)
        for other in running.values()
    )


def _is_learning(plan: Plan, job: Job) -> bool:
    """Returns whether a training has compiled its step: it has written a line of metrics."""
    metrics = plan.run(job.training) / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def _process(plan: Plan, job: Job) -> str | None:
    folder = plan.out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    name = job.name.replace("/", ".")
    write_json(folder / f"{name}.json", describe(plan, job))
    # What was traced once is kept for other runs of the same shape.
    environment = os.environ | {"TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1"}
    with (folder / f"{name}.log").open("w") as log:
        command = [sys.executable, "-m", __name__, str(folder / f"{name}.json")]
        code = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if code.returncode == 0:
        return None
    lines = (folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code.returncode}"


def describe(plan: Plan, job: Job) -> dict[str, Any]:
    """Returns a job as JSON."""
    facts = {"run": str(plan.run(job.training)), "config": asdict(job.config)}
    if not job.rows:
        return facts
    return facts | {
        "judge": str(plan.run(JUDGE)),
        "rows": [
            {
                "row": row.name,
                "seed": seed,
                "samples": plan.scale.samples_of(row),
                "file": str(plan.path(row, seed)),
            }
            for row, seed in job.rows
        ],
        "batch_size": plan.scale.batch_size,
    }


def do(job: dict[str, Any]) -> None:
    """Trains or samples; what is done already is kept."""
    if "rows" in job:
        sample(job)
    else:
        train(job)


def train(job: dict[str, Any]) -> None:
    """Trains a run to its last step, from where it stands, and files a record of it."""
    started, out, config = time.time(), Path(job["run"]), read_config(job["config"])
    if not (out / "config.json").is_file():
        trainer = runs.start(config, out, console=Console(quiet=True))
    elif RunDirectory(out).existing_step() < config.training.steps:
        trainer = runs.resume(out, console=Console(quiet=True))
    else:
        return
    trainer.train()
    record: dict[str, Any] = {
        "config": described(config),
        "seconds": time.time() - started,
        "validation": read_metrics(out / "metrics.jsonl")[-1],
        "environment": environment(trainer.device),
    }
    model = load(out, device="cpu")
    if isinstance(model, DiffusionTextModel):
        cdf = model.warp.schedule().cdf
        record["warp"] = {"t": cdf.widths_in.tolist(), "u": cdf.widths_out.tolist()}
    write_json(out / "record.json", record)


def sample(job: dict[str, Any]) -> None:
    """Measures the rows of a job that have no result yet; a row that fails leaves its error."""
    from cdcd.reproduction.measuring import Bench

    config = read_config(job["config"])
    bench = Bench.load(
        Path(job["run"]),
        Path(job["judge"]),
        batch_size=job["batch_size"],
        device=config.training.device,
    )
    errors = []
    for each in job["rows"]:
        path = Path(each.pop("file"))
        path.parent.mkdir(parents=True, exist_ok=True)
        result = each | {"training": Path(job["run"]).name}
        row, count = ROWS[each["row"]], each["samples"]
        error = _attempt(lambda: result.update(bench.measure(row, count)))  # noqa: B023
        if error is not None:
            result["error"] = error
            errors.append(f"{row.name}: {error}")
        write_json(path, result)
    if errors:
        raise ValueError("; ".join(errors))


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    message = _attempt(lambda: do(read_json(Path(sys.argv[1]))))
    if message is not None:
        sys.exit(message)
