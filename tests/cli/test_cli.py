"""Every verb of the command line, its options and its output."""

import dataclasses
import json
import re

import pytest
from forks import end_of, fork_cdcd
from tiny import cdcd_main, cdcd_process, contents, tiny_config, tiny_options, train_tiny

import cdcd
from cdcd.cli.info import own_settings, print_description
from cdcd.config import DecodingConfig, MaskPredictConfig, RunConfig
from cdcd.diffusion.masked import UnmaskingConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.inference.text_model import Generated, TextModel
from cdcd.settings import override
from cdcd.training.checkpoint import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"training.steps": 100, "training.checkpoint_every": 20, "training.log_every": 10}
    return train_tiny(tmp_path_factory.mktemp("cli") / "run", changes)


@pytest.fixture(scope="module")
def model(run):
    return cdcd.load(run)


# Verbs


def test_train_is_the_library(tmp_path, capsys):
    assert cdcd_main("train", "--out", tmp_path / "cli", *tiny_options()) == 0
    said = capsys.readouterr().out
    assert re.search(r"validation loss \d\.\d+; try: cdcd sample", said)
    assert re.search(r"step 4/6 .* tokens/s +\d+:\d\d:\d\d left\n", said)
    train_tiny(tmp_path / "python")
    assert RunDirectory(tmp_path / "cli").config == tiny_config()
    for part in ("checkpoints", "tokenizer", "config.json"):
        cli, python = tmp_path / "cli" / part, tmp_path / "python" / part
        if cli.is_file():
            described = [json.loads(file.read_text()) for file in (cli, python)]
            hashes = {each.pop("made_at") for each in described}
            assert len(hashes) == 2
            assert described[0] == described[1]
        else:
            assert contents(cli) == contents(python)


def test_sample_equals_python(run, model, capsys):
    options = ("--prompt", "One sunny day", "--num-samples", 3, "--seed", 5, "--num-steps", 12)
    assert cdcd_main("sample", run, *options, "--ignore-eos") == 0
    more = {"num_samples": 3, "num_steps": 12, "ignore_eos": True}
    texts = model.complete("One sunny day", seed=5, **more)
    assert not set(texts) & set(model.complete("One sunny day", seed=0, **more))
    assert capsys.readouterr().out == "".join(text + "\n" for text in texts)
    assert all(text.startswith("One sunny day") for text in texts)


def test_infill_equals_python(run, model, capsys):
    assert cdcd_main("infill", run, "Mia [3] home.", "--seed", 2, "--solver", "heun") == 0
    assert capsys.readouterr().out == model.infill("Mia [3] home.", seed=2, solver="heun") + "\n"


def test_text_is_printed_as_it_is(run, monkeypatch, capsys):
    """No markup, no emoji names, no tabs to spaces, no wrapping."""
    text = ":cat: [red]\t" + "long " * 50
    generated = [Generated(text, (3,), (False,), (0, 0))]
    monkeypatch.setattr(TextModel, "generate", lambda *_, **__: generated)
    assert cdcd_main("sample", run) == 0
    assert capsys.readouterr().out == text + "\n"


def test_json(run, model, capsys):
    options = ("--prompt", "Mia", "--num-samples", 2, "--score-temperature", 0.9, "--json")
    assert cdcd_main("sample", run, *options) == 0
    shown = json.loads(capsys.readouterr().out)
    expected = model.generate(model.prompt_canvas("Mia"), num_samples=2, score_temperature=0.9)
    assert shown["settings"] == {"score_temperature": 0.9}
    assert len(shown["samples"]) == 2
    for found, wanted in zip(shown["samples"], expected, strict=True):
        assert found["text"] == wanted.text == model.tokenizer.decode(found["tokens"])
        assert tuple(found["tokens"]) == wanted.tokens
        assert found["is_given"] == [True] + [False] * (len(wanted.tokens) - 1)


