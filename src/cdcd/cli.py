"""The command line: `cdcd VERB RUN …`. Every verb is a call into the library."""

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cdcd
from cdcd.settings import Parser, add_options, chosen

if TYPE_CHECKING:
    from cdcd.text_model import Canvas, TextModel
    from cdcd.training.config import RunConfig
    from cdcd.training.distributed import World
    from cdcd.training.trainer import Trainer


USAGE = {
    "train": "--preset NAME --data PATH --out RUN [--resume [auto]] [--section.field VALUE …]",
    "sample": "RUN [--prompt TEXT] [--num-samples INT] [--seed INT] [--setting VALUE …]",
    "infill": "RUN TEXT [--num-samples INT] [--seed INT] [--setting VALUE …]",
    "info": "RUN [--json]",
    "plot": "RUN [--out FOLDER] [--prompt TEXT] [--seed INT]",
    "demo": "[--out RUN]",
    "data": "prepare --source PATH --out FOLDER [--setting VALUE …] | verify FOLDER",
    "evaluate": "RUN [RUN …] --judge RUN|hf:NAME [--baseline RUN] [--sweep NAME=VALUE,VALUE …]",
    "bench": "train|sample|scaling [--shape NAME | --preset NAME] [--section.field VALUE …]",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line on stderr and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # All ranks of torchrun have the same command line: one of them complains about it.
    is_main = int(os.environ.get("RANK", "0")) == 0
    with nullcontext() if is_main else redirect_stderr(io.StringIO()):
        options = build_parser(given).parse_args(given)
    from cdcd.training.distributed import leave

    return leave(_run(options))


def _run(options: Any) -> int:
    from cdcd.training.distributed import SaidElsewhere
    from cdcd.training.trainer import Stopped

    try:
        options.action(options)
    except SaidElsewhere as said:
        stopped = said.__cause__
        return 128 + stopped.signal_number if isinstance(stopped, Stopped) else 2
    except Stopped as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("CDCD_TRACEBACK"):
            raise
        print(f"{options.parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def build_parser(arguments: Sequence[str]) -> Parser:
    """All verbs, and the options of the one that is used: those of the others would have to load torch."""
    used = next((word for word in arguments if not word.startswith("-")), None)
    parser = Parser(prog="cdcd", description=cdcd.__doc__)
    parser.add_argument("--version", action="version", version=f"cdcd {cdcd.__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, add, action, text in (
        ("train", _train_options, _train, "train a model, resume a run or fine-tune one"),
        ("sample", _sample_options, _sample, "generate text, with or without a prompt"),
        ("infill", _infill_options, _infill, "fill the gaps of a text"),
        ("info", _info_options, _info, "describe a run"),
        (
            "plot",
            _plot_options,
            _plot,
            "draw a run: time warping, training curves, a denoising sample",
        ),
        (
            "evaluate",
            _evaluate_options,
            _evaluate,
            "measure samples of runs beside real text and a baseline, before a judge",
        ),
        ("data", _data_options, _data, "prepare a corpus for training, or check a prepared one"),
        ("bench", _bench_options, _bench, "measure the speed of training and sampling here"),
        ("demo", _demo_options, _demo, "train a small model on the CPU and show what it can do"),
    ):
        verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        verb.set_defaults(action=action, parser=verb)
        if name == used:
            add(verb)
        verb.usage = f"cdcd {name} {USAGE[name]}"
    return parser


# cdcd train


def _train_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.training.config import PRESETS, RunConfig

    parser.add_argument(
        "--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)} (default: small)"
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="corpus: tales, markov, a prepared data set, a file or a folder",
    )
    parser.add_argument("--out", metavar="RUN", type=Path, required=True, help="run directory")
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=("always", "auto"),
        const="always",
        help="go on with the run in --out; `auto`: or start it where there is none, for commands that "
        "are repeated until they succeed (torchrun --max-restarts)",
    )
    parser.add_argument(
        "--checkpoint", metavar="STEP", type=int, help="resume from this checkpoint"
    )
    parser.add_argument("--init-from", metavar="RUN", type=Path, help="fine-tune from another run")
    add_options(parser, RunConfig)


def _train(options: Any) -> None:
    from cdcd.training.distributed import join

    with join() as world:
        message = _train_in(world, options)
        if world.is_main:
            print(f"{message}; try: cdcd sample {shlex.quote(str(options.out))}")


def _train_in(world: "World", options: Any) -> str:
    trainer = _trainer(options, world)
    if trainer is None:
        return f"{options.out} is trained already"
    return f"validation loss {trainer.train():.4f}"


def _trainer(options: Any, world: "World") -> "Trainer | None":
    """A new run, one that goes on, or None where it has nothing left to do and may say so."""
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
    from cdcd.training.config import RunConfig

    data = {} if options.data is None else {"data.source": options.data}
    return chosen(options, RunConfig) | data


def _new_config(options: Any, changes: dict[str, Any]) -> "RunConfig":
    from cdcd.settings import override
    from cdcd.training import run
    from cdcd.training.config import preset, refuse_unused

    config = preset(options.preset or "small")
    if options.init_from is not None:
        config = run.inherited_config(config, options.init_from)
    config = override(config, changes)
    refuse_unused(config, changes)
    return config


# cdcd sample, cdcd infill


def _generation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument(
        "--num-samples", metavar="INT", type=int, default=1, help="samples for each text"
    )
    parser.add_argument("--seed", metavar="INT", type=int, default=0, help="seed of the noise")
    parser.add_argument(
        "--batch-size", metavar="INT", type=int, default=64, help="sequences at a time"
    )
    parser.add_argument(
        "--checkpoint", metavar="STEP", type=int, help="checkpoint (default: the last)"
    )
    _device_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _setting_options(parser)


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "float64", "bfloat16"),
        default="auto",
        help="precision",
    )


