"""Completions in the form of OpenAI's interface, so that programs written for it can call a model.

A prompt is continued; with a suffix, the gap between the two is filled. Diffusion has no left to right: a stream
has all of the text in its first part.
"""

from collections.abc import Callable
from typing import Any

from cdcd.data.vocabulary import EOS
from cdcd.inference.snapshots import parts_of
from cdcd.inference.text_model import Canvas, DiffusionTextModel, Generated, TextModel, escaped
from cdcd.serving.limits import Limits
from cdcd.serving.requests import Completion

GAP = 8
"""Tokens of a gap before a suffix, where max_tokens is not given."""


def settings_of(model: TextModel, asked: Completion) -> dict[str, Any]:
    """Returns the settings of a request under the names that the model has."""
    has_score = isinstance(model, DiffusionTextModel) and model.config.decoder == "ode"
    name = "score_temperature" if has_score else "temperature"
    given = {name: asked.temperature, "nucleus": asked.top_p}
    return {key: value for key, value in given.items() if value is not None}


def canvases_of(model: TextModel, asked: Completion, limits: Limits) -> list[Canvas]:
    """Returns a canvas for each prompt."""
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    if not 1 <= len(prompts) * asked.n <= limits.samples:
        raise ValueError(
            f"{len(prompts)} prompts with n = {asked.n}; this server takes from 1 to "
            f"{limits.samples} samples in a request"
        )
    if asked.suffix is None:
        return [model.prompt_canvas(prompt) for prompt in prompts]
    size = asked.max_tokens or GAP
    return [model.infill_canvas(f"{escaped(p)} [{size}] {escaped(asked.suffix)}") for p in prompts]


def complete(
    model: TextModel, asked: Completion, canvases: list[Canvas], check: Callable[[Any], None]
) -> dict[str, Any]:
    """Generates the completions of a request; `check` is called at every step."""
    options = {"seed": asked.seed or 0, "num_samples": asked.n, "callback": check}
    generated = model.generate(canvases, **options, **settings_of(model, asked))
    owners = [canvas for canvas in canvases for _ in range(asked.n)]
    choices, count = [], 0
    for index, (each, canvas) in enumerate(zip(generated, owners, strict=True)):
        text, num_tokens, reason = _completion(model, asked, each, canvas)
        count += num_tokens
        choices.append({"index": index, "text": text, "finish_reason": reason, "logprobs": None})
    given = sum(canvas.is_noisy.index(True) for canvas in canvases)
    usage = {"prompt_tokens": given, "completion_tokens": count, "total_tokens": given + count}
    return {"object": "text_completion", "choices": choices, "usage": usage}


def _completion(
    model: TextModel, asked: Completion, generated: Generated, canvas: Canvas
) -> tuple[str, int, str]:
    """Returns what was generated after the prompt, its number of tokens, and why it ends there."""
    parts, start = parts_of(model.tokenizer, generated.tokens), canvas.is_noisy.index(True)
    end, reason = len(generated.tokens), "stop"
    if asked.suffix is not None:
        end = start + canvas.is_noisy[start:].index(False)
    elif asked.max_tokens is not None and end - start > asked.max_tokens:
        end, reason = start + asked.max_tokens, "length"
    elif end == len(canvas.tokens):
        reason = "length"
    text = "".join(parts[start:end])
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    for stop in stops:
        if stop and stop in text:
            text, reason = text[: text.index(stop)], "stop"
    echoed = "".join(parts[:start]) if asked.echo else ""
    return echoed + text, sum(t != EOS for t in generated.tokens[start:end]), reason
