"""`cdcd distill`."""

import shlex
from typing import Any

from cdcd.cli.messages import for_terminal
from cdcd.config import RunConfig
from cdcd.inference.names import find_run
from cdcd.settings import chosen
from cdcd.training import run
from cdcd.training.distributed import join


def distill(options: Any) -> None:
    """Distils a run, and prints its validation loss and the command that uses it."""
    data = {} if options.data is None else {"data.source": options.data}
    with join() as world:
        changes = chosen(options, RunConfig) | data
        trainer = run.distil(find_run(options.teacher), options.out, changes=changes, world=world)
        loss = trainer.train()
        if world.is_main:
            command = f"cdcd sample {shlex.quote(str(options.out))}"
            print(for_terminal(f"validation loss {loss:.4f}; try: {command}"))
