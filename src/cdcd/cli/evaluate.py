"""`cdcd evaluate`."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cdcd.cli.model_options import chosen_settings
from cdcd.inference.decoder_settings import DECODERS
from cdcd.settings import chosen

OF_SAMPLING = {"self_conditioning"}
"""Settings of sampling that evaluations without samples have too."""


def _names(config: type) -> set[str]:
    return {field.name for field in fields(config)}


def _options(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def evaluate(options: Any) -> None:
    from cdcd.inference.names import open_named
    from cdcd.lock import locked
    from cdcd.training.packed_model import PackedModel

    first = open_named(options.runs[0])
    is_packed, task = isinstance(first, PackedModel), first.config.task
    # An installed model is not written into.
    name = Path(f"evaluation-{first.path.name}") if is_packed else options.runs[0] / "evaluation"
    options.out = options.out or name
    evaluation = evaluate_likelihoods if options.likelihood else evaluate_texts
    if options.check is not None:
        evaluation = evaluate_checks
    if task == "translation":
        evaluation = evaluate_translations
    with locked(options.out):
        evaluation(options)


def evaluate_likelihoods(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.likelihood import LikelihoodConfig, LikelihoodEvaluation
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    own, others = _names(LikelihoodConfig), [EvaluationConfig, TranslationConfig, *DECODERS]
    more = ("judge", "source", "reference", "sweep", "baseline_sweep")
    _refuse(options, own, others, "--likelihood, which samples nothing", *more)
    evaluation = LikelihoodEvaluation(
        options.runs,
        LikelihoodConfig(**chosen(options, LikelihoodConfig)),
        baseline=options.baseline,
        data=options.data,
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
        console=Console(stderr=True),
    )
    _show(evaluation.report(), options.out)


def evaluate_checks(options: Any) -> None:

    from cdcd.evaluation.checks import CheckConfig, CheckedEvaluation
    from cdcd.evaluation.likelihood import LikelihoodConfig
    from cdcd.evaluation.sweep import sweep_settings
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    own = _names(CheckConfig) | OF_SAMPLING
    others = [EvaluationConfig, TranslationConfig, LikelihoodConfig]
    more = ("judge", "likelihood", "source", "reference")
    _refuse(options, own, others, "--check, whose judge is exact", *more)
    evaluation = CheckedEvaluation(
        options.runs,
        options.check,
        CheckConfig(**chosen(options, CheckConfig)),
        **_given(options),
    )
    baseline = sweep_settings(options.baseline_sweep)
    _show(evaluation.report(sweep_settings(options.sweep), baseline), options.out)


def _given(options: Any) -> dict[str, Any]:
    """Returns what every evaluation of models of text is given."""
    from rich.console import Console

    names = ("baseline", "data", "device", "dtype", "compile")
    given = {name: getattr(options, name) for name in names}
    return given | {"settings": chosen_settings(options), "console": Console(stderr=True)}


def evaluate_texts(options: Any) -> None:

    from cdcd.evaluation.likelihood import LikelihoodConfig
    from cdcd.evaluation.sweep import sweep_settings
    from cdcd.evaluation.text_evaluation import Evaluation, EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    own = _names(EvaluationConfig) | OF_SAMPLING
    _refuse(options, own, [TranslationConfig], "language models", "source", "reference")
    _refuse(options, own, [LikelihoodConfig], "samples, only for --likelihood")
    if options.judge is None:
        raise ValueError("the text of a language model needs a judge: --judge RUN|hf:NAME")
    settings = sweep_settings(options.sweep)
    baseline = sweep_settings(options.baseline_sweep or ["nucleus=0.8,0.9,0.95,1.0"])
    evaluation = Evaluation(
        options.runs,
        options.judge,
        EvaluationConfig(**chosen(options, EvaluationConfig)),
        **_given(options),
    )
    _show(evaluation.report(settings, baseline), options.out)


def evaluate_translations(options: Any) -> None:
    from rich.console import Console

    from cdcd.evaluation.held_out_pairs import held_out_pairs
    from cdcd.evaluation.likelihood import LikelihoodConfig
    from cdcd.evaluation.sweep import sweep_settings
    from cdcd.evaluation.systems import load_systems
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig, TranslationEvaluation
    from cdcd.inference.load import load_translator

    own, others = _names(TranslationConfig) | OF_SAMPLING, [EvaluationConfig, LikelihoodConfig]
    _refuse(options, own, others, "translators", "judge", "likelihood", "check")
    if (options.source is None) != (options.reference is None):
        raise ValueError("a test set of one's own is --source FILE and --reference FILE: give both")
    files = None if options.source is None else (options.source, options.reference)
    settings, baseline = sweep_settings(options.sweep), sweep_settings(options.baseline_sweep)
    config = TranslationConfig(**chosen(options, TranslationConfig))
    systems = load_systems(
        load_translator,
        options.runs,
        options.baseline,
        data=options.data,
        device=options.device,
        dtype=options.dtype,
        compile=options.compile,
    )
    held_out = held_out_pairs(
        systems[0].config,
        split=config.split,
        files=files,
        num_sentences=config.num_sentences,
        trained_on={each.config.data.split for each in systems},
    )
    evaluation = TranslationEvaluation(
        systems,
        held_out,
        config,
        settings=chosen_settings(options),
        console=Console(stderr=True),
    )
    _show(evaluation.report(options.out, settings, baseline), options.out)


def _show(report: Any, folder: Path) -> None:
    """Prints a report, writes its files and prints their paths."""
    report.print(_console())
    for path in report.write(folder):
        print(path)


def _refuse(options: Any, own: set[str], others: Sequence[type], what: str, *more: str) -> None:
    """Refuses options of other kinds of evaluation."""
    given = {name for name in more if getattr(options, name)}
    given |= {name for other in others for name in chosen(options, other)} - own
    if given:
        raise ValueError(f"{_options(given)}: not for {what}; leave it out")


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    # A table that is piped into a file needs no window.
    return console if console.is_terminal else Console(highlight=False, width=200)
