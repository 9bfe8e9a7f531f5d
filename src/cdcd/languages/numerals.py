"""Numerals: a translation task that needs no download, English and German, with an exact judge.

A sentence means a frame and the values of its slots: (rise, person Anna, time half past two). A frame
has one or more templates in each language, a value one or more wordings (`phrasebook.py`,
`number_words.py`), so a meaning can be said in several ways, each of them right:

    Anna gets up at half past two in the morning.  |  Anna steht morgens um halb drei auf.

Word order differs as the two languages do: participles and verbs of clauses at the end, separable
verbs, the verb in second place. `parse` is the exact inverse of `wordings`.
"""

import calendar
import hashlib
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from cdcd.languages.number_words import LANGUAGES, TENS, UNITS, Language
from cdcd.languages.phrasebook import FRAMES, KINDS, SLOT, Value, kinds_in
from cdcd.languages.word_splitting import GLUE
from cdcd.settings import unknown

DIRECTIONS = ("en-de", "de-en")
HELD_OUT = 26
"""Number of 256 meanings that can be held out."""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a sentence."""

    frame: str
    values: tuple[tuple[str, Value], ...]
    """Values of the slots, by their kind."""


# Sentences of a meaning


def draw(rng: random.Random) -> Meaning:
    """Draws a meaning, every frame as likely as any other."""
    frame = rng.choice(list(FRAMES))
    values: dict[str, Any] = {kind: KINDS[kind].draw(rng) for kind in kinds_in(frame)}
    if values.get("date") == (2, 29) and not calendar.isleap(values.get("year", 2000)):
        values["date"] = (2, 28)
    return Meaning(frame, tuple(values.items()))


def wordings(meaning: Meaning, language: Language) -> list[str]:
    """Returns all sentences that say it, the plainest first."""
    values, sentences = dict(meaning.values), []
    for template in FRAMES[meaning.frame][language]:
        slots = SLOT.findall(template)
        fillings = [KINDS[kind].wordings(values[kind], language, form) for kind, form in slots]
        texts = [_filled(template, chosen) for chosen in product(*fillings)]
        sentences += [text[0].upper() + text[1:] for text in texts]
    return sentences


def _filled(template: str, fillings: Iterable[str]) -> str:
    """Puts texts into the slots of a template."""
    left = iter(fillings)
    return SLOT.sub(lambda _: next(left), template)


def is_held_out(meaning: Meaning) -> bool:
    """Returns whether a meaning belongs to the tenth that can be kept from training, by its hash."""
    return hashlib.blake2b(repr(meaning).encode(), digest_size=1).digest()[0] < HELD_OUT


def sample_pairs(
    count: int,
    *,
    seed: int,
    direction: str = "en-de",
    first: int = 0,
    held_out: bool | None = None,
) -> list[tuple[str, str]]:
    """Draws English and German sentences that mean the same; pair n is a function of (seed, n) alone.

    The source is worded in any way, the target in the plainest, so that it is a function of the
    source. Held out: only meanings that are, or only those that are not; None: any.
    """
    check_direction(direction)
    numbers = range(first, first + count)
    return [_sample_pair(seed, number, direction, held_out) for number in numbers]


def _sample_pair(seed: int, number: int, direction: str, held_out: bool | None) -> tuple[str, str]:
    rng = random.Random(f"{seed} {number}")
    meaning = draw(rng)
    while held_out is not None and is_held_out(meaning) != held_out:
        meaning = draw(rng)
    english, german = wordings(meaning, "en"), wordings(meaning, "de")
    if direction == "en-de":
        return rng.choice(english), german[0]
    return english[0], rng.choice(german)


def check_direction(direction: str) -> None:
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)


# Meanings of a sentence


@cache
def _patterns(language: Language) -> list[tuple[str, list[tuple[str, str]], re.Pattern[str]]]:
    """Returns frame, slots and regular expression of every template."""
    patterns = []
    for frame, templates in FRAMES.items():
        for template in templates[language]:
            slots: list[tuple[str, str]] = SLOT.findall(template)
            groups = [f"({KINDS[kind].pattern(language, form)})" for kind, form in slots]
            pattern = re.compile(_filled(re.sub("[.?]", r"[\g<0>]", template), groups))
            patterns.append((frame, slots, pattern))
    return patterns


def parse(text: str, language: Language) -> set[Meaning]:
    """Returns what a sentence can mean; nothing where it is not one of this language."""
    if text[:1] != text[:1].upper():
        return set()
    return {
        meaning
        for start in {text[:1], text[:1].lower()}
        for meaning in _readings(start + text[1:], language)
    }


def _readings(text: str, language: Language) -> Iterator[Meaning]:
    for frame, slots, pattern in _patterns(language):
        match = pattern.fullmatch(text)
        if match is None:
            continue
        possible: dict[str, set[Value]] = {}
        for (kind, form), group in zip(slots, match.groups(), strict=True):
            values = set(KINDS[kind].read(group, language, form))
            possible[kind] = possible.get(kind, values) & values
        kinds = kinds_in(frame)
        for values in product(*(possible[kind] for kind in kinds)):
            yield Meaning(frame, tuple(zip(kinds, values, strict=True)))


# Judging


def check(source: str, hypothesis: str, direction: str) -> str:
    """Judges a translation: right if and only if it is a wording of what the source means.

    Returns `right`, `not grammatical`, or what is wrong: `wrong number`, `wrong date`, …, `wrong words`.
    """
    check_direction(direction)
    source_language, language = LANGUAGES if direction == "en-de" else LANGUAGES[::-1]
    wanted = parse(source, source_language)
    if not wanted:
        raise ValueError(
            f"the source {source!r} is not a sentence of the task in {source_language}"
        )
    verdicts = {_difference(*pair) for pair in product(wanted, parse(hypothesis, language))}
    return "right" if "right" in verdicts else min(verdicts, default="not grammatical")


def _difference(wanted: Meaning, given: Meaning) -> str:
    if wanted == given:
        return "right"
    if wanted.frame != given.frame:
        return "wrong words"
    pairs = zip(wanted.values, given.values, strict=True)
    wrong = [KINDS[kind].name for (kind, value), (_, other) in pairs if value != other]
    return f"wrong {next((name for name in wrong if name != 'words'), 'words')}"


# Tokens

_ORDINAL_ENDS = [
    stem + end for stem in ("", "t", "st", "erst", "dritt", "siebt") for end in ("e", "en")
]
_PARTS = [*UNITS["de"], *TENS["de"], "ein", "und", "hundert", "tausend", *_ORDINAL_ENDS]
NUMBER_PART = "|".join(sorted(_PARTS, key=len, reverse=True))
"""The pattern of one part of a German number; Python compiles it where it is needed first."""
NUMBER = f"({NUMBER_PART})+"


@cache
def pieces() -> tuple[str, ...]:
    """Returns the words of the task; those of German numbers in their parts: ein ##und ##zwanzig."""
    chunks = {chunk for text in _examples() for chunk in text.split()}
    return tuple(sorted({piece for chunk in chunks for piece in _pieces_of(chunk)}))


def _pieces_of(chunk: str) -> Iterator[str]:
    spelt = (
        part
        for word in re.findall(r"[\w']+|[^\w\s]", chunk)
        for part in (re.findall(NUMBER_PART, word) if re.fullmatch(NUMBER, word) else [word])
    )
    return (GLUE * (index > 0) + part for index, part in enumerate(spelt))


def _examples() -> Iterator[str]:
    """Yields sentences that together have every word of the task, at every position it can have."""
    for frame in FRAMES:
        values = {kind: KINDS[kind].values for kind in kinds_in(frame)}
        for turn in range(max(map(len, values.values()))):
            chosen = ((kind, each[turn % len(each)]) for kind, each in values.items())
            meaning = Meaning(frame, tuple(chosen))
            for language in LANGUAGES:
                yield from wordings(meaning, language)
