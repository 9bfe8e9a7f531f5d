"""The examples run, and what they train comes close to what is exactly known."""

import importlib.util
import json
from types import ModuleType, SimpleNamespace

import pytest
from paths import ROOT

from cdcd.languages import chorales

NOTEBOOK = json.loads((ROOT / "examples" / "markov_chain.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def load_example(name: str) -> ModuleType:
    """Imports an example from its file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_paper_in_100_lines_comes_near_the_oracle(capsys):
    """An untrained network is 0.4 to 2 nats above the oracle; one that cheats is below it."""
    example = load_example("cdcd_in_100_lines")
    gaps, excess_nll, error = example.main(["--steps", "150", "--sampling-steps", "30"])
    assert all(-0.005 < gap < 0.15 for gap in gaps[:-1])
    assert -0.005 < gaps[-1] < 0.3
    assert abs(excess_nll) < 0.3
    assert error < 0.03
    assert capsys.readouterr().out.count("\n") == 11


def test_a_network_of_ones_own_learns_the_chain(capsys):
    """The samples of an untrained network are 0.6 nats a token worse than data."""
    samples, data = load_example("your_own_network").main(["--steps", "120"])
    assert abs(samples - data) < 0.3
    assert capsys.readouterr().out.startswith("exact NLL")


def test_the_notebook_shows_what_it_says(monkeypatch, capsys):
    """Its cells run one after another; an untrained model is a nat a word worse than the language."""
    matplotlib = pytest.importorskip("matplotlib", reason="the notebook draws")
    matplotlib.use("Agg")
    names = {}
    for number, cell in enumerate(CODE):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert abs(names["nlls"][0.9] - float(names["exact"])) < 0.15
    assert abs(names["nlls"][1.0] - float(names["exact"])) < 0.4
    assert (names["frequencies"] - names["chain"].transitions).abs().max() < 0.2
    exact = [float(names["joint"][pair]) for pair in names["pairs"]]
    assert sum(abs(a - b) for a, b in zip(names["shares"], exact, strict=True)) / 2 < 0.15
    levels = names["levels"]
    assert levels[0] == pytest.approx(0.3)
    assert levels[-1] == pytest.approx(20)
    assert "half of the steps lie between" in capsys.readouterr().out


def test_the_notebook_is_kept_with_its_outputs():
    """As a person sees it before running it: pictures, no errors, and small."""
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in CODE] == [*range(1, len(CODE) + 1)]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 4
    assert all(output.get("name") != "stderr" for output in outputs)
    assert len(json.dumps(NOTEBOOK)) < 200_000


def test_a_chorale_that_keeps_all_rules_is_chosen_and_written(monkeypatch, tmp_path, capsys):
    """Of samples that are no chords, that break rules and that keep all, the last is taken."""
    example = load_example("chorale")
    crossed = chorales.write([[67, 72, 64, 48]] * 2)
    right = chorales.write([[72, 67, 64, 48], [71, 67, 62, 55]])
    asked = []

    class Model:
        def infill_canvas(self, text: str) -> str:
            asked.append(text)
            return text

        def generate(self, canvas: str, **options: object) -> list[SimpleNamespace]:
            return [SimpleNamespace(text=text) for text in ("S72 A67", crossed, right)]

    monkeypatch.setattr(example.cdcd, "load", lambda _: Model())
    text = example.main(["x", "--soprano", "72 71", "--out", str(tmp_path / "new" / "tune")])
    assert text == right
    assert asked == [" ".join(["S72 [3] S71 [3]"] * 16)]
    assert (tmp_path / "new" / "tune.mid").read_bytes() == chorales.to_midi(right)
    assert (tmp_path / "new" / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert "whole chords, in ranges, no crossing, no parallels" in capsys.readouterr().out
