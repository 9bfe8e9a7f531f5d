"""The types that a user's type checker sees; pyright checks this file, which is never run."""

from typing import assert_type

import cdcd
from cdcd.inference.text_model import TextModel
from cdcd.inference.translator import Translator


def complete_and_translate() -> None:
    """Loads models and uses them, as the README does."""
    model = cdcd.load("runs/demo")
    assert_type(model, TextModel)
    assert_type(model.complete("One sunny day", num_samples=4), list[str])
    translator = cdcd.load_translator("runs/numerals")
    assert_type(translator, Translator)
    assert_type(translator.translate(["Good morning."]), list[str])
