"""`cdcd evaluate`."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from cdcd.cli.model_options import chosen_settings, device_options, setting_options
from cdcd.settings import add_options, chosen


def evaluate_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="runs; several of one model are averaged"
    )
    parser.add_argument(
        "--judge",
        metavar="RUN|hf:NAME",
        help="autoregressive run or Hugging Face model that scores texts",
    )
    parser.add_argument("--baseline", metavar="RUN", type=Path, help="autoregressive baseline")
    parser.add_argument("--data", metavar="PATH", help="the runs' text, if it has moved")
    for name, text in (
        ("--sweep", "sampling settings to sweep; several make a grid"),
        ("--baseline-sweep", "the baseline's settings (default for texts: nucleus=0.8,0.9,0.95,1)"),
    ):
        parser.add_argument(
            name, metavar="NAME=VALUE,VALUE", action="append", default=[], help=text
        )
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="default: RUN/evaluation")
    device_options(parser)
    add_options(parser, EvaluationConfig)
    translations = parser.add_argument_group(
        "for translations",
        f"Also {_options(_names(EvaluationConfig) & _names(TranslationConfig))}.",
    )
    translations.add_argument(
        "--source", metavar="FILE", type=Path, help="your own test set, one sentence a line"
    )
    translations.add_argument("--reference", metavar="FILE", type=Path, help="its translations")
    translations.add_argument(
        "--counts",
        metavar="INT,INT",
        type=_counts,
        default=argparse.SUPPRESS,
        help="numbers of samples for each sentence that minimum Bayes-risk decoding chooses from",
    )
    shared = {"counts", *_names(EvaluationConfig)}
    add_options(translations, TranslationConfig, leave_out=shared)  # pyright: ignore[reportArgumentType]
    setting_options(parser)


def _names(config: type) -> set[str]:
    return {field.name for field in fields(config)}


def _options(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not INT,INT, such as 1,10") from None


def evaluate(options: Any) -> None:
    from cdcd.lock import locked
    from cdcd.training.checkpoint import RunDirectory

    task = RunDirectory(options.runs[0]).config.task
    options.out = options.out or options.runs[0] / "evaluation"
    with locked(options.out):
        (evaluate_translations if task == "translation" else evaluate_texts)(options)


def evaluate_texts(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.sweep import sweep_settings
    from cdcd.evaluation.text_evaluation import Evaluation, EvaluationConfig
    from cdcd.evaluation.text_report import print_report, write_report
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    _refuse(options, EvaluationConfig, TranslationConfig, "language models", "source", "reference")
    if options.judge is None:
        raise ValueError("the text of a language model needs a judge: --judge RUN|hf:NAME")
    settings = sweep_settings(options.sweep)
    baseline = sweep_settings(options.baseline_sweep or ["nucleus=0.8,0.9,0.95,1.0"])
    evaluation = Evaluation(
        options.runs,
        options.judge,
        EvaluationConfig(**chosen(options, EvaluationConfig)),
        baseline=options.baseline,
        data=options.data,
        settings=chosen_settings(options),
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
        console=Console(stderr=True),
    )
    report = evaluation.report(settings, baseline)
    print_report(report, _console())
    for path in write_report(report, options.out):
        print(path)


def evaluate_translations(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.sweep import sweep_settings
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig, load_evaluation
    from cdcd.evaluation.translation_report import print_translation_report

    _refuse(options, TranslationConfig, EvaluationConfig, "translators", "judge")
    if (options.source is None) != (options.reference is None):
        raise ValueError("a test set of one's own is --source FILE and --reference FILE: give both")
    files = None if options.source is None else (options.source, options.reference)
    settings, baseline = sweep_settings(options.sweep), sweep_settings(options.baseline_sweep)
    evaluation = load_evaluation(
        options.runs,
        TranslationConfig(**chosen(options, TranslationConfig)),
        baseline=options.baseline,
        data=options.data,
        files=files,
        settings=chosen_settings(options),
        console=Console(stderr=True),
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
    )
    report, paths = evaluation.run(options.out, settings, baseline)
    print_translation_report(report, _console())
    for path in paths:
        print(path)


def _refuse(options: Any, own: type, other: type, what: str, *more: str) -> None:
    """Refuses options of the other kind of model."""
    given = {name for name in more if getattr(options, name) is not None}
    given |= set(chosen(options, other)) - _names(own)
    if given:
        raise ValueError(f"{_options(given)}: not for {what}; leave it out")


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    # A table that is piped into a file needs no window.
    return console if console.is_terminal else Console(highlight=False, width=200)
