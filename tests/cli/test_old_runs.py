"""Runs made by an old commit load, answer as they did, and train on as they did."""

import json
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny import cdcd_main, metrics

from cdcd.config import MaskPredictConfig, read_config
from cdcd.diffusion.sampling import SamplingConfig

OLD = Path(__file__).parents[1] / "fixtures" / "runs_of_428b84c"
ASKED = json.loads((OLD / "questions.json").read_text())
ANSWERS = json.loads((OLD / "answers.json").read_text())


def copied(name: str, to: Path, sampling: dict | None = None) -> Path:
    """Returns a copy of an old run, with other sampling settings in its configuration."""
    run = shutil.copytree(OLD / name, to / name)
    described = json.loads((run / "config.json").read_text())
    described["config"]["sampling"] |= sampling or {}
    (run / "config.json").write_text(json.dumps(described))
    return run


@pytest.mark.parametrize(
    "question", ANSWERS["answers"], ids=lambda q: f"{q['run']} {q['options']} {q.get('sampling')}"
)
def test_an_old_run_gives_the_same_tokens(question, tmp_path, capsys):
    run = copied(question["run"], tmp_path, question.get("sampling"))
    options = shlex.split(question["options"])
    if question["command"] == "translate":
        options += ["--source", OLD / "sources.txt"]
    assert cdcd_main(question["command"], run, *options, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed.get("samples") or printed["translations"]) == question["answer"]


@pytest.mark.parametrize("name", ASKED["runs"])
def test_an_old_run_goes_on_with_the_same_losses(name, tmp_path):
    run, steps = copied(name, tmp_path), ASKED["runs"][name]["steps"]
    more = ["--training.steps", steps + ASKED["more_steps"]]
    assert cdcd_main("train", "--resume", "--out", run, *more) == 0
    rows = [row for row in metrics(run) if row["step"] > steps]
    for row, old in zip(rows, ANSWERS["resumed"][name], strict=True):
        assert {n: row[n] for n in old} == pytest.approx(old, rel=1e-3)


@pytest.mark.parametrize("name", ASKED["runs"])
def test_an_old_run_is_described(name, capsys):
    """The validation loss of an old run is told at fixed noise levels: `compared` in its metrics."""
    last = [row for row in metrics(OLD / name) if "compared" in row][-1]
    assert cdcd_main("info", OLD / name) == 0
    printed = capsys.readouterr().out
    assert f"{last['step']:,}" in printed
    assert f"{last['compared']:.5g}" in printed


def test_an_earlier_configuration_is_understood():
    """Mask-predict decoding was a solver that was called settle, with settings of its own in `sampling`."""
    earlier = {"solver": "settle", "num_steps": 9, "settle_temperature": 0.5, "settle_lengths": 3}
    config = read_config({"sampling": earlier | {"score_temperature": 0.7}})
    assert config.decoder == "mask-predict"
    assert config.mask_predict == MaskPredictConfig(num_rounds=9, temperature=0.5, num_lengths=3)
    assert config.sampling == SamplingConfig(num_steps=9, score_temperature=0.7)
    other = read_config({"sampling": earlier | {"solver": "heun"}})
    assert (other.decoder, other.sampling.solver) == ("ode", "heun")
    assert read_config(asdict(config)) == config
