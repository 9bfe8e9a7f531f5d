"""Systems of several kinds in one evaluation: each takes its own settings of a sweep, and has its rows."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from tiny import cdcd_main, tiny_config, train_tiny

from cdcd.evaluation.sweep import sweep_settings
from cdcd.evaluation.systems import System, jobs_of
from cdcd.inference.decoder_settings import decoder_settings

TALES = {"data.num_documents": 400, "data.valid_share": 0.5}


def system(kind: str) -> System:
    config = tiny_config({"model": kind})
    model = SimpleNamespace(settings=partial(decoder_settings, config))
    return System(kind, kind, model, config, "0")


BOTH = [system("diffusion"), system("masked")]


def rows(systems, *sweeps, base=None):
    jobs = jobs_of(systems, base or {}, sweep_settings(sweeps), [])
    return [(job.system.name, job.reported) for job in jobs]


def test_each_model_takes_its_own_settings_of_a_sweep():
    found = rows(BOTH, "score_temperature=1.0,0.9", "temperature=1.0,0.8", "num_steps=4")
    assert found == [
        ("diffusion", {"score_temperature": 1.0, "num_steps": 4}),
        ("diffusion", {"score_temperature": 0.9, "num_steps": 4}),
        ("masked", {"temperature": 1.0, "num_steps": 4}),
        ("masked", {"temperature": 0.8, "num_steps": 4}),
    ]


def test_settings_of_all_rows_too():
    base = {"order": "confidence", "score_temperature": 0.5}
    jobs = jobs_of(BOTH, base, [{}], [])
    assert [job.changes for job in jobs] == [{"score_temperature": 0.5}, {"order": "confidence"}]


def test_mask_predict_has_settings_of_its_own():
    found = rows(BOTH, "decoder=mask-predict", "num_rounds=3", "num_steps=2")
    assert found == [
        ("diffusion", {"decoder": "mask-predict", "num_rounds": 3}),
        ("masked", {"num_steps": 2}),
    ]


@pytest.mark.parametrize(
    ("systems", "sweep", "message"),
    [
        (BOTH, "top_k=3", "top_k is a setting of autoregressive sampling"),
        (BOTH, "tempreture=3", "unknown setting tempreture"),
        (BOTH, "temperature=-1", "temperature is -1"),
        (BOTH[:1], "temperature=1", "temperature is a setting of decoder mask-predict and"),
        (BOTH[1:], "score_temperature=1", "score_temperature is a setting of decoder ode, not of"),
    ],
)
def test_a_setting_that_no_model_has_is_refused(systems, sweep, message):
    with pytest.raises(ValueError, match=message):
        rows(systems, sweep)


def test_three_systems_in_one_report(tmp_path):
    for kind in ("diffusion", "masked", "autoregressive"):
        train_tiny(tmp_path / kind, TALES | {"model": kind})
    train_tiny(tmp_path / "judge", TALES | {"model": "autoregressive", "training.seed": 7})
    sweeps = ("--sweep", "score-temperature=1,0.9", "--sweep", "temperature=1")
    options = ("--num-samples", 8, "--num-steps", 2, "--mauve", "false", "--matches", "false")
    code = cdcd_main(
        "evaluate", tmp_path / "diffusion", tmp_path / "masked",
        "--baseline", tmp_path / "autoregressive", "--baseline-sweep", "nucleus=0.9",
        "--judge", tmp_path / "judge", "--out", tmp_path / "report", *sweeps, *options,
    )  # fmt: skip
    assert code == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    found = [(row["system"], row["settings"]) for row in report["rows"]]
    assert found == [
        ("data", {}),
        ("cdcd", {"score_temperature": 1.0}),
        ("cdcd", {"score_temperature": 0.9}),
        ("masked", {"temperature": 1.0}),
        ("baseline", {"nucleus": 0.9}),
    ]