def test_prompt_file(run, capsys, tmp_path):
    prompts = ("Mia", "One sunny day", "Oscar was")
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ("--prompt-file", tmp_path / "prompts.txt", "--num-samples", 2)
    assert cdcd_main("sample", run, *options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(lines[i].startswith(prompts[i // 2]) for i in range(6))


def test_length_and_ignore_eos(run, capsys):
    for length in (1, 5, 24):
        assert cdcd_main("sample", run, "--json", "--ignore-eos", "--length", length) == 0
        [sample] = json.loads(capsys.readouterr().out)["samples"]
        assert len(sample["tokens"]) == len(sample["is_given"]) == length


def test_checkpoint(run, capsys):
    assert cdcd_main("sample", run, "--checkpoint", 80, "--seed", 1) == 0
    assert capsys.readouterr().out == cdcd.load(run, checkpoint=80).complete(seed=1)[0] + "\n"


def test_info(run, capsys):
    assert cdcd_main("info", run, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    parameters = sum(p.numel() for p in cdcd.load(run).model.parameters())
    assert shown["parameters"] == parameters
    assert shown["checkpoints"] == [60, 80, 100]
    assert shown["step"] == 100
    assert 0 < shown["valid_loss"] < 10
    assert shown["config"] == json.loads((run / "config.json").read_text())["config"]
    assert cdcd_main("info", run) == 0
    text = capsys.readouterr().out
    assert f"{parameters:,}" in text
    assert re.search(r"warp.num_bins +10\b", text)
    assert "settings that differ from the defaults" in text
    assert len(text.splitlines()) < 60


def test_info_shows_what_the_model_uses_and_changes(run, tmp_path, capsys):
    changes = {"model": "autoregressive", "training.beta2": 0.5, "warp.num_bins": 7}
    config = override(RunConfig(), changes | {"decoding.top_k": 3, "data.source": "\x1b[31m[red]"})
    assert own_settings(config) == {
        "model": "autoregressive",
        "data.source": "\x1b[31m[red]",
        "training.beta2": 0.5,
        "decoding.top_k": 3,
    }
    print_description({"run": str(run), "config": dataclasses.asdict(config)})
    text = capsys.readouterr().out
    assert r"\x1b[31m[red]" in text
    assert "\x1b" not in text


def test_plot(run, tmp_path, capsys):
    assert cdcd_main("plot", run, "--out", tmp_path / "a/b", "--prompt", "One sunny day") == 0
    names = ["training.png", "time_warping.png", "denoising.png"]
    paths = [tmp_path / "a/b" / name for name in names]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_plot_of_an_empty_text(run, tmp_path, monkeypatch):
    generate = TextModel.generate

    def empty(*arguments, ignore_eos=False, **more):
        generated = generate(*arguments, ignore_eos=ignore_eos, **more)
        return generated if ignore_eos else [Generated("", (), (), (0, 0))]

    monkeypatch.setattr(TextModel, "generate", empty)
    assert cdcd_main("plot", run, "--out", tmp_path) == 0
    assert (tmp_path / "denoising.png").stat().st_size > 5_000


# Options


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--([a-z][a-z0-9.-]*)", text))


def test_the_options_of_sample_are_the_fields_of_its_settings(capsys):
    assert cdcd_main("sample", "--help-all") == 0
    own = {"num-samples", "best-of", "seed", "batch-size", "checkpoint", "device", "dtype", "json"}
    own |= {
        "compile",
        "prompt",
        "prompt-file",
        "length",
        "ignore-eos",
        "help",
        "setting",
        "decoder",
        "change",
        "watch",
        "replay",
    }
    fields = {
        field.name.replace("_", "-")
        for settings in (SamplingConfig, MaskPredictConfig, DecodingConfig, UnmaskingConfig)
        for field in dataclasses.fields(settings)
    }
    assert options_in(capsys.readouterr().out) - own == fields


def test_the_options_of_train_and_distill_are_the_fields_of_a_run(capsys):
    shown = set()
    for verb in ("train", "distill"):
        assert cdcd_main(verb, "--help-all") == 0
        shown |= options_in(capsys.readouterr().out)
    fields = {
        f"{section}.{name}".replace("_", "-")
        for section, values in dataclasses.asdict(RunConfig()).items()
        if isinstance(values, dict)
        for name in values
    }
    assert {name for name in shown if "." in name} >= fields


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("sample", "x", "--num-step", 3), "--num-steps"),
        (("sample", "x", "--score_temperature", 1), "--score-temperature"),
        (("sample", "x", "--promt=a"), "--prompt"),
        (("train", "--out", "x", "--network.widht", 3), "--network.width"),
        (("plot", "x", "--promt", "a"), "--prompt"),
    ],
)
def test_an_unknown_option_names_the_nearest(capsys, arguments, nearest):
    assert cdcd_main(*arguments) == 2
    message = capsys.readouterr().err
    assert re.search(rf"unknown option \S+; did you mean {nearest}\?\n", message)
    assert message.count("\n") == 1


def test_an_unknown_verb_and_none(capsys):
    assert cdcd_main("smaple") == 2
    assert "sample" in capsys.readouterr().err
    assert cdcd_main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_settings_from_python_name_the_nearest(model):
    with pytest.raises(ValueError, match="unknown setting num_step; did you mean num_steps"):
        model.complete(num_step=3)
    with pytest.raises(ValueError, match=r"2\.5 is not a whole number"):
        model.complete(num_steps=2.5)


# A process of its own


def test_a_process(run, model):
    process = cdcd_process("sample", run, "--prompt", "Mia", "--seed", 3)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert out == model.complete("Mia", seed=3)[0] + "\n"


def test_a_mistake_in_a_process(tmp_path):
    process = fork_cdcd("sample", tmp_path / "absent", output=tmp_path / "output")
    assert end_of(process) == [2]
    errors = (tmp_path / "output").read_text()
    assert errors.startswith("cdcd sample: error: ")
    assert errors.count("\n") == 1
