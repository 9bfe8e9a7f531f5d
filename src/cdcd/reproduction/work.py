"""The work of a plan: jobs one after another, or several processes side by side on one device.

    python -m cdcd.reproduction.work FILE

does the job that a file describes; the runner starts it so for each of several workers.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from cdcd.evaluation.judges import load_judge
from cdcd.files import read_json, write_json
from cdcd.inference.load import load, load_translator
from cdcd.reproduction.measuring import measure
from cdcd.reproduction.measuring_translations import measure_translations
from cdcd.reproduction.plan import JUDGE, Job, Plan
from cdcd.reproduction.rows import ROWS, Row
from cdcd.reproduction.samples import complete
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

ERRORS = (ValueError, OSError, RuntimeError)
"""A job or a row that raises one of these has failed, and the others go on."""
POLL_SECONDS = 1.0
Measure = Callable[[Row, Mapping[str, Any]], dict[str, Any]]
"""A function that returns the numbers of a row, given what it completes or translates."""


def perform(plan: Plan, *, workers: int, console: Console) -> list[str]:
    """Does all jobs of a plan, in this process or side by side; returns the names of those that failed."""
    waiting, running, failed = plan.jobs(), dict[Future[str | None], Job](), dict[str, str]()
    execute, compiled = (_do_here if workers == 1 else _do_in_process), set[tuple[Any, ...]]()
    with _Here() if workers == 1 else ThreadPoolExecutor(workers) as pool:
        while waiting or running:
            for job in list(waiting):
                others = [*running.values()]
                if len(running) < workers and _is_ready(job, waiting, others, compiled):
                    waiting.remove(job)
                    lost = next((failed[name] for name in job.needs if name in failed), None)
                    work = partial(_lose, lost) if lost else execute
                    running[pool.submit(work, plan, job)] = job
            done = wait(running, POLL_SECONDS, FIRST_COMPLETED).done
            compiled |= {job.shape for job in running.values() if _is_learning(plan, job)}
            for future in done:
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
    try:
        do(describe(plan, job))
    except ERRORS as error:
        return _line(error)
    return None


def _line(error: BaseException) -> str:
    return str(error).splitlines()[-1] if str(error) else type(error).__name__


def _is_ready(
    job: Job, waiting: Sequence[Job], running: Sequence[Job], compiled: Collection[tuple[Any, ...]]
) -> bool:
    """Samples wait for what they need, a training for the first of its shape to be compiled."""
    if job.rows:  # A training need not wait for the judge.
        return not any(other.name in job.needs for other in (*waiting, *running))
    same = (other for other in running if not other.rows and other.shape == job.shape)
    return job.shape in compiled or not any(same)


def _is_learning(plan: Plan, job: Job) -> bool:
    """Returns whether a job is a training that has compiled its step: it has written a line of metrics."""
    if job.rows:
        return False
    metrics = plan.run(job.training) / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def _do_in_process(plan: Plan, job: Job) -> str | None:
    task, log = (plan.out / "logs" / f"{job.name}.{kind}" for kind in ("json", "log"))
    task.parent.mkdir(parents=True, exist_ok=True)
    write_json(task, describe(plan, job))
    # What was traced once is kept for other runs of the same shape.
    environment = os.environ | {"TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1"}
    command = [sys.executable, "-m", __name__, str(task)]
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
    if done.returncode == 0:
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def describe(plan: Plan, job: Job) -> dict[str, Any]:
    """Returns a job as JSON."""
    facts = {"run": str(plan.run(job.training)), "config": asdict(job.config)}
    if not job.rows:
        return facts
    rows = [
        {
            "row": row.name,
            "seed": seed,
            "prompts": plan.scale.prompts(row),
            "file": str(plan.path(row, seed)),
        }
        for row, seed in job.rows
    ]
    judge = str(plan.run(JUDGE)) if job.needs_judge else None
    is_translator = job.config.task == "translation"
    part = plan.scale.translators if is_translator else plan.scale
    return facts | {"rows": rows, "judge": judge, "batch_size": part.batch_size}


def do(job: dict[str, Any]) -> None:
    """Trains or samples."""
    (sample if "rows" in job else train)(job)


def train(job: dict[str, Any]) -> None:
    """Trains a run to its last step, from where it stands, and files a record of it."""
    started, out, config = time.time(), Path(job["run"]), read_config(job["config"])
    if not (out / "config.json").is_file():
        trainer = runs.start(config, out, console=Console(quiet=True))
    elif not (out / "record.json").is_file() and (
        RunDirectory(out).existing_step() < config.training.steps
    ):
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
    if config.task == "text" and config.model == "diffusion":
        state = load(out, device="cpu").sampler.warp.state_dict()
        record["warp"] = {name: value.tolist() for name, value in state.items()}
    write_json(out / "record.json", record)


def _of_text(job: dict[str, Any]) -> Measure:
    """Returns a function that measures rows of a text model."""
    device, compile = (job["config"]["training"][name] for name in ("device", "compile"))
    model = load(job["run"], device=device, compile=compile)
    judge = job["judge"] and load_judge(
        job["judge"], model.tokenizer, model.length, device=device, dtype="float32"
    )

    def measure_row(row: Row, prompts: Mapping[str, Any]) -> dict[str, Any]:
        if row.table == "figure7":
            return complete(row, model, job["batch_size"], prompts)
        return measure(row, model, judge, job["batch_size"], prompts)

    return measure_row


def _of_translator(job: dict[str, Any]) -> Measure:
    """Returns a function that measures rows of a translator."""
    device, compile = (job["config"]["training"][name] for name in ("device", "compile"))
    translator = load_translator(job["run"], device=device, compile=compile)
    return partial(measure_translations, translator=translator, batch_size=job["batch_size"])


def sample(job: dict[str, Any]) -> None:
    """Measures the rows of a job; a row that fails leaves its error."""
    run, errors = Path(job["run"]), []
    measure_row = (_of_translator if job["config"]["task"] == "translation" else _of_text)(job)
    for each in job["rows"]:
        row, prompts, path = ROWS[each["row"]], each["prompts"], Path(each["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"row": row.name, "seed": each["seed"], "training": run.name, **prompts}
        try:
            result |= measure_row(row, prompts)
        except ERRORS as error:
            result["error"] = _line(error)
            errors.append(f"{row.name}: {result['error']}")
        write_json(path, result)
    if errors:
        raise ValueError("; ".join(errors))


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        do(read_json(Path(sys.argv[1])))
    except ERRORS as failure:
        sys.exit(_line(failure))
