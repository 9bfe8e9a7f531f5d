"""Packed models: the weights that sampling uses, few bits, names, and one line for whatever is wrong."""

import json
import re
import shutil

import pytest
import torch
from paths import ROOT
from safetensors.torch import load_file, save_file
from tiny import cdcd_main, contents, train_tiny

import cdcd
from cdcd.files import file_hash
from cdcd.inference.names import find_run, installed_models
from cdcd.training.checkpoint import RunDirectory, without_prefix
from cdcd.training.packed_model import (
    SCALE,
    PackedModel,
    model_tensors,
    open_run,
    pack,
    unpack,
    write_packed,
)
from cdcd.training.tensor_files import read_header
from models import pack_tiny

RUN = {"training.average_decay": 0.5, "data.layout": "stream"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run whose averaged weights are not the last ones, and a folder of models of it."""
    place = tmp_path_factory.mktemp("packed")
    train_tiny(place / "run", RUN)
    pack_tiny(place / "run", place / "models" / "tiny")
    pack_tiny(place / "run", place / "models" / "tiny8", "int8")
    return place


@pytest.fixture
def installed(place, monkeypatch, tmp_path):
    monkeypatch.setenv("CDCD_MODELS", str(place / "models"))
    monkeypatch.chdir(tmp_path)
    return place / "models"


@pytest.fixture
def copy(place, tmp_path):
    """A model that a test may damage."""
    return shutil.copytree(place / "models" / "tiny", tmp_path / "copy")


def texts(model):
    return model.complete(num_samples=3, seed=1, ignore_eos=True, num_steps=3)


# The weights


def test_the_averaged_weights_are_packed_and_the_optimiser_is_not(place):
    saved = RunDirectory(place / "run").load().weights
    packed = PackedModel(place / "models" / "tiny").load().weights
    average, last = without_prefix("average", saved), without_prefix("model", saved)
    name = "head.weight"
    expected = average[name].bfloat16().float()
    assert torch.equal(packed[f"model.{name}"], expected)
    assert not torch.equal(last[name].bfloat16().float(), expected)
    # Biases, gains and the warp are as they were.
    for key, tensor in model_tensors(saved).items():
        if tensor.ndim < 2 or key.startswith("warp."):
            assert torch.equal(packed[key], tensor), key
    assert {*packed} == {*model_tensors(saved)}
    files = {name for name, content in contents(place / "models" / "tiny").items() if content}
    assert files == {"README.md", "config.json", "model.safetensors", "tokenizer/words.json"}


def test_int8_is_the_nearest_of_255_steps_of_each_row():
    rows = torch.tensor([[1.0, -2.0, 0.3], [1e-3, 5e-4, -2e-4], [0.0, 0.0, 0.0]])
    tensors = {"model.matrix": rows, "model.bias": torch.tensor([0.123]), "warp.bins": rows}
    packed = pack(tensors, "int8")
    assert packed["model.matrix"].dtype == torch.int8
    assert torch.equal(packed["model.matrix"][:, 0], torch.tensor([64, 127, 0], dtype=torch.int8))
    restored = unpack(packed, tensors)
    scale = packed["model.matrix" + SCALE]
    assert torch.allclose(scale[:2], torch.tensor([2.0, 1e-3]) / 127)
    assert ((restored["model.matrix"] - rows).abs() <= scale[:, None] / 2 + 1e-9).all()
    for name in ("model.bias", "warp.bins"):
        assert torch.equal(restored[name], tensors[name])


@pytest.mark.parametrize(("name", "kind"), [("tiny", torch.bfloat16), ("tiny8", torch.int8)])
def test_a_matrix_takes_as_many_bytes_as_it_says(place, name, kind):
    header = read_header(place / "models" / name / "model.safetensors")
    assert header["model.head.weight"].dtype == kind
    assert header["model.head.bias"].dtype == torch.float32


def test_a_packed_model_can_be_packed_again_and_tuned(place, tmp_path):
    again = write_packed(open_run(place / "models" / "tiny"), tmp_path / "again", "bfloat16", {})
    assert again.weights_hash == PackedModel(place / "models" / "tiny").weights_hash
    tuned = train_tiny_from(place / "models" / "tiny", tmp_path / "tuned")
    first = RunDirectory(tuned).load(0).weights
    shipped = PackedModel(place / "models" / "tiny").load().weights
    assert torch.equal(first["model.head.weight"], shipped["model.head.weight"])
    # Before its first step the run has the very weights of the model, so it writes the same.
    ours = texts(cdcd.load(tuned, checkpoint=0))
    assert len(set(ours)) > 1
    assert texts(cdcd.load(place / "models" / "tiny")) == ours


def train_tiny_from(parent, out):
    assert (
        cdcd_main(
            *("train", "--preset", "demo", "--init-from", parent, "--out", out),
            *("--training.steps", 1, "--training.batch-size", 4, "--training.validate-every", 0),
            *("--training.valid-sequences", 4, "--training.checkpoint-every", 1),
        )
        == 0
    )
    return out


OLD_RUNS = sorted((ROOT / "tests" / "fixtures" / "runs_of_428b84c").glob("*_*/config.json"))


@pytest.mark.filterwarnings("ignore::cdcd.files.FileWarning")
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("config", OLD_RUNS, ids=lambda path: path.parent.name)
def test_every_kind_of_model_can_be_packed(config, kind, tmp_path):
    run = RunDirectory(config.parent)
    packed = write_packed(run, tmp_path / "model", kind, {}).load().weights
    for name, tensor in model_tensors(run.load().weights).items():
        # bfloat16 has 8 bits, int8 half a step of 127 to each side of the largest of a row.
        largest = tensor.abs().max() if tensor.ndim else tensor.abs()
        assert (packed[name] - tensor).abs().max() <= largest / 254 + 1e-12, name
    load = cdcd.load_translator if run.config.task == "translation" else cdcd.load
    assert load(tmp_path / "model").config.model == run.config.model


def test_settings_of_samples_can_be_others(place, tmp_path, capsys):
    out = tmp_path / "quick"
    export = ("export", place / "run", "--out", out, "--device", "cpu", "--set")
    assert cdcd_main(*export, "sampling.num-steps=2") == 0
    assert PackedModel(out).config.sampling.num_steps == 2
    capsys.readouterr()
    for setting, message in (
        ("network.width=8", "unknown setting of samples network.width"),
        ("sampling.num-steps=0", "num_steps is 0, it must be at least 1"),
        ("sampling", "it must be NAME=VALUE"),
    ):
        assert cdcd_main(*export, setting, "--replace") == 2
        assert message in capsys.readouterr().err
    assert PackedModel(out).config.sampling.num_steps == 2


def test_a_model_appears_with_its_card_or_not_at_all(place, tmp_path, capsys):
    export = ("export", place / "run", "--out", tmp_path / "new" / "model", "--device", "cpu")
    (tmp_path / "report.json").write_text("{}")
    assert cdcd_main(*export, "--report", tmp_path / "report.json") == 2
    assert "it has no rows" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert cdcd_main(*export) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


def test_only_a_model_is_replaced(place, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    assert cdcd_main("export", place / "run", "--out", tmp_path / "notes", "--replace") == 2
    assert "already exists: choose another --out" in capsys.readouterr().err
    assert (tmp_path / "notes" / "mine.txt").read_text() == "mine"
    model = shutil.copytree(place / "models" / "tiny", tmp_path / "model")
    assert cdcd_main("export", place / "run", "--out", model) == 2
    assert "already exists: replace it with --replace" in capsys.readouterr().err


# Names


def test_a_name_is_a_run_first_and_then_an_installed_model(installed, place, tmp_path):
    assert find_run("tiny") == installed / "tiny"
    # A folder of that name that holds no run does not hide the model; a run does.
    (tmp_path / "tiny").mkdir()
    assert find_run("tiny") == installed / "tiny"
    shutil.copytree(place / "run", tmp_path / "tiny", dirs_exist_ok=True)
    assert find_run("tiny").resolve() == tmp_path / "tiny"


def test_the_first_of_two_folders_counts(installed, place, monkeypatch, tmp_path):
    shutil.copytree(installed / "tiny8", tmp_path / "more" / "tiny")
    both = f"{installed}:{tmp_path / 'more'}"
    monkeypatch.setenv("CDCD_MODELS", both)
    assert installed_models()["tiny"] == installed / "tiny"


@pytest.mark.parametrize(
    "command",
    [
        ("sample", "tiny", "--num-steps", 2),
        ("infill", "tiny", "Mia was [5].", "--num-steps", 2),
        ("info", "tiny"),
        ("plot", "tiny", "--out", "pictures"),
        ("evaluate", "tiny", "--likelihood", "--num-samples", 4, "--num-levels", 2),
        ("evaluate", "tiny", "--check", "tales", "--num-samples", 4, "--num-steps", 2),
        ("models",),
    ],
    ids=lambda command: " ".join(map(str, command[:3])),
)
def test_a_name_stands_wherever_a_run_can(installed, command, capsys):
    before = contents(installed)
    assert cdcd_main(*command) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
    assert contents(installed) == before


def test_the_list_names_size_task_and_licence(installed, capsys):
    assert cdcd_main("models", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    size = sum(len(content or b"") for content in contents(installed / "tiny").values())
    assert rows["tiny"]["bytes"] == size
    assert (rows["tiny"]["task"], rows["tiny"]["licence"]) == ("text, diffusion", "MIT")
    assert rows["tiny8"]["example"] == "cdcd info tiny8"


def refusal(capsys, *command):
    assert cdcd_main(*command) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1), shown.err
    return shown.err


def test_an_unknown_name_gets_the_nearest_ones(installed, capsys):
    error = refusal(capsys, "sample", "tinny")
    assert "there is no run and no installed model tinny; did you mean tiny or tiny8?" in error
    assert "cdcd train --out tinny" in error


def test_without_models_it_is_said_how_to_install_them(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cdcd.inference.names._roots", list)
    assert "install them: pip install ./models" in refusal(capsys, "sample", "stories")
    assert cdcd_main("models") == 0
    assert "no model is installed" in capsys.readouterr().out


def test_a_language_that_no_translator_knows(installed, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CDCD_MODELS", str(tmp_path))
    shutil.copytree(installed / "tiny", tmp_path / "en-de")
    error = refusal(capsys, "translate", "en-fr")
    assert "no installed model translates en to fr; installed: en-de" in error


# Damage


def change(model, **changes):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def flip(model):
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def other_words(model):
    file = model / "tokenizer" / "words.json"
    file.write_text(file.read_text().replace("Mia", "Mio"))


def float32(model):
    """Writes weights of a type that no packed model has."""
    file = model / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)


def wider(model):
    config = json.loads((model / "config.json").read_text())["config"]
    config["network"]["width"] = 60_000
    change(model, config=config)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"model.safetensors is damaged or another file: .*its SHA-256 is {hash}, it should be"),
        (flip, r"model.safetensors is damaged or another file: .*its SHA-256 is {hash}, it should be"),
        (other_words, "words.json is damaged or another file: it does not match its checksum"),
        (float32, "of torch.float32, it must be of torch.bfloat16"),
        (wider, "is of another model size"),
        (lambda m: change(m, format=2, cdcd_version="9.0.1"), "written by cdcd 9.0.1 in format 2;"),
        (lambda m: change(m, format="1"), "its format is '1'"),
        (lambda m: change(m, weights="pickle"), "it must be bfloat16 or int8"),
        (lambda m: change(m, sha256=[]), "it has no sha256"),
        (lambda m: change(m, sha256={}), "no sha256 of tokenizer/words.json"),
        (lambda m: change(m, vocab_size=10**9), "vocab_size is 1000000000, it must be"),
        (lambda m: change(m, about="me"), "it has no about"),
        (lambda m: (m / "config.json").write_text("{"), "config.json is damaged: it is not JSON"),
        (lambda m: (m / "more").symlink_to("/etc"), "is a symbolic link that leads out of"),
    ],
)  # fmt: skip
def test_damage_is_one_line(copy, damage, message, capsys):
    damage(copy)
    error = refusal(capsys, "sample", copy)
    present = file_hash(copy / "model.safetensors")[:16]
    assert re.search(message.replace("{hash}", present), error), error
