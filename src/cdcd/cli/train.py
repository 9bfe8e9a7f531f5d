"""`cdcd train`."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.settings import add_options, chosen

if TYPE_CHECKING:
    from cdcd.config import RunConfig
    from cdcd.training.distributed import World
    from cdcd.training.trainer import Trainer


def train_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.config import RunConfig
    from cdcd.presets import PRESETS

    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"one of {', '.join(PRESETS)} (default: small; for translation: multi30k)",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="corpus: tales, markov, numerals (pairs), a prepared data set, a file or a folder",
    )
    parser.add_argument("--out", metavar="RUN", type=Path, required=True, help="run directory")
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=("always", "auto"),
        const="always",
        help="continue the run in --out; `auto`: start it if there is none, for commands that are "
        "repeated until they succeed (torchrun --max-restarts)",
    )
    parser.add_argument(
        "--checkpoint", metavar="STEP", type=int, help="resume from this checkpoint"
    )
    parser.add_argument("--init-from", metavar="RUN", type=Path, help="fine-tune from another run")
    add_options(parser, RunConfig)


def train(options: Any) -> None:
    from cdcd.training.distributed import join

    with join() as world:
        message = _train_in(world, options)
        if world.is_main:
            print(f"{message}; try: {_command(options.out)}")


def _command(run: Path) -> str:
    """Returns the command that uses a trained run."""
    from cdcd.training.checkpoint import RunDirectory

    name = shlex.quote(str(run))
    if RunDirectory(run).config.task == "translation":
        return f"cdcd translate {name} --source -"
    return f"cdcd sample {name}"


def _train_in(world: "World", options: Any) -> str:
    trainer = _trainer(options, world)
    if trainer is None:
        return f"{options.out} is trained already"
    return f"validation loss {trainer.train():.4f}"


def _trainer(options: Any, world: "World") -> "Trainer | None":
    """Starts or continues a run; returns None where `--resume auto` has nothing left to do."""
    from cdcd.config import effects
    from cdcd.settings import override, refuse_without_effect
    from cdcd.training import run
    from cdcd.training.checkpoint import RunDirectory

    changes = _changes(options)
    if options.checkpoint is not None and options.resume != "always":
        raise ValueError("--checkpoint goes with --resume")
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
        changes = run.changes_to(present, config)
        if run.is_finished(present, changes):
            return None
        return run.resume(options.out, changes=changes, world=world)
    return run.start(config, options.out, init_from=options.init_from, world=world)


def _changes(options: Any) -> dict[str, Any]:
    from cdcd.config import RunConfig

    data = {} if options.data is None else {"data.source": options.data}
    return chosen(options, RunConfig) | data


def _new_config(options: Any, changes: dict[str, Any]) -> "RunConfig":
    from cdcd.config import effects
    from cdcd.presets import preset
    from cdcd.settings import override, refuse_without_effect
    from cdcd.training import run

    default = "multi30k" if changes.get("task") == "translation" else "small"
    config = preset(options.preset or default, changes.get("model", "diffusion"))
    if options.init_from is not None:
        config = run.inherited_config(config, options.init_from)
    config = override(config, changes)
    refuse_without_effect(changes, effects(config))
    return config
