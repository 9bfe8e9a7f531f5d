"""Figure 7: what a model writes, beside the text that it was given a part of.

The texts are the first held-out ones in an order that a seed draws; none is chosen by its result.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.judge import split_texts
from cdcd.evaluation.texts import Texts, sample_texts
from cdcd.inference.text_model import TextModel
from cdcd.reproduction.measuring import held_out
from cdcd.reproduction.rows import Row

ABOUT = (
    "Completions and infillings by the model {training}, score temperature 0.9, guidance scale 1. The texts "
    "are held-out ones in an order drawn by a seed, not chosen. Prompts are bold."
)
MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


def complete(
    row: Row, model: TextModel, batch_size: int, prompts: Mapping[str, Any]
) -> dict[str, Any]:
    """Generates the missing part of held-out texts: their ends, or the middle of each."""
    has_gap, layout = prompts["protocol"] == "middle", model.config.data.layout
    if has_gap:
        tokens = held_out(model, **{**prompts, "protocol": "half"}).tokens
        given = Texts(tokens, middle(tokens))
        drawn = sample_texts(model, given, row.sampling, 0, batch_size)
    else:
        given = held_out(model, **prompts)
        drawn = sample_texts(model, given, row.sampling, 0, batch_size).counted(layout)
        given = given.counted(layout)
    originals, samples = (split_texts(texts, model.tokenizer) for texts in (given, drawn))
    behind = behind_gap(given, model.tokenizer) if has_gap else [""] * len(given)
    return {
        "texts": [
            {"before": before, "sample": sample, "after": after, "original": original}
            for (before, original), (_, sample), after in zip(
                originals, samples, behind, strict=True
            )
        ]
    }


def middle(tokens: Int[Tensor, "samples seq"]) -> Bool[Tensor, "samples seq"]:
    """Returns True in the middle half of each text, its end and padding aside."""
    length = ((tokens != PAD) & (tokens != EOS)).sum(1, keepdim=True)
    position = torch.arange(tokens.shape[1])
    return (position >= length // 4) & (position < length - length // 4)


def behind_gap(texts: Texts, tokenizer: Tokenizer) -> Iterator[str]:
    """Yields of each real text, to its end, what is behind its gap."""
    whole = split_texts(Texts(texts.tokens, torch.zeros_like(texts.is_generated)), tokenizer)
    for (before, missing), (text, _) in zip(split_texts(texts, tokenizer), whole, strict=True):
        yield text.removeprefix(before + missing)


def as_markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the samples of Figure 7 as markdown, by the kind of the row: completion, infilling."""
    lines = ["# Figure 7", "", ABOUT.format(training=_trainings(results))]
    for title, text in _titled(results):
        escaped = {name: value.translate(MARKUP) for name, value in text.items()}
        sample = f"{_bold(escaped['before'])}{escaped['sample']}{_bold(escaped['after'])}"
        lines += ["", f"## {title}", "", _one_line(sample), ""]
        lines += [f"Original: {_one_line(escaped['original'])}"]
    return "\n".join(lines) + "\n"


def as_text(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the samples of Figure 7 as plain text, prompts in « »."""
    lines = []
    for title, text in _titled(results):
        sample = f"«{text['before']}»{text['sample']}"
        sample += f"«{text['after']}»" if text["after"] else ""
        original = text["original"].rstrip()
        lines += [f"{title}\n", f"sample:   {sample.rstrip()}\n", f"original: {original}\n"]
    return "\n".join(lines)


def _trainings(results: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"`{each['training']}`" for each in results.values()))


def _titled(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for kind, result in results.items():
        texts: Sequence[Mapping[str, str]] = result["texts"]
        for number, text in enumerate(texts, 1):
            yield f"{kind.capitalize()} {number}", text


def _bold(text: str) -> str:
    """Returns a text in bold, white space around it left outside."""
    inner = text.strip()
    return text.replace(inner, f"**{inner}**") if inner else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
