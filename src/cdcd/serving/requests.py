"""The bodies of requests, checked against the limits."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from cdcd.data.tokenizers import is_utf8
from cdcd.inference.changes import Change, read_change
from cdcd.serving.limits import Limits

LIMITS = Limits()
MOST_SEED = 2**53 - 1
"""Seeds of the page are numbers of JavaScript."""


def _checked_text(text: str) -> str:
    if not is_utf8(text):
        raise ValueError("it is no text in UTF-8: it has half a surrogate pair")
    return text


def _read_changes(values: Any) -> list[Change]:
    if not isinstance(values, list):
        raise ValueError("changes are a list of objects")
    changes = [read_change(value) for value in values[: LIMITS.changes + 1]]
    for change in changes:
        for word in (*change.tokens.values(), *change.settings.values(), *change.settings):
            if isinstance(word, str):
                _checked_text(word)
    return changes


def _checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        _checked_text(name)
        if isinstance(value, str):
            _checked_text(value)
    return settings


Text = Annotated[str, Field(max_length=LIMITS.characters), AfterValidator(_checked_text)]
Value = bool | int | float | Annotated[str, Field(max_length=60)]
SettingValues = Annotated[
    dict[Annotated[str, Field(max_length=60)], Value],
    Field(max_length=40),
    AfterValidator(_checked_settings),
]
SeedNumber = Annotated[int, Field(ge=0, le=MOST_SEED)]
SampleCount = Annotated[int, Field(ge=1, le=LIMITS.samples)]


class Asked(BaseModel):
    """The base of all requests: an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: Text = ""
    """Name of a model; the first one that can, where it is empty."""


class Generation(Asked):
    """A text with gaps to fill, step by step."""

    text: Text
    """`[5]` is a gap of five tokens, `[*]` at the end one of any length."""
    seed: SeedNumber = 0
    settings: SettingValues = Field(default_factory=dict)
    changes: Annotated[
        list[Change], Field(max_length=LIMITS.changes), BeforeValidator(_read_changes)
    ] = Field(default_factory=list)


class Translation(Asked):
    """A sentence to translate, by several samples."""

    text: Text
    num_samples: SampleCount = 8
    seed: SeedNumber = 0
    utility: Annotated[str, Field(pattern="^(bleu|chrf)$")] = "bleu"
    settings: SettingValues = Field(default_factory=dict)


class Counting(Asked):
    """A text whose tokens are counted."""

    text: Text


class Completion(BaseModel):
    """A request in the form of OpenAI's completions; what it has besides is ignored."""

    model_config = ConfigDict(extra="ignore")

    model: Text = ""
    prompt: Text | list[Text] = ""
    suffix: Text | None = None
    max_tokens: Annotated[int, Field(ge=1, le=65_536)] | None = None
    n: SampleCount = 1
    seed: SeedNumber | None = None
    temperature: Annotated[float, Field(ge=0, le=1_000)] | None = None
    """The score temperature of a diffusion model; of others the temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    stream: bool = False
    echo: bool = False
