"""Command lines: right ones of every verb, with odd values for some of all its options."""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tiny import tiny_options

from cdcd.cli.verbs import build_parser
from cdcd.settings import bounds_of, hints_of

LONG = 100_000
NUMBERS = [
    *(
        "0",
        "-0",
        "1",
        "2",
        "3",
        "-1",
        "0.5",
        "-0.5",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e-300",
        "1e300",
    ),
    *(
        "1e-7",
        "1e7",
        "-1e300",
        "99999999999",
        "-99999999999",
        "9" * 400,
        "9" * 5_000,
        "1e3",
        "0x10",
    ),
    *("1_0", "٣", "１", "1,2", " 1", "1e400", "5e-324", "0.999999999"),
]
TEXTS = [
    *(
        "",
        " ",
        "x",
        "none",
        "None",
        "true",
        "false",
        "auto",
        "é",
        "a b",
        "--",
        "-",
        "-x",
        "=",
        "a=b",
    ),
    *(
        "\x1b[31mred",
        "\x07",
        "\r",
        "\n",
        "a\nb",
        "\u202egnp",
        "\u2066",
        "\udcff",
        "\U0001f600",
        "{}",
    ),
    *("x" * LONG, "a " * (LONG // 2), "é" * LONG, "%s %d", "{place}", "null", "[]", "[0]", "[5]"),
    *("[99999999999]", "[-1]", r"\[5]", "[5][5]", "Mia [3] Tom", "Mia", "Mia zzz", "num_steps=2"),
    *("num_steps=1,x", "nucleus=0", "=1,2", "en-de", "table1", "tiny", "demo", "numerals", "bytes"),
    *(
        "words",
        "sentencepiece",
        "text",
        "0",
        "cpu",
        "cuda",
        "bfloat16",
        "on",
        "mask-predict",
        "hf:",
    ),
]
PATHS = [
    *("run", "baseline", "translator", "translating_baseline", "set", "pairs/set", "unfinished"),
    *(
        "folder",
        "link",
        "dangling",
        "loop",
        "absent",
        "absent/absent",
        "run/config.json",
        "empty.txt",
    ),
    *("text.txt", "latin1.txt", "zeros.txt", "escapes.txt", "long.txt", "rows.jsonl", "rows.csv"),
    *(
        "lines.en",
        "lines.de",
        "corpus.txt",
        ".",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
        "a" * 300,
    ),
    *(
        "run/checkpoints",
        "new",
        "pipe",
        "tales",
        "markov",
        "numerals",
        "run/../run",
        "hf:x:y",
        "\udcff",
    ),
]
READ_ONCE = ("--source", "--reference", "--prompt-file")
"""Options whose text is read once: a user may pass what has no end, and then waits for it."""
HARMLESS = {
    *("seed", "split_seed", "checkpoint", "keep_checkpoints", "log_every", "validate_every"),
    *("checkpoint_every", "warmup_steps", "decay_steps", "patience", "vocab_size", "batch_size"),
    *(
        "accumulate",
        "width",
        "hidden",
        "num_heads",
        "dim",
        "top_k",
        "shard_tokens",
        "tokenizer_bytes",
    ),
}
"""Whole numbers that may be large: they cost no work, or memory that is bounded."""
MOST_WORK = 8

TINY_SAMPLING = ["--device", "cpu", "--num-steps", "2"]
TINY_EVALUATION = [*TINY_SAMPLING, "--num-samples", "4", "--mauve", "none"]
PREPARE = ["data", "prepare", "--out", "new", "--source"]
RIGHT = [
    *(["train", "--out", "new", *tiny_options(changes)] for changes in (
        {}, {"model": "autoregressive"}, {"model": "masked"}, {"task": "translation"},
        {"data.source": "set"},
        {"task": "translation", "data.source": "pairs/set", "data.languages": "en-de"},
    )),
    ["train", "--resume", "--out", "run", "--training.steps", "7"],
    ["train", "--resume", "auto", "--out", "run", *tiny_options()],
    ["train", "--init-from", "run", "--out", "new", *tiny_options()],
    *(["sample", run, "--device", "cpu"] for run in ("run", "baseline", "masked")),
    ["sample", "run", *TINY_SAMPLING, "--prompt", "One sunny day", "--json"],
    ["sample", "run", *TINY_SAMPLING, "--decoder", "mask-predict"],
    ["sample", "run", *TINY_SAMPLING, "--best-of", "2"],
    ["infill", "run", "One [3] day", *TINY_SAMPLING],
    ["infill", "baseline", "One [3] day"],
    ["infill", "masked", "One [3] day", *TINY_SAMPLING, "--order", "confidence"],
    *(["translate", run, "--source", "lines.en", "--device", "cpu"]
      for run in ("translator", "translating_baseline")),
    ["info", "run"],
    ["info", "translator", "--json"],
    ["plot", "baseline", "--out", "new"],
    ["evaluate", "run", "--judge", "baseline", *TINY_EVALUATION],
    ["evaluate", "run", "--judge", "baseline", "--baseline", "baseline", *TINY_EVALUATION],
    ["evaluate", "run", "--likelihood", "--num-samples", "4", "--num-levels", "2", "--device", "cpu"],
    ["evaluate", "run", "--check", "tales", "--num-samples", "4", *TINY_SAMPLING],
    ["evaluate", "translator", "--num-sentences", "2", *TINY_SAMPLING],
    *(["export", run, "--out", "new", "--weights", "int8", "--device", "cpu"] for run in ("run", "translator")),
    ["models", "--json"],
    *([*PREPARE, source, "--tokenizer", "words", "--workers", "1"]
      for source in ("text.txt", "rows.jsonl", "rows.csv")),
    [*PREPARE, "pairs/a.en", "--target-source", "pairs/a.de.xz", "--tokenizer", "bytes", "--workers", "1"],
    *(["data", "verify", name] for name in ("set", "pairs/set")),
    ["reproduce", "table1", "--out", "new", "--list"],
    ["reproduce", "figure5", "--out", "new", "--dry-run"],
    *([verb, "--help"] for verb in ("train", "sample", "infill", "evaluate")),
    ["--version"],
]  # fmt: skip
REFUSED = [["demo", "--out", name] for name in ("run", "text.txt", "loop", "")]
"""Commands that are not changed, because they would do minutes of work."""
FIXED = {"reproduce": {"--list", "--dry-run", "table1", "figure5"}}
"""Options that are never left out or changed: without them a command does hours of work."""


@cache
def options_of(verb: str, second: str = "") -> list[argparse.Action]:
    """Returns all options of a verb, and of the verb below it."""
    parser = build_parser([verb])
    for name in (verb, second):
        below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if below and name in below[0].choices:
            parser = below[0].choices[name]
    return [action for action in parser._actions if action.option_strings]


@cache
def _bounds() -> dict[str, Any]:
    """Returns the bounds of all settings by the last part of their names."""
    from cdcd.settings import Settings

    def below(cls: type) -> list[type]:
        return [cls, *(inner for each in cls.__subclasses__() for inner in below(each))]

    hints = [item for cls in below(Settings)[1:] for item in hints_of(cls).items()]
    return {name: bounds_of(hint) for name, hint in hints if bounds_of(hint)}


def is_bounded(option: str, value: str) -> bool:
    """Returns whether a value costs little work, and no device: it is refused, small or harmless."""
    if (option == "--out" and value.startswith("/")) or (
        option in READ_ONCE and value in ("pipe", "/dev/zero")
    ):
        return False
    if option.endswith("compile") and value in ("on", "graphs"):
        return False  # Compilers take their time.
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    try:
        number = int(value)
    except ValueError:
        return True
    if name in HARMLESS or number <= MOST_WORK:
        return True
    bounds = _bounds().get(name)
    return bounds is not None and bool(bounds.broken_by(number))


def values_for(action: argparse.Action) -> list[str]:
    """Returns odd values of one option."""
    option = action.option_strings[0]
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    bounds = _bounds().get(name)
    ends = [] if bounds is None else [bounds.least, bounds.most, bounds.least - 1, bounds.most + 1]
    choices = list(map(str, action.choices or ()))
    values = [*NUMBERS, *TEXTS, *PATHS, *choices * 8, *map(str, ends * 4)]
    return [value for value in values if is_bounded(option, value)]


def command_lines() -> st.SearchStrategy[list[str]]:
    """Returns right command lines with up to three changes."""
    return st.sampled_from([*RIGHT, *REFUSED]).flatmap(_changed)


def _changed(right: Sequence[str]) -> st.SearchStrategy[list[str]]:
    verb, second = right[0], right[1] if len(right) > 1 else ""
    if right in REFUSED:
        return st.just([*right])
    if verb.startswith("-"):
        return st.sampled_from(TEXTS).map(lambda text: [*right, text])
    fixed = FIXED.get(verb, set())
    options = [each for each in options_of(verb, second) if each.option_strings[0] not in fixed]
    changes = st.one_of(
        st.sampled_from(options).flatmap(_with_value),
        st.sampled_from(options).flatmap(_with_value),
        st.sampled_from(options).map(_without_value),
        st.sampled_from(range(1, len(right))).map(lambda i: _replaced(i, fixed)),
        st.sampled_from(range(1, len(right))).flatmap(lambda i: _other(i, right)),
    )
    return st.lists(changes, min_size=1, max_size=3).map(lambda all_: _apply(right, all_))


Change = Callable[[list[str]], list[str]]


def _with_value(action: argparse.Action) -> st.SearchStrategy[Change]:
    option = action.option_strings[0]
    if action.nargs == 0:
        return st.just(lambda words: [*words, option])
    values = st.sampled_from(values_for(action))
    return values.map(lambda value: lambda words: [*words, f"{option}={value}"])


def _without_value(action: argparse.Action) -> Change:
    return lambda words: [*words, action.option_strings[0]]


def _replaced(index: int, fixed: set[str]) -> Change:
    """Leaves a word out."""
    return lambda words: [
        word for i, word in enumerate(words) if i != index or word in fixed or _is_tiny(words, i)
    ]


def _other(index: int, right: Sequence[str]) -> st.SearchStrategy[Change]:
    """Puts another text or path in the place of a word that is no option and no tiny setting."""
    is_kept = right[index].startswith("-") or right[0] in FIXED or _is_tiny(right, index)
    odd = [] if is_kept else [*TEXTS, *PATHS]
    values = [value for value in odd if is_bounded(right[index - 1], value)] or [right[index]]
    return st.sampled_from(values).map(
        lambda value: lambda words: [*words[:index], value, *words[index + 1 :]]
    )


def _is_tiny(words: Sequence[str], index: int) -> bool:
    """Returns whether a word belongs to a setting that keeps the work small."""
    pair = words[max(index - 1, 0) : index + 1]
    return any("." in word or word.startswith("--num-") or word == "--preset" for word in pair)


def _apply(right: Sequence[str], changes: Sequence[Change]) -> list[str]:
    words = list(right)
    for change in changes:
        words = change(words)
    # Two changes together can take a fixed option away.
    kept = FIXED.get(right[0], set()) & {*right}
    return words if kept <= {*words} else list(right)
