"""A packed model of a tiny run, for tests of names, exports and cards."""

from pathlib import Path

from cdcd.evaluation.card import Facts, write_card
from cdcd.training.packed_model import PackedModel, Weights, open_run, write_packed


def pack_tiny(run: Path, out: Path, weights: Weights = "bfloat16") -> PackedModel:
    """Exports a run with a card, silently."""
    model = write_packed(open_run(run), out, weights, Facts(licence="MIT").about)
    write_card(model, Facts(licence="MIT"), device="cpu")
    return model
