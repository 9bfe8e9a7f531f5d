"""`cdcd train`."""

import shlex
from pathlib import Path
from typing import Any

from cdcd.cli.effects import effects
from cdcd.cli.messages import for_terminal
from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN
from cdcd.inference.names import find_run
from cdcd.presets import preset
from cdcd.settings import chosen, override, refuse_without_effect
from cdcd.training import run
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.distributed import World, join
from cdcd.training.trainer import Trainer


def train(options: Any) -> None:
    """Trains a run, and prints its validation loss and the command that uses it."""
    with join() as world:
        trainer = _trainer(options, world)
        text = f"{options.out} is trained already"
        if trainer is not None:
            _say_built_in(options, trainer, world)
            text = f"validation loss {trainer.train():.4f}"
        if world.is_main:
            print(for_terminal(f"{text}; try: {_command(options.out)}"))


def _say_built_in(options: Any, trainer: Trainer, world: World) -> None:
    """Prints that a new run learns a built-in corpus where the user has named none."""
    source = trainer.config.data.source
    is_named = options.data or hasattr(options, "data.source") or options.init_from
    if world.is_main and source in BUILT_IN and not is_named and not options.resume:
        print(f"training on the built-in {source}; for text of your own: --data FILE or FOLDER")


def _command(path: Path) -> str:
    """Returns the command that uses a trained run."""
    name = shlex.quote(str(path))
    if RunDirectory(path).config.task == "translation":
        return f"cdcd translate {name} --source -"
    return f"cdcd sample {name}"


def _trainer(options: Any, world: World) -> Trainer | None:
    """Starts or continues a run; returns None where `--resume auto` has nothing left to do."""
    data = {} if options.data is None else {"data.source": options.data}
    changes = chosen(options, RunConfig) | data
    if options.checkpoint is not None and options.resume != "always":
        raise ValueError("--checkpoint goes with --resume")
    if options.init_from is not None:
        options.init_from = find_run(options.init_from)
    if options.resume == "always":
        if options.init_from or options.preset:
            raise ValueError(
                "--resume goes on with a run as it is: leave out --preset and --init-from"
            )
        config = override(RunDirectory(options.out).config, changes)
        refuse_without_effect(changes, effects(config))
        return run.resume(options.out, changes=changes, checkpoint=options.checkpoint, world=world)
    config = _new_config(options, changes)
    if options.resume == "auto" and world.on_main((options.out / "config.json").is_file):
        present = RunDirectory(options.out)
        named = {name: value for name, value in changes.items() if name == "data.source"}
        changes = run.changes_to(present, config) | named
        if run.is_finished(present, changes):
            return None
        return run.resume(options.out, changes=changes, world=world)
    if options.allow_unknown and not options.init_from:
        raise ValueError("--allow-unknown goes with --init-from")
    return run.start(
        config,
        options.out,
        init_from=options.init_from,
        allow_unknown=options.allow_unknown,
        world=world,
    )


def _new_config(options: Any, changes: dict[str, Any]) -> RunConfig:
    default = "multi30k" if changes.get("task") == "translation" else "small"
    config = preset(options.preset or default, changes.get("model", "diffusion"))
    if options.init_from is not None:
        config = run.inherited_config(config, options.init_from)
    config = override(config, changes)
    refuse_without_effect(changes, effects(config))
    return config
