"""The examples run, and what they train comes close to what is exactly known."""

import importlib.util
from types import ModuleType

from paths import ROOT


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
