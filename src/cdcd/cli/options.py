"""The options of every verb. Those that are fields of settings are all added where `whole`, else a few.

Only what `whole` adds may import the library: help must not wait for it.
"""

import argparse
from pathlib import Path
from typing import Any

from cdcd.cli.parser import Fields, add_main_fields
from cdcd.cli.playground_options import add_playground_options
from cdcd.settings import (
    Batch,
    Repeats,
    Seed,
    Size,
    Steps,
    Weight,
    add_number,
    add_options,
    argument,
    hints_of,
)

PRESETS = ("demo", "small", "base", "large", "numerals", "multi30k", "wmt-base", "wmt-big")
DECODERS = ("ode", "mask-predict")
COMPILE_MODES = ("auto", "on", "graphs", "off")
UTILITIES = ("bleu", "chrf")

_MAIN_SAMPLING: Fields = {
    ("diffusion/sampling.py", "SamplingConfig"): (
        *("solver", "num_steps", "eta", "score_temperature", "guidance_scale", "nucleus"),
    ),
    ("config.py", "DecodingConfig"): ("temperature", "top_k"),
}
_MAIN_TRANSLATING: Fields = {
    ("diffusion/sampling.py", "SamplingConfig"): ("num_steps", "score_temperature"),
    ("config.py", "MaskPredictConfig"): ("num_rounds", "num_lengths"),
    ("config.py", "DecodingConfig"): ("temperature",),
    ("config.py", "BeamConfig"): ("beam_size", "length_penalty"),
}
_MAIN_TRAINING: Fields = {
    ("config.py", "RunConfig"): ("task", "model"),
    ("config.py", "DataConfig"): ("data.length",),
    ("config.py", "TrainingConfig"): (
        *("training.steps", "training.batch_size", "training.accumulate"),
        *("training.learning_rate", "training.validate_every", "training.checkpoint_every"),
        *("training.seed", "training.device", "training.dtype"),
    ),
}
_MAIN_DISTILLATION: Fields = {
    ("diffusion/distillation.py", "DistillationConfig"): (
        *("distillation.teacher_steps", "distillation.num_steps", "distillation.round_steps"),
    ),
    ("config.py", "TrainingConfig"): (
        *("training.batch_size", "training.learning_rate", "training.device"),
    ),
}
_MAIN_EVALUATION: Fields = {
    ("evaluation/text_evaluation.py", "EvaluationConfig"): (
        *("protocol", "split", "num_samples", "seed", "batch_size", "mauve"),
    ),
    ("evaluation/translation_evaluation.py", "TranslationConfig"): ("num_sentences", "utility"),
    ("diffusion/sampling.py", "SamplingConfig"): ("num_steps", "score_temperature"),
}
_MAIN_PREPARATION: Fields = {
    ("data/prepare/config.py", "PrepareConfig"): (
        *("source", "target_source", "column", "target_column", "tokenizer", "vocab_size"),
        *("valid_share", "test_share", "max_documents", "workers", "seed"),
    ),
}


def train_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"one of {', '.join(PRESETS)} (default: small; for translation: multi30k)",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        type=argument(str),
        help="corpus: tales, markov, numerals (pairs), a prepared data set or its address (s3://…), a file "
        "or a folder",
    )
    _path(parser, "--out", "RUN", "run directory", required=True)
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=("always", "auto"),
        const="always",
        help="continue the run in --out; `auto`: start it if there is none, for commands that are "
        "repeated until they succeed (torchrun --max-restarts)",
    )
    add_number(
        parser, "--checkpoint", Steps, "step of the checkpoint to resume from; default: the last"
    )
    _path(
        parser,
        "--init-from",
        "RUN",
        "tune the model of another run, whose split of the text is kept",
    )
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="with --init-from: accept a text of which the other run's tokenizer does not know many words",
    )
    if not whole:
        return add_main_fields(parser, _MAIN_TRAINING)
    from cdcd.config import RunConfig

    return add_options(parser, RunConfig, leave_out={"distillation"})


def distill_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    _path(parser, "teacher", "RUN", "run directory of a diffusion model of text")
    _path(parser, "--out", "RUN", "run directory of the distilled model", required=True)
    parser.add_argument(
        "--data", metavar="PATH", type=argument(str), help="the text of RUN, where it is elsewhere"
    )
    if not whole:
        return add_main_fields(parser, _MAIN_DISTILLATION)
    from cdcd.config import RunConfig

    distilled = {"distillation", "training", "sampling"}
    others = {name for name in hints_of(RunConfig) if name not in distilled}
    return add_options(parser, RunConfig, leave_out=others)


