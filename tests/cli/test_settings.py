"""Settings: every range with its message, settings without effect, configurations of earlier versions."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import pytest
from paths import ROOT

from cdcd.benchmarks.sample import SampleBenchConfig
from cdcd.benchmarks.train import TrainBenchConfig
from cdcd.cli.effects import effects
from cdcd.config import RunConfig, read_config
from cdcd.data.prepare import PrepareConfig
from cdcd.evaluation.text_evaluation import EvaluationConfig
from cdcd.evaluation.translation_evaluation import TranslationConfig
from cdcd.presets import PRESETS, preset
from cdcd.settings import (
    Bounds,
    Settings,
    bounds_of,
    convert,
    flatten,
    hints_of,
    override,
    refuse_without_effect,
)


@pytest.mark.parametrize(
    ("bounds", "allowed", "refused"),
    [
        (Bounds(2, 1_000), [2, 9, 1_000], {1: "at least 2", math.nan: "at least 2"}),
        (Bounds(2, 1_000), [], {1_001: "at most 1,000", math.inf: "at most 1,000"}),
        (Bounds(0, 1, without=(0,)), [1e-9, 1], {0: "above 0", -1: "above 0", 1.1: "at most 1"}),
        (Bounds(0, 1, without=(1,)), [0, 0.9], {-0.1: "at least 0", 1: "below 1", 2: "below 1"}),
        (
            Bounds(0.1, 2, also=(0,)),
            [0, 0.1],
            {0.05: "at least 0.1, or 0", -1: "at least 0.1, or 0"},
        ),
        (Bounds(1e-6, 1e6), [1.0], {0: "at least 1e-06", 2e6: "at most 1e\\+06"}),
    ],
)
def test_bounds(bounds, allowed, refused):
    @dataclass(frozen=True, kw_only=True)
    class Example(Settings, section="example"):
        x: Annotated[float, bounds] | None = None

    Example()
    for value in allowed:
        Example(x=value)
    for value, limit in refused.items():
        with pytest.raises(ValueError, match=rf"^example\.x is {value}, it must be {limit}$"):
            Example(x=value)


def all_settings(base=Settings):
    return [
        each
        for cls in base.__subclasses__()
        for each in (cls, *all_settings(cls))
        if cls.__module__.startswith("cdcd.")
    ]


NUMBERS = [
    (cls, name, hint)
    for cls in all_settings()
    for name, hint in hints_of(cls).items()
    if name != "counts"
    and {int, float}
    & {hint, *get_args(hint), *(a for arg in get_args(hint) for a in get_args(arg))}
]


def test_the_settings_are_found():
    benches = {TrainBenchConfig, SampleBenchConfig}
    evaluations = {EvaluationConfig, TranslationConfig}
    assert {RunConfig, PrepareConfig} | benches | evaluations <= set(all_settings())
    assert len(NUMBERS) > 80


@pytest.mark.parametrize(
    ("cls", "name", "hint"),
    [pytest.param(*row, id=f"{row[0].__name__}.{row[1]}") for row in NUMBERS],
)
def test_every_number_is_bounded_on_both_sides(cls, name, hint):
    """Also where the class has checks of its own."""
    bounds = bounds_of(hint)
    required = {"source": "x"} if cls is PrepareConfig else {}
    full = rf"^{cls.section}{name} is"
    for value in (bounds.least - 1, bounds.most * 2 + 1):
        with pytest.raises(ValueError, match=rf"{full} {value}, it must be (at|above|below)"):
            cls(**required, **{name: value})


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        *(
            (value, int)
            for value in (None, [], {}, True, "x", "9" * 5_000, 1.5, math.inf, math.nan)
        ),
        *((value, float) for value in (None, [], False, "inf", "nan", "", 10**400, "1e999")),
        *((value, bool) for value in (1, 0, None, "yes", [], {})),
        *((value, str) for value in (None, 1, [])),
        *((value, Literal["a", "b"]) for value in (None, [], {}, 1, "c")),
        ([], int | None),
    ],
)
def test_a_value_of_another_type_is_a_value_error(value, hint):
    with pytest.raises(ValueError, match=r"is not|is neither|unknown choice"):
        convert(value, hint)


@pytest.mark.parametrize(
    "value", [None, [], 1, "x", {"steps": None}, {"steps": "x"}, {"nested": {}}]
)
def test_a_damaged_section_of_a_configuration_is_a_value_error(value):
    for section in ("training", "sampling", "objective"):
        with pytest.raises(ValueError, match=r"is not|not a section|unknown setting"):
            read_config({section: value})


def test_an_empty_text_is_refused():
    with pytest.raises(ValueError, match=r"^data\.source is empty"):
        override(RunConfig(), {"data.source": ""})


# Settings without effect: a setting, changes with which it has one, and changes with which it has none.

TRANSLATION, AUTOREGRESSIVE = {"task": "translation"}, {"model": "autoregressive"}
MASKED = {"model": "masked"}
EFFECTS = [
    ("warp.temperature", {}, {"warp.train": False}),
    ("warp.num_bins", {"warp.train": False}, AUTOREGRESSIVE),
    ("objective.prefix_share", {}, {"objective.masking": "prefix"}),
    ("objective.prefix_length", {"objective.masking": "prefix"}, {"objective.masking": "random"}),
    ("objective.conditioning_dropout", {}, {"objective.masking": "none"}),
    ("objective.conditioning_dropout", TRANSLATION | {"objective.masking": "none"}, AUTOREGRESSIVE),
    ("objective.self_conditioned_share", {}, {"objective.self_conditioning": False}),
    ("embedding.l2_penalty", {"embedding.normalise": False}, {}),
    ("embedding.margin_penalty", {"embedding.normalise": False}, {}),
    ("embedding.l2_adapted", {"embedding.normalise": False, "embedding.l2_penalty": 1.0}, {}),
    ("network.time_units", {}, AUTOREGRESSIVE),
    ("network.width", AUTOREGRESSIVE, TRANSLATION),
    ("network.time_units", {}, MASKED),
    ("unmasking.order", MASKED, AUTOREGRESSIVE),
    ("decoding.top_k", AUTOREGRESSIVE, MASKED),
    ("sampling.num_steps", {}, MASKED),
    ("objective.low_discrepancy", MASKED, AUTOREGRESSIVE),
    ("objective.conditioning_dropout", {}, MASKED),
    ("objective.self_conditioning", {}, MASKED),
    ("seq2seq.width", TRANSLATION, {}),
    ("seq2seq.time_units", TRANSLATION, TRANSLATION | AUTOREGRESSIVE),
    ("training.label_smoothing", TRANSLATION | AUTOREGRESSIVE, TRANSLATION),
    ("beam.beam_size", TRANSLATION | AUTOREGRESSIVE, AUTOREGRESSIVE),
    ("training.momentum", {"training.optimiser": "muon"}, {}),
    ("decoding.top_k", AUTOREGRESSIVE, {}),
    ("data.num_documents", {}, {"data.source": "my.txt"}),
    ("data.num_documents", {"data.source": "numerals"} | TRANSLATION, {"data.source": "pairs"}),
    ("data.num_states", {"data.source": "markov"}, {}),
    ("data.vocab_size", {"data.source": "my.txt"}, {}),
    ("data.vocab_size", {"data.tokenizer": "sentencepiece"}, {"data.tokenizer": "bytes"}),
    ("data.tokenizer", {}, {"data.source": "{prepared}"}),
    ("data.vocab_size", {"data.source": "my.txt"}, {"data.source": "{prepared}"}),
    ("data.valid_share", {"data.source": "my.txt"}, {"data.source": "{prepared}"}),
]


@pytest.mark.parametrize(("name", "with_effect", "without"), EFFECTS)
def test_a_setting_without_effect_is_refused(tmp_path, name, with_effect, without):
    (tmp_path / "dataset.json").write_text("{}")

    def effects_with(changes):
        source = {n: v.format(prepared=tmp_path) for n, v in changes.items() if n == "data.source"}
        return effects(override(RunConfig(), changes | source))

    refuse_without_effect([name, "training.steps"], effects_with(with_effect))
    with pytest.raises(ValueError, match=f"^{name} has no effect here: it needs .*; leave it out$"):
        refuse_without_effect(["training.steps", name], effects_with(without))


def test_every_setting_in_the_table_exists():
    names = set(flatten(RunConfig()))
    sections = {name.split(".")[0] for name in names if "." in name}
    assert {name for _, _, listed in effects(RunConfig()) for name in listed} <= names | sections


# Configurations of earlier versions


REMOVED = ("data.extra_padding", "objective.self_conditioning_lag")


def as_json(config):
    values = {}
    for name, value in flatten(config).items():
        section, _, field = name.rpartition(".")
        (values.setdefault(section, {}) if section else values)[field] = value
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("name", PRESETS)
def test_removed_settings_load_where_they_did_nothing(name):
    config = preset(name)
    assert read_config(as_json(config)) == config
    values = as_json(config)
    for removed in REMOVED:
        section, field = removed.split(".")
        values[section][field] = 0.0
    assert read_config(values) == config


@pytest.mark.parametrize("removed", REMOVED)
def test_a_removed_setting_that_did_something_is_refused(removed):
    section, field = removed.split(".")
    values = as_json(RunConfig()) | {section: {field: 0.1}}
    with pytest.raises(ValueError, match=f"was trained with {removed} 0.1.*no longer has"):
        read_config(values)


FILED = sorted((ROOT / "results").rglob("*config.json"))


@pytest.mark.parametrize("path", FILED, ids=lambda path: str(path.relative_to(ROOT)))
def test_filed_configurations_load(path):
    values = json.loads(path.read_text(encoding="utf-8"))
    config = read_config(values.get("config", values))
    assert flatten(config)["training.steps"] == values.get("config", values)["training"]["steps"]
