"""What is shipped: the models in models/, their cards, the two wheels, and the demo that shows them."""

import re
import subprocess
import sys
import tomllib
import zipfile
from io import StringIO

import pytest
from paths import ROOT
from rich.console import Console
from tiny import cdcd_main

from cdcd.cli import demo
from cdcd.cli.verbs import VERBS
from cdcd.evaluation.card import read_facts
from cdcd.files import file_hash
from cdcd.inference.names import installed_models
from cdcd.training.packed_model import PACKED, PackedModel

MODELS = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))
FACTS = ROOT / "scripts" / "models.toml"
LARGEST_FILE, LARGEST_ALL = 70_000_000, 200_000_000


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    monkeypatch.setenv("CDCD_MODELS", str(ROOT / "models"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_a_shipped_model_loads_and_its_card_says_the_truth(folder):
    model = PackedModel(folder)
    assert model.load().step == model.steps()[0]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert file_hash(folder / PACKED) in card
    facts = read_facts(FACTS, folder.name)
    for text in (facts.licence, facts.data, facts.limits, facts.summary):
        assert text in card
    assert "Not stated." not in card
    assert "Not measured yet." not in card
    assert re.search(r"\d \[[\d.]+, [\d.]+\]", card), "no interval"
    assert model.about == facts.about
    # A path is of one machine, and says who used it.
    assert "/" not in model.config.data.source


def test_what_is_shipped_is_small_enough():
    files = [path for path in (ROOT / "models").rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) <= LARGEST_FILE
    assert sum(path.stat().st_size for path in files) <= LARGEST_ALL


def test_examples_of_the_facts_are_commands():
    names = {verb.name for verb in VERBS}
    for name in tomllib.loads(FACTS.read_text(encoding="utf-8")):
        example = read_facts(FACTS, name).example
        verb = re.search(r"cdcd (\w+)", example)
        assert (verb and verb[1] in names) or example.startswith("python examples/"), example
        assert name in example


def test_the_wheel_of_the_library_is_small_and_has_no_models(tmp_path):
    pytest.importorskip("hatchling", reason="the extra dev is not installed")
    library, models = (wheel(folder, tmp_path) for folder in (ROOT, ROOT / "models"))
    assert library.stat().st_size < 1_000_000
    inside = zipfile.ZipFile(library).namelist()
    assert not [name for name in inside if name.endswith(".safetensors")]
    inside = set(zipfile.ZipFile(models).namelist())
    for folder in MODELS:
        expected = {"README.md", "config.json", PACKED}
        assert {f"cdcd_models/{folder.name}/{name}" for name in expected} <= inside
        assert any(name.startswith(f"cdcd_models/{folder.name}/tokenizer/") for name in inside)
    code = {name for name in inside if name.endswith(".py")}
    assert code == {"cdcd_models/__init__.py"}


def wheel(folder, out):
    """Builds the wheel of a folder, and returns its path."""
    target = out / folder.name
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    [path] = target.glob("*.whl")
    return path


def test_the_demo_shows_installed_models(shipped, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "installed_models", only("tales", "numerals"))
    text = shown("tales", "numerals")
    for part in ("Completions", "«One sunny day Mia»", "Filling gaps", "given beginning", "halb"):
        assert part in text
    # The end that was given is there, after what was written for it.
    assert "Who has the kite now? Mia.»" in " ".join(text.split())
    assert (tmp_path / "runs" / "denoising.png").read_bytes().startswith(b"\x89PNG")
    for command in ("cdcd models", "cdcd infill tales", "| cdcd translate numerals", "--train"):
        assert command in text


def only(*names):
    models = {path.name: path for path in MODELS}
    return lambda: {name: models[name] for name in names}


def shown(*names):
    console = Console(file=StringIO(), width=200)
    demo.show_installed(*names, console)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("is_active", [True, False])
def test_where_cdcd_is_not_on_the_path_the_first_command_puts_it_there(
    is_active, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(demo.shutil, "which", lambda name: "cdcd" if is_active else None)
    commands = demo.next_commands("tales", None, demo.STORIES["tales"])
    assert (commands[0] == "source .venv/bin/activate") == (not is_active)
    assert commands[-2:] == ["cdcd serve tales", "cdcd demo --train"]


def test_a_translator_need_not_be_installed(shipped, monkeypatch):
    monkeypatch.setattr(demo, "installed_models", only("tales"))
    text = shown("tales", None)
    assert "Translation" not in text
    assert "cdcd translate" not in text


@pytest.mark.parametrize(
    ("installed", "options", "trains"),
    [
        ((), [], True),
        (("tales",), [], False),
        (("tales",), ["--train"], True),
        (("tales",), ["--out", "here"], True),
        (("numerals",), [], True),
    ],
)
def test_the_demo_trains_where_it_must(installed, options, trains, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    called = []
    monkeypatch.setattr(demo, "installed_models", only(*installed))
    monkeypatch.setattr(demo, "show_demo", lambda out: called.append(("train", str(out))))
    monkeypatch.setattr(demo, "show_installed", lambda *names: called.append(("show", *names)))
    assert cdcd_main("demo", *options) == 0
    out = "here" if options[:1] == ["--out"] else "runs/demo"
    assert called == [("train", out) if trains else ("show", "tales", None)]


def test_models_of_the_repository_are_found_by_name(shipped):
    assert {path.name for path in MODELS} <= set(installed_models())
