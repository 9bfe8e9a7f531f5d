"""The work of a plan: jobs one after another, or several processes side by side on one device.

    python -m cdcd.reproduction.work FILE

does the job that a file describes; the runner starts it so for each of several workers.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cdcd.benchmarks.measure import environment
from cdcd.config import read_config
from cdcd.evaluation.held_out import described
from cdcd.files import read_json, write_json
from cdcd.inference.load import load
from cdcd.inference.text_model import DiffusionTextModel
from cdcd.reproduction.plan import JUDGE, Job, Plan
from cdcd.reproduction.rows import ROWS
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

POLL_SECONDS = 1.0


def perform(plan: Plan, *, workers: int, console: Console) -> list[str]:
    """Does all jobs of a plan, in this process or side by side; returns the names of those that failed."""
    waiting, running, failed = plan.jobs(), dict[Future[str | None], Job](), dict[str, str]()
    execute = _do_here if workers == 1 else _do_in_process
    with _Here() if workers == 1 else ThreadPoolExecutor(workers) as pool:
        while waiting or running:
            for job in list(waiting):
                if len(running) < workers and _is_ready(plan, job, waiting, running):
                    waiting.remove(job)
                    lost = failed.get(job.training) or failed.get(JUDGE)
                    work = partial(_lose, lost) if lost else execute
                    running[pool.submit(work, plan, job)] = job
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                job, error = running.pop(future), future.result()
                if error is not None:
                    failed[job.name] = f"{job.training}: {error}"
                about = "done" if error is None else f"failed: {error}"
                console.print(f"{time.strftime('%H:%M:%S')} {job.name} {about}", highlight=False)
    return list(failed)


class _Here(Executor):
    """Does what it is given at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _lose(error: str, plan: Plan, job: Job) -> str:
    """Notes an error with all rows that it leaves without a result."""
    for row, seed in job.rows:
        write_json(plan.path(row, seed), {"error": error})
    return error


def _do_here(plan: Plan, job: Job) -> str | None:
    return _attempt(lambda: do(describe(plan, job)))


def _attempt(work: Callable[[], None]) -> str | None:
    try:
        work()
    except (ValueError, OSError, RuntimeError) as error:
        return str(error).splitlines()[-1] if str(error) else type(error).__name__
    return None


def _is_ready(
    plan: Plan, job: Job, waiting: list[Job], running: dict[Future[str | None], Job]
) -> bool:
    """Samples wait for their training and the judge, a training for the first of its shape to be compiled."""
    others = list(running.values())
    if job.rows:
        return not any(o.name in (job.training, JUDGE) for o in (*waiting, *others))
    return not any(
        o.shape == job.shape and not o.rows and not _is_learning(plan, o) for o in others
    )


def _is_learning(plan: Plan, job: Job) -> bool:
    """Returns whether a training has compiled its step: it has written a line of metrics."""
    metrics = plan.run(job.training) / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def _do_in_process(plan: Plan, job: Job) -> str | None:
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
        text = {"data.source": config.data.source}
        trainer = runs.resume(out, changes=text, console=Console(quiet=True))
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
        state = model.sampler.warp.state_dict()
        record["warp"] = {name: value.tolist() for name, value in state.items()}
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
