"""What `test_distributed.py` runs on every rank of torchrun: several tiny trainings, one after another.

    torchrun … tests/ranks.py JOBS.json

A job is {"out": RUN, "changes": {…}} to start a run, with "resume": true to go on with one.
"""

import json
import sys
from pathlib import Path

from tiny import silent, tiny_config

from cdcd.training import run as runs
from cdcd.training.distributed import World, join


def train(job: dict, world: World) -> None:
    out = Path(job["out"])
    if job.get("resume"):
        trainer = runs.resume(out, changes=job["changes"], console=silent(), world=world)
    else:
        trainer = runs.start(tiny_config(job["changes"]), out, console=silent(), world=world)
    trainer.train()


if __name__ == "__main__":
    with join() as world:
        for job in json.loads(Path(sys.argv[1]).read_text()):
            train(job, world)