def _setting_options(parser: argparse.ArgumentParser) -> None:
    """Sampling settings of diffusion models, then those of autoregressive ones."""
    from cdcd.diffusion.sampling import SamplingConfig
    from cdcd.networks.decoding import DecodingConfig

    add_options(parser, SamplingConfig)
    group = parser.add_argument_group("of autoregressive models", "They take --nucleus too.")
    add_options(group, DecodingConfig, leave_out=["nucleus"])  # pyright: ignore[reportArgumentType]


def _chosen_settings(options: Any) -> dict[str, Any]:
    from cdcd.diffusion.sampling import SamplingConfig
    from cdcd.networks.decoding import DecodingConfig

    return chosen(options, SamplingConfig) | chosen(options, DecodingConfig)


def _sample_options(parser: argparse.ArgumentParser) -> None:
    _generation_options(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", metavar="TEXT", default="", help="begin with this text")
    prompts.add_argument("--prompt-file", metavar="PATH", type=Path, help="one prompt a line")
    parser.add_argument("--length", metavar="INT", type=int, help="tokens to show (default: all)")
    parser.add_argument(
        "--ignore-eos", action="store_true", help="show what follows the end of the text"
    )


def _infill_options(parser: argparse.ArgumentParser) -> None:
    _generation_options(parser)
    parser.add_argument(
        "text",
        metavar="TEXT",
        help=r"a text with gaps: [5] stands for five tokens; \[5] is plain text",
    )


def _sample(options: Any) -> None:
    model = _load(options)
    prompts = [options.prompt]
    if options.prompt_file is not None:
        prompts = options.prompt_file.read_text(encoding="utf-8").splitlines()
        if not prompts:
            raise ValueError(f"{options.prompt_file} holds no prompt")
    canvases = [model.prompt_canvas(prompt, options.length) for prompt in prompts]
    _generate(options, model, canvases, length=options.length, ignore_eos=options.ignore_eos)


def _infill(options: Any) -> None:
    model = _load(options)
    _generate(options, model, [model.infill_canvas(options.text)])


def _load(options: Any) -> "TextModel":
    from cdcd.generation import load

    return load(
        options.run, checkpoint=options.checkpoint, device=options.device, dtype=options.dtype
    )


def _generate(options: Any, model: "TextModel", canvases: "Sequence[Canvas]", **more: Any) -> None:
    from rich.console import Console

    from cdcd.display import SamplingProgress, marked

    settings = _chosen_settings(options)
    with SamplingProgress() as progress:
        generated = model.generate(
            canvases,
            num_samples=options.num_samples,
            seed=options.seed,
            batch_size=options.batch_size,
            callback=progress,
            **settings,
            **more,
        )
    if options.json:
        print(
            json.dumps(
                {"settings": settings, "samples": [asdict(g) for g in generated]},
                ensure_ascii=False,
            )
        )
        return
    console = Console(soft_wrap=True)
    for each in generated:
        if console.is_terminal:
            console.print(marked(each, model.tokenizer))
        else:
            print(each.text)


# cdcd info, cdcd plot, cdcd demo


def _info_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _info(options: Any) -> None:
    from cdcd.display import describe, print_description

    description = describe(options.run)
    if options.json:
        print(json.dumps(description, indent=2))
    else:
        print_description(description)


def _plot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, help="where to save (default: in RUN)"
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", default="", help="prompt of the denoising sample"
    )
    parser.add_argument(
        "--seed", metavar="INT", type=int, default=0, help="seed of the denoising sample"
    )


def _plot(options: Any) -> None:
    from cdcd.display import draw_run

    for path in draw_run(options.run, options.out, prompt=options.prompt, seed=options.seed):
        print(path)


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="RUN", type=Path, default=Path("runs/demo"), help="run directory"
    )


def _demo(options: Any) -> None:
    from cdcd.demo import show_demo

    show_demo(options.out)


# cdcd data


def _data_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.data.prepare import PrepareConfig

    verbs = parser.add_subparsers(metavar="prepare|verify", required=True, dest="data_verb")
    prepare = verbs.add_parser("prepare", help="tokenise a corpus into memory-mapped shards")
    prepare.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="data set")
    add_options(prepare, PrepareConfig)
    prepare.set_defaults(parser=prepare)
    verify = verbs.add_parser("verify", help="compare every file with its checksum")
    verify.add_argument("out", metavar="FOLDER", type=Path, help="data set")
    verify.set_defaults(parser=verify)


