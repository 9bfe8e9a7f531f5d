"""The judge of an evaluation, by its name: a run, a model that others have trained, or a language itself."""

from typing import Any

from cdcd.data.tokenizers import Tokenizer, tokenizer_hash
from cdcd.evaluation.external_judges import PACKAGES, HuggingFaceReader, is_external
from cdcd.evaluation.judge import Judge, RunReader
from cdcd.evaluation.story_judge import StoryJudge
from cdcd.files import expanded
from cdcd.inference.load import load
from cdcd.inference.names import installed_models
from cdcd.inference.text_model import AutoregressiveTextModel
from cdcd.languages.story_model import load_stories
from cdcd.networks.precision import choose_device

STORIES = "stories15m:"
UNKNOWN = "unknown"
NAMES = ("hf:NAME", "FILE.gguf", f"{STORIES}FOLDER", *PACKAGES)
"""The names of judges that are no runs."""


def load_judge(
    name: str, tokenizer: Tokenizer, length: int, *, device: str = "auto", dtype: str = "auto"
) -> Judge:
    """Loads a judge by its name, a run or one of `NAMES`, for texts of `length` tokens."""
    if is_external(name):
        reader = HuggingFaceReader(name, choose_device(device))
        return Judge(name, reader, tokenizer, reader.batch_size(length))
    if name.startswith(STORIES):
        folder = expanded(name.removeprefix(STORIES))
        model, story_tokenizer = load_stories(folder, device=choose_device(device))
        return StoryJudge(name, model, story_tokenizer, tokenizer)
    if not expanded(name).exists() and name not in installed_models():
        raise ValueError(
            f"the judge {name} does not exist; train one with: cdcd train --model autoregressive "
            f"--data.split judge, or give {', '.join(NAMES)}"
        )
    model = load(name, device=device, dtype=dtype)
    if not isinstance(model, AutoregressiveTextModel):
        raise ValueError(
            f"the judge {name} is a {model.config.model} model; train one with: "
            f"cdcd train --model autoregressive --data.split judge"
        )
    if tokenizer_hash(model.tokenizer) != tokenizer_hash(tokenizer):
        return Judge(name, RunReader(model), tokenizer)
    if model.length < length:
        raise ValueError(
            f"the judge {name} reads sequences of {model.length} tokens, the generator writes {length}; "
            f"train the judge with --data.length {length}"
        )
    return Judge(name, RunReader(model))


def about_external(name: str) -> dict[str, Any] | None:
    """Returns what a report says of a judge that is no run; None of a run.

    Nobody knows which text an external model has seen, so it is not known to be disjoint.
    """
    about = None
    if is_external(name):
        about = "a model of transformers, whose training text is unknown"
    if name.startswith(STORIES):
        about = "a model of stories: of those that it wrote, the true probability"
    return about and {"name": name, "about": about, "disjoint": UNKNOWN, "shared": None}
