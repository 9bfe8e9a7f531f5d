"""`cdcd export`, `cdcd models` and `cdcd push`: models to give to others."""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdcd.settings import Steps, add_number, argument

WEIGHTS = ("bfloat16", "int8")


def export_options(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "--out", metavar="FOLDER", type=argument(Path), required=True, help="folder of the model"
    )
    add_number(parser, "--checkpoint", Steps, "step of the checkpoint; default: the last")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=argument(str),
        action="append",
        default=[],
        help="a setting of its samples, such as sampling.num-steps=32; can be repeated",
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace the model that is in --out, if there is one"
    )
    _card_options(parser)


def push_options(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "repository", metavar="hf:OWNER/NAME", type=argument(str), help="repository on the hub"
    )
    _card_options(parser)


def models_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(parser: argparse.ArgumentParser) -> None:
    text = "run directory, installed model or hf:OWNER/NAME"
    parser.add_argument("run", metavar="RUN", type=argument(Path), help=text)


def _card_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="bfloat16",
        help="type of the matrices; int8 has a scale for each row, and half of the bytes",
    )
    parser.add_argument(
        "--facts",
        metavar="FILE",
        type=argument(Path),
        help="TOML with a table of the model's name: summary, licence, data, limits, … for its card",
    )
    parser.add_argument(
        "--machine", metavar="TEXT", type=argument(str), help="machine and minutes of the training"
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=argument(Path),
        action="append",
        default=[],
        help="report.json of cdcd evaluate, whose numbers the card shows; can be repeated",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="draws the card's samples"
    )


def export(options: Any) -> None:
    """Writes the packed model of a run with its card, and prints its path."""
    print(f"{_export(options, options.out).path}")


def _export(options: Any, out: Path) -> Any:
    from cdcd.evaluation.card import Facts, read_facts, write_card
    from cdcd.files import without_empty_folders
    from cdcd.inference.names import open_named
    from cdcd.training.packed_model import check_free, move_model, write_packed

    check_free(out, replace=getattr(options, "replace", False))
    facts = Facts() if options.facts is None else read_facts(options.facts, out.name)
    if options.machine is not None:
        facts = replace(facts, machine=options.machine)
    run = open_named(options.run)
    changes = dict(map(_setting, getattr(options, "set", [])))
    checkpoint = getattr(options, "checkpoint", None)
    with without_empty_folders(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        # A model appears with its card, or not at all.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".exporting-") as folder:
            new = Path(folder) / out.name
            model = write_packed(
                run, new, options.weights, facts.about, checkpoint=checkpoint, changes=changes
            )
            write_card(
                model, facts, options.report, metrics=run.metrics_path, device=options.device
            )
            return move_model(model, out)


def _setting(text: str) -> tuple[str, str]:
    """Returns the name and the value of a setting in the form NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"--set is {text}, it must be NAME=VALUE, such as sampling.num-steps=32")
    return name.replace("-", "_"), value


def push(options: Any) -> None:
    """Uploads a model with its card; a run is packed first."""
    from cdcd.inference.hub import parsed, upload
    from cdcd.inference.names import HUB, open_named
    from cdcd.training.packed_model import PackedModel

    name = options.repository
    if not name.startswith(HUB):
        raise ValueError(f"{name} is not a repository on the hub; give hf:OWNER/NAME")
    name = name.removeprefix(HUB)
    repository, _ = parsed(name)
    run = open_named(options.run)
    if isinstance(run, PackedModel) and options.facts is None and not options.report:
        print(upload(run.path, name))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = _export(options, Path(folder) / repository.partition("/")[2])
        print(upload(model.path, name))


def models(options: Any) -> None:
    """Lists the installed models: size, task, licence and an example."""
    from cdcd.cli.messages import for_terminal
    from cdcd.inference.names import INSTALL, installed_models

    rows = [_described(name, path) for name, path in installed_models().items()]
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif not rows:
        print(f"no model is installed; for those that come with cdcd: {INSTALL}")
    for row in () if options.json else rows:
        size = f"{row['bytes'] / 1e6:.1f} MB"
        print(for_terminal(f"{row['name']}  {row['task']}, {size}, {row['licence']}"))
        print(for_terminal(f"  {row['summary']}"))
        print(for_terminal(f"  {row['example']}"))


def _described(name: str, path: Path) -> dict[str, Any]:
    from cdcd.training.packed_model import PackedModel, num_bytes

    model = PackedModel(path)
    config, about = model.config, model.about
    task = f"{config.task}, {config.model}"
    if config.task == "translation":
        task = f"{' to '.join(config.data.direction)}, {config.model}"
    return {
        "name": name,
        "task": task,
        "bytes": num_bytes(path),
        "licence": about.get("licence", "unknown"),
        "summary": about.get("summary", ""),
        "example": about.get("example") or f"cdcd info {name}",
        "path": str(path),
    }