def _data(options: Any) -> None:
    from rich.console import Console

    from cdcd.data.prepare import PrepareConfig, prepare
    from cdcd.data.shards import TokenDataset

    if options.data_verb == "verify":
        dataset = TokenDataset(options.out)
        dataset.verify()
        print(f"{options.out} is whole: {', '.join(dataset.splits)}")
        return
    changes = chosen(options, PrepareConfig)
    if "source" not in changes:
        raise ValueError("say what to prepare with --source PATH")
    prepare(PrepareConfig(**changes), options.out, console=Console(soft_wrap=True))
    print(f"train on it with: cdcd train --data {shlex.quote(str(options.out))} --out RUN")


# cdcd evaluate


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.evaluation.evaluate import EvaluationConfig

    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="runs; several of one kind are averaged"
    )
    parser.add_argument(
        "--judge", metavar="RUN|hf:NAME", required=True, help="autoregressive run, or model by name"
    )
    parser.add_argument("--baseline", metavar="RUN", type=Path, help="autoregressive baseline")
    parser.add_argument("--data", metavar="PATH", help="the runs' text, where it has moved")
    for name, text in (
        ("--sweep", "sampling settings to sweep; several make a grid"),
        ("--baseline-sweep", "the baseline's settings (default: nucleus=0.8,0.9,0.95,1)"),
    ):
        parser.add_argument(
            name, metavar="NAME=VALUE,VALUE", action="append", default=[], help=text
        )
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="default: RUN/evaluation")
    _device_options(parser)
    add_options(parser, EvaluationConfig)
    _setting_options(parser)


def _evaluate(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.evaluate import Evaluation, EvaluationConfig, sweep_settings
    from cdcd.evaluation.report import print_report, write_report

    settings = sweep_settings(options.sweep)
    baseline = sweep_settings(options.baseline_sweep or ["nucleus=0.8,0.9,0.95,1.0"])
    evaluation = Evaluation(
        options.runs,
        options.judge,
        EvaluationConfig(**chosen(options, EvaluationConfig)),
        baseline=options.baseline,
        data=options.data,
        settings=_chosen_settings(options),
        device=options.device,
        dtype=options.dtype,
        console=Console(stderr=True),
    )
    report = evaluation.report(settings, baseline)
    console = Console(highlight=False)
    # A table that is piped into a file needs no window.
    print_report(report, console if console.is_terminal else Console(highlight=False, width=200))
    for path in write_report(report, options.out or options.runs[0] / "evaluation"):
        print(path)


# cdcd bench


def _bench_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.benchmarks.sample import SampleBenchConfig
    from cdcd.benchmarks.scaling import ScalingBenchConfig
    from cdcd.benchmarks.shapes import SHAPES
    from cdcd.benchmarks.train import TrainBenchConfig
    from cdcd.training.config import PRESETS, RunConfig

    verbs = parser.add_subparsers(metavar="train|sample|scaling", required=True, dest="bench_verb")
    for name, settings, text in (
        ("train", TrainBenchConfig, "whole training steps on random tokens"),
        ("sample", SampleBenchConfig, "whole batches of samples of random weights"),
        ("scaling", ScalingBenchConfig, "both against width, depth, length, vocabulary and batch"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.set_defaults(parser=verb, bench_settings=settings)
        verb.add_argument("--shape", metavar="NAME", help=f"one of {', '.join(SHAPES)}")
        verb.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
        verb.add_argument("--threads", metavar="INT", type=int, help="CPU threads")
        verb.add_argument("--json", action="store_true", help="print only the line of JSON")
        verb.add_argument("--out", metavar="FILE", type=Path, help="file the JSON here")
        add_options(verb, settings)
        add_options(verb, RunConfig)
    train, scaling = (verbs.choices[name] for name in ("train", "scaling"))
    for name, text in (
        ("--compare-self-conditioning", "measure what self-conditioning costs"),
        ("--profile", "show the operations that take most of a step's time"),
    ):
        train.add_argument(name, action="store_true", help=text)
    scaling.add_argument("--plot", metavar="FILE", type=Path, help="draw the curves here")


def _bench(options: Any) -> None:
    import torch

    from cdcd.benchmarks import report, sample, scaling, shapes, train
    from cdcd.training.config import RunConfig

    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}, it must be at least 1")
        torch.set_num_threads(options.threads)
    settings = options.bench_settings(**chosen(options, options.bench_settings))
    default = "A" if torch.cuda.is_available() else "demo"
    if options.bench_verb == "scaling" and default == "demo":
        default = "tiny"
    changes = chosen(options, RunConfig)
    name, config = shapes.choose_config(options.shape, options.preset, changes, default=default)
    if options.bench_verb == "train":
        result = train.bench_train(
            name,
            config,
            settings,
            compare_self_conditioning=options.compare_self_conditioning,
            profile=options.profile,
        )
    elif options.bench_verb == "sample":
        result = sample.bench_sample(name, config, settings)
    else:
        result = scaling.bench_scaling(name, config, settings)
        if options.plot is not None:
            scaling.plot_scaling(result, options.plot)
    report.publish(result, json_only=options.json, out=options.out)