def sample_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    _generation_options(parser, "samples for each text")
    _best_of(parser)
    add_playground_options(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", metavar="TEXT", default="", help="begin with this text")
    _path(prompts, "--prompt-file", "PATH", "one prompt a line")
    add_number(parser, "--length", Size, "tokens to show; default: all")
    parser.add_argument(
        "--ignore-eos", action="store_true", help="show what follows the end of the text"
    )
    _setting_options(parser, whole, _MAIN_SAMPLING)


def infill_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    _generation_options(parser, "samples for each text")
    _best_of(parser)
    add_playground_options(parser)
    parser.add_argument(
        "text",
        metavar="TEXT",
        help=r"a text with gaps: [5] stands for five tokens, [*] at the end for any number; \[5] is plain text",
    )
    _setting_options(parser, whole, _MAIN_SAMPLING)


def translate_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    _generation_options(
        parser,
        "samples of each line; of several, the one most like the others is taken",
        run="run or installed model of a translator, such as numerals, or hf:OWNER/NAME",
    )
    parser.add_argument(
        "--source",
        metavar="FILE|-",
        type=argument(str),
        default="-",
        help="text with a sentence a line; -: stdin, the default",
    )
    _path(parser, "--out", "FILE", "output file (default: stdout)")
    parser.add_argument(
        "--utility", choices=UTILITIES, default="bleu", help="measure of how alike samples are"
    )
    add_number(
        parser,
        "--score-weight",
        Weight,
        "points of the utility for each nat of denoising score a token, where one of several samples is taken",
        default=0.0,
    )
    parser.add_argument(
        "--long",
        choices=("split", "refuse", "skip"),
        default="split",
        help="lines that are longer than the model reads: split at the ends of sentences, refuse, or "
        "leave empty",
    )
    _setting_options(parser, whole, _MAIN_TRANSLATING, beam=True)


def info_options(parser: argparse.ArgumentParser) -> None:
    _path(parser, "run", "RUN", "run directory, installed model or hf:OWNER/NAME")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def plot_options(parser: argparse.ArgumentParser) -> None:
    _path(parser, "run", "RUN", "run directory, installed model or hf:OWNER/NAME")
    _path(parser, "--out", "FOLDER", "folder of the pictures (default: RUN; for models, this one)")
    parser.add_argument(
        "--prompt", metavar="TEXT", default="", help="prompt of the sample that is denoised"
    )
    add_number(parser, "--seed", Seed, "seed of the sample that is denoised", default=0)


def demo_options(parser: argparse.ArgumentParser) -> None:
    _path(parser, "--out", "RUN", "run directory of --train (default: runs/demo)")
    parser.add_argument("--train", action="store_true", help="train a small model here and show it")


def bench_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    if whole:
        from cdcd.cli import bench

        return bench.bench_options(parser)
    verbs = parser.add_subparsers(metavar="train|sample", required=True)
    for name, text in (
        ("train", "time training steps on random tokens"),
        ("sample", "time batches of samples of random weights"),
    ):
        verb = verbs.add_parser(name, help=text, description=f"{text.capitalize()}.")
        verb.add_argument(
            "--shape", metavar="NAME", help="a shape of docs/benchmarks.md or a preset"
        )
        verb.add_argument("--threads", metavar="INT", help="number of CPU threads")
        verb.add_argument("--json", action="store_true", help="print only the line of JSON")
        verb.add_argument("--out", metavar="FILE", help="write the JSON to this file too")
        add_main_fields(verb, _MAIN_TRAINING)
    return None


def data_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    verbs = parser.add_subparsers(metavar="prepare|verify", required=True, dest="data_verb")
    prepare = verbs.add_parser(
        "prepare", help="tokenise a corpus, or pairs to translate, into memory-mapped shards"
    )
    _path(prepare, "--out", "FOLDER", "data set", required=True)
    prepare.usage = "cdcd data prepare --source PATH --out FOLDER [--setting VALUE …]"
    prepare.set_defaults(parser=prepare)
    verify = verbs.add_parser("verify", help="compare every file with its checksum")
    text = "data set, or its address, such as s3://BUCKET/NAME: it is fetched first"
    verify.add_argument("out", metavar="FOLDER", type=argument(str), help=text)
    verify.set_defaults(parser=verify)
    if not whole:
        return add_main_fields(prepare, _MAIN_PREPARATION)
    from cdcd.data.prepare import PrepareConfig

    return add_options(prepare, PrepareConfig)


def evaluate_options(parser: argparse.ArgumentParser, *, whole: bool) -> None:
    _path(parser, "runs", "RUN", "runs; several of one model are averaged", nargs="+")
    parser.add_argument(
        "--judge",
        metavar="RUN|hf:NAME",
        type=argument(str),
        help="scores texts: an autoregressive run; a model of transformers by hf:NAME or FILE.gguf, or by "
        "its package: smollm2, gemma3-270m; stories15m:FOLDER, of stories that it wrote the exact one",
    )
    _path(parser, "--baseline", "RUN", "autoregressive baseline")
    parser.add_argument(
        "--likelihood",
        action="store_true",
        help="likelihood of held-out text under language models, without samples or a judge",
    )
    check = "judge documents exactly: molecules, chess, chorales, quatrains, dialogues, tales"
    parser.add_argument("--check", metavar="NAME", type=argument(str), help=check)
    parser.add_argument(
        "--data", metavar="PATH", type=argument(str), help="the runs' text, if it has moved"
    )
    for name, text in (
        (
            "--sweep",
            "sampling settings to sweep; several make a grid, of which each model takes its own",
        ),
        ("--baseline-sweep", "the baseline's settings (default for texts: nucleus=0.8,0.9,0.95,1)"),
    ):
        parser.add_argument(
            name, metavar="NAME=VALUE,VALUE", action="append", default=[], help=text
        )
    _path(parser, "--out", "FOLDER", "default: RUN/evaluation")
    _device_options(parser)
    translations = parser.add_argument_group("for translations")
    _path(translations, "--source", "FILE", "your own test set, one sentence a line")
    _path(translations, "--reference", "FILE", "its translations")
    translations.add_argument(
        "--counts",
        metavar="INT,INT",
        type=_counts,
        default=argparse.SUPPRESS,
        help="numbers of samples for each sentence that minimum Bayes-risk decoding chooses from",
    )
    if not whole:
        return add_main_fields(parser, _MAIN_EVALUATION)
    return _evaluation_settings(parser, translations)


def _evaluation_settings(parser: argparse.ArgumentParser, translations: Any) -> None:
    from cdcd.evaluation.likelihood import LikelihoodConfig
    from cdcd.evaluation.text_evaluation import EvaluationConfig
    from cdcd.evaluation.translation_evaluation import TranslationConfig

    of_texts = set(hints_of(EvaluationConfig))
    of_both = of_texts & set(hints_of(TranslationConfig))
    add_options(parser, EvaluationConfig)
    names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(of_both))
    translations.description = f"Also {names}."
    add_options(translations, TranslationConfig, leave_out={"counts", *of_texts})
    likelihoods: Any = parser.add_argument_group("for --likelihood", "Also --self-conditioning.")
    # It is a setting of sampling, too.
    shared = {"self_conditioning", *of_texts}
    add_options(likelihoods, LikelihoodConfig, leave_out=shared)
    _all_decoders(parser)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(argument(int)(count) for count in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not INT,INT, such as 1,10") from None


# Parts


def _path(parser: Any, name: str, metavar: str, text: str, **more: Any) -> None:
    parser.add_argument(name, metavar=metavar, type=argument(Path), help=text, **more)


def _generation_options(
    parser: argparse.ArgumentParser, num_samples: str, run: str = "run, model or hf:OWNER/NAME"
) -> None:
    """Adds the run, what is drawn of it and where."""
    _path(parser, "run", "RUN", run)
    add_number(parser, "--num-samples", Repeats, num_samples, default=1)
    add_number(parser, "--seed", Seed, "seed of the noise", default=0)
    add_number(parser, "--batch-size", Batch, "samples at a time", default=64)
    add_number(parser, "--checkpoint", Steps, "step of the checkpoint; default: the last")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _device_options(parser)


def _best_of(parser: argparse.ArgumentParser) -> None:
    text = "samples drawn for each that is shown, the one with the best denoising score"
    add_number(parser, "--best-of", Repeats, text, default=1)


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to run on"
    )
    dtypes = ("auto", "float32", "float64", "bfloat16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="precision")
    parser.add_argument(
        "--compile",
        choices=COMPILE_MODES,
        default="auto",
        help="network calls of diffusion models: captured as a CUDA graph on a GPU (auto), "
        "compiled (on), both (graphs: slow to start, then fastest) or neither (off)",
    )
    parser.add_argument(
        "--decoder",
        choices=DECODERS,
        default=argparse.SUPPRESS,
        help="decoder of a diffusion model (default: the run's)",
    )


def _setting_options(
    parser: argparse.ArgumentParser, whole: bool, main: Fields, *, beam: bool = False
) -> None:
    if whole:
        _all_decoders(parser, beam=beam)
    else:
        add_main_fields(parser, main)


def _all_decoders(parser: argparse.ArgumentParser, *, beam: bool = False) -> None:
    """Adds the settings of every decoder; one that several have is added once."""
    from cdcd.config import BeamConfig, DecodingConfig, MaskPredictConfig
    from cdcd.diffusion.masked import UnmaskingConfig
    from cdcd.diffusion.sampling import SamplingConfig

    add_options(parser, SamplingConfig)
    groups: list[tuple[str, type, list[str]]] = [
        ("of --decoder mask-predict", MaskPredictConfig, ["temperature"]),
        ("of autoregressive models", DecodingConfig, ["nucleus"]),
        ("of masked models", UnmaskingConfig, ["num_steps", "temperature", "nucleus"]),
    ]
    if beam:
        groups.append(("of beam search, the default of autoregressive models", BeamConfig, []))
    for title, settings, shared in groups:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in shared)
        note = (
            f"{named} {'is one' if len(shared) == 1 else 'are some'} of them." if shared else None
        )
        group: Any = parser.add_argument_group(title, note)
        add_options(group, settings, leave_out=shared)
