"""`cdcd reproduce`: the paper's tables and figures."""

import argparse
import re
from pathlib import Path
from typing import Any

from cdcd.settings import Count, Processes, Repeats, add_number, argument


def reproduce_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        metavar="TABLE|FIGURE",
        nargs="*",
        help="table1, figure5, …, simplex; all but simplex if none is named",
    )
    parser.add_argument(
        "--scale", metavar="tiny|small|paper", default="tiny", help="models and corpus"
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        type=argument(str),
        help="folder of corpora, or a prepared data set",
    )
    parser.add_argument(
        "--out", metavar="OUT", type=argument(Path), help="folder of runs and results"
    )
    parser.add_argument(
        "--only", metavar="ROW,ROW", default="", help="rows or groups, such as table1/masking"
    )
    add_number(parser, "--seeds", Repeats, "training seeds of every row")
    add_number(parser, "--steps", Count, "training steps of every row")
    add_number(parser, "--samples", Repeats, "samples of every row; of Table 4: sentences")
    add_number(parser, "--workers", Processes, "processes side by side", default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "graphs", "off"),
        default="auto",
        help="as training.compile",
    )
    parser.add_argument(
        "--tables", action="store_true", help="only write the tables of the results that are there"
    )
    parser.add_argument("--list", action="store_true", help="show each row and its state")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done, GPU-minutes and memory"
    )


def reproduce(options: Any) -> None:
    from rich.console import Console

    from cdcd.lock import locked
    from cdcd.reproduction.pictures import draw
    from cdcd.reproduction.report import write
    from cdcd.reproduction.work import perform

    console = Console(soft_wrap=True)
    if "simplex" in options.targets:
        _study(options, console)
        options.targets.remove("simplex")
        if not options.targets:
            return
    plan = _plan(options)
    if options.list:
        _print_states(plan, console)
        return
    if options.dry_run:
        _print_costs(plan, console)
        return
    with locked(plan.out):
        plan.check_protocol()
        try:
            failed = (
                [] if options.tables else perform(plan, workers=options.workers, console=console)
            )
        finally:
            for path in [*write(plan), *draw(plan)]:
                console.print(f"written: {path}", highlight=False)
    if failed:
        raise SystemExit(f"cdcd reproduce: failed: {', '.join(failed)}")


def _study(options: Any, console: Any) -> None:
    """Performs the study of simplex diffusion, of one size at all scales, or shows its state."""
    from cdcd.networks.precision import choose_device
    from cdcd.reproduction.simplex import Study, parts_of, perform_study

    given = {name: getattr(options, name) for name in ("seeds", "steps")}
    study = Study(**{name: value for name, value in given.items() if value is not None})
    out = _out(options)
    if options.list or options.dry_run:
        for part in parts_of(study):
            state = "to do" if part.result(out) is None else "done"
            console.print(f"{state:8} simplex {part.name}", highlight=False)
        return
    device, workers = choose_device(options.device), options.workers
    for path in perform_study(study, out, console, device=device, workers=workers):
        console.print(f"written: {path}", highlight=False)


def _out(options: Any) -> Path:
    """Returns the folder of results, one that need not be there where nothing is written."""
    if options.out is None and not (options.list or options.dry_run):
        raise ValueError("say where results go with --out OUT")
    return options.out or Path("runs") / "reproduction"


def _plan(options: Any) -> Any:
    from dataclasses import replace

    from cdcd.reproduction.corpora import corpora
    from cdcd.reproduction.plan import Plan
    from cdcd.reproduction.rows import rows_of, with_compared
    from cdcd.reproduction.scales import scale_named

    scale = scale_named(options.scale)
    rows = rows_of(options.targets)
    if options.only:
        # The labels of some rows hold commas: T=0.9,guidance=2.0.
        chosen = rows_of(re.split(r",(?!\w+=)", options.only))
        rows = [row for row in rows if row in chosen]
    present = [row for row in rows if scale.has(row)]
    if not present:
        named = f": {rows[0].name} is not at this scale" if rows else ""
        raise ValueError(
            f"no row is left at scale {scale.name}{named}; choose other rows or another --scale"
        )
    rows = with_compared(rows)
    if options.steps:
        scale = scale.with_steps(options.steps)
    if options.seeds:
        scale = replace(scale, seeds=options.seeds, other_seeds=options.seeds)
    if options.samples:
        scale = scale.with_samples(options.samples)
    is_planned, out = options.list or options.dry_run, _out(options)
    needed = {} if is_planned else corpora(scale, filter(scale.has, rows), options.data, out)
    changes = {"training.device": options.device, "training.compile": options.compile}
    return Plan(scale, rows, needed, out, changes)


def _print_states(plan: Any, console: Any) -> None:
    from cdcd.reproduction.plan import LACKING

    for row, seed in plan.results:
        console.print(f"{plan.state(row, seed):8} {row.name} seed {seed}", highlight=False)
    for row in plan.rows:
        if not plan.scale.has(row):
            console.print(f"{LACKING}: {row.name}", highlight=False)


def _print_costs(plan: Any, console: Any) -> None:
    from cdcd.reproduction.report import costs

    total = 0.0
    for minutes, job in costs(plan):
        total += minutes
        console.print(f"{minutes:10.2f} GPU-min  {job}", highlight=False)
    console.print(
        f"{total:10.2f} GPU-min of an H200 in all ({total / 1440:.2f} days), without compiling",
        highlight=False,
    )
