"""Settings: every range with its message, settings without effect, configurations of earlier versions."""

import json
import math
from types import SimpleNamespace

import pytest
from paths import ROOT

from cdcd.config import RunConfig, effects, read_config
from cdcd.presets import PRESETS, preset
from cdcd.settings import check_ranges, flatten, override, refuse_without_effect


@pytest.mark.parametrize(
    ("ranges", "allowed", "refused", "limit"),
    [
        ({"at_least": {2: ["x"]}}, [2, 9, None], [1, 1.9, math.nan], "be at least 2"),
        ({"positive": ["x"]}, [1e-9, None], [0, -1, math.nan], "be positive"),
        ({"not_negative": ["x"]}, [0, 3], [-1e-9, math.nan], "not be negative"),
        ({"share": ["x"]}, [0, 0.5, 1], [-0.1, 1.1, math.nan], "be between 0 and 1"),
        ({"inner_share": ["x"]}, [0.1, 0.9], [0, 1, math.nan], "be between 0 and 1"),
        ({"below_one": ["x"]}, [0, 0.9], [-0.1, 1, math.nan], "be at least 0 and below 1"),
        ({"above_zero": ["x"]}, [0.1, 1], [0, 1.1, math.nan], "be above 0 and at most 1"),
    ],
)
def test_ranges(ranges, allowed, refused, limit):
    for value in allowed:
        check_ranges(SimpleNamespace(x=value), **ranges)
    for value in refused:
        with pytest.raises(ValueError, match=rf"^x is {value}, it must {limit}$"):
            check_ranges(SimpleNamespace(x=value), **ranges)
        with pytest.raises(ValueError, match=rf"^data\.x is {value}, "):
            check_ranges(SimpleNamespace(x=value), "data", **ranges)


# Settings without effect: a setting, changes with which it has one, and changes with which it has none.

TRANSLATION, AUTOREGRESSIVE = {"task": "translation"}, {"model": "autoregressive"}
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
