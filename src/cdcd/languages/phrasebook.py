"""The phrasebook of the numerals: the kinds of slots, and the sentences of both languages.

A frame has one or more templates in each language, all of which say the same. In a slot `{kind:form}`
the form is the German case or ending, or the pronoun (`it`) for what the slot stands for.
"""

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from cdcd.languages import number_words as words
from cdcd.languages.number_words import LARGEST, Language

Value: TypeAlias = int | str | tuple[int, Any]


@dataclass(frozen=True)
class Kind:
    """The values that a slot can have, and their wordings."""

    name: str
    """The name of a mistake in the value."""
    examples: Sequence[Any]
    """Values that together show every word of the kind."""
    draw: Callable[[random.Random], Value]
    wordings: Callable[[Any, Language, str], list[str]]
    """Returns all wordings of a value in a language and a form."""
    read: Callable[[str, Language, str], Collection[Value]]
    """Returns the values with this wording: one, several (ihn), none."""
    pattern: Callable[[Language, str], str] = lambda language, form: ".+"
    """Returns a regular expression that every wording matches."""


def _tabled(
    name: str,
    values: Sequence[Any],
    wordings: Callable[[Any, Language, str], list[str]],
    pattern: Callable[[Language, str], str] = Kind.pattern,
) -> Kind:
    """Returns a kind of few enough values to look up."""

    @cache
    def table(language: Language, form: str) -> dict[str, list[Value]]:
        values_by_text: dict[str, list[Value]] = {}
        for value in values:
            for text in wordings(value, language, form):
                values_by_text.setdefault(text, []).append(value)
        return values_by_text

    def read(text: str, language: Language, form: str) -> list[Value]:
        return table(language, form).get(text, [])

    return Kind(name, values, lambda rng: rng.choice(values), wordings, read, pattern)


def _lexicon(entries: str) -> Kind:
    """Returns words by entries `english = german, form: german; …`; one without a form is for all."""
    forms = {}
    for entry in entries.split(";"):
        english, german = entry.strip().split(" = ")
        plain, *others = german.split(", ")
        forms[english] = {"": plain, **dict(other.split(": ") for other in others)}

    def wordings(value: str, language: Language, form: str) -> list[str]:
        if language == "en":
            return ["it" if form == "it" else value]
        return [forms[value].get(form, forms[value][""])]

    def pattern(language: Language, form: str) -> str:
        return "|".join(wordings(value, language, form)[0] for value in forms)

    return _tabled("words", list(forms), wordings, pattern)


def _computed(
    name: str,
    examples: Sequence[Any],
    draw: Callable[[random.Random], Value],
    wordings: Callable[[Any, Language], list[str]],
    read: Callable[[str, Language], Value | None],
) -> Kind:
    """Returns a kind of many values, in one form."""

    def read_all(text: str, language: Language, form: str) -> list[Value]:
        value = read(text, language)
        return [] if value is None else [value]

    return Kind(name, examples, draw, lambda v, language, _: wordings(v, language), read_all)


def _drawn_cardinal(rng: random.Random) -> int:
    """Draws every number of digits as often as any other."""
    most = 10 ** rng.randint(1, len(str(LARGEST)))
    return rng.randrange(most // 10 if most > 10 else 0, most)


def _drawn_count(rng: random.Random) -> int:
    """Draws a number before a plural noun: German would inflect the one of 1, 101, 201, …"""
    number = 1
    while number % 100 == 1 or not number:
        number = _drawn_cardinal(rng)
    return number


def _read_count(text: str, language: Language) -> int | None:
    number = words.read_cardinal(text, language)
    return number if number and number % 100 != 1 else None


def _drawn_decimal(rng: random.Random) -> words.Decimal:
    digits = [str(rng.randrange(10))] * rng.randrange(2)
    return rng.randrange(100), "".join([*digits, str(rng.randint(1, 9))])


def _drawn_price(rng: random.Random) -> words.Price:
    euros = rng.choice([1, _drawn_count(rng) % 1000])
    cents = rng.choice([0, 5, 99, *range(10, 100, 5)])
    return euros, cents or (0 if euros else 50)


def _date_pattern(language: Language, form: str) -> str:
    return r"\S+ \S+" if language == "de" else r"the \S+ of \S+|\S+ the \S+"


NUMBERS = [1000 * thousands + rest for rest in range(100) for thousands in (0, rest)]
NUMBERS += [*range(100, 120), *range(200, 1000, 100), 1000, 1100, 101_101]
DECIMALS = [(whole, "0123456789") for whole in range(100)]
PRICES = [(number % 1000, number % 97) for number in NUMBERS] + [
    (0, cents) for cents in range(1, 100)
]
DAYS = [(month, day) for month in range(1, 13) for day in range(1, words.days_in(month) + 1)]
TIMES = [(hour, minute) for hour in range(1, 13) for minute in range(0, 60, 5)]

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Jonas"]

KINDS: dict[str, Kind] = {
    "number": _computed("number", NUMBERS, _drawn_cardinal, words.cardinals, words.read_cardinal),
    "count": _computed("number", NUMBERS, _drawn_count, words.cardinals, _read_count),
    "decimal": _computed("number", DECIMALS, _drawn_decimal, words.decimals, words.read_decimal),
    "price": _computed("price", PRICES, _drawn_price, words.prices, words.read_price),
    "ordinal": _tabled("number", range(1, 100), words.ordinals),
    "year": _tabled("year", range(1500, 2100), lambda value, language, _: words.years(value, language)),
    "date": _tabled("date", DAYS, words.dates, _date_pattern),
    "time": _tabled("time", TIMES, lambda value, language, _: words.times(value, language)),
    "person": _lexicon("; ".join(f"{name} = {name}" for name in NAMES)),
    "things": _lexicon("books = Bücher; apples = Äpfel; chairs = Stühle; houses = Häuser; stars = Sterne;"
                       "trees = Bäume; bottles = Flaschen; birds = Vögel"),
    "item": _lexicon("book = das Buch, it: es; coat = der Mantel, acc: den Mantel, it: ihn;"
                     "lamp = die Lampe, it: sie; table = der Tisch, acc: den Tisch, it: ihn;"
                     "picture = das Bild, it: es; clock = die Uhr, it: sie"),
    "vehicle": _lexicon("train = der Zug; bus = der Bus; ship = das Schiff; ferry = die Fähre"),
    "weekday": _lexicon("Monday = Montag; Tuesday = Dienstag; Wednesday = Mittwoch; Thursday = Donnerstag;"
                        "Friday = Freitag; Saturday = Samstag; Sunday = Sonntag"),
    "city": _lexicon("Berlin = Berlin; London = London; Vienna = Wien; Munich = München;"
                     "Cologne = Köln; Rome = Rom"),
}  # fmt: skip


# The sentences


def _frames(table: str) -> dict[str, dict[Language, tuple[str, ...]]]:
    """Reads rows of two lines: `frame: English templates` and `German templates`, separated by |."""
    lines = [line.strip() for line in table.strip().splitlines()]
    frames: dict[str, dict[Language, tuple[str, ...]]] = {}
    for english, german in zip(lines[::2], lines[1::2], strict=True):
        name, english = english.split(": ", 1)
        frames[name] = {"en": tuple(english.split(" | ")), "de": tuple(german.split(" | "))}
    return frames


FRAMES = _frames("""
    is: the number is {number}.
        die Zahl ist {number}.
    count: {person} counts to {number}.
        {person} zählt bis {number}.
    bought: {person} has bought {count} {things}.
        {person} hat {count} {things} gekauft.
    see: {person} wants to see {count} {things}.
        {person} will {count} {things} sehen.
    there: {person} says that there are {count} {things} here.
        {person} sagt, dass es hier {count} {things} gibt.
    floor: {person} lives on the {ordinal} floor.
        {person} wohnt im {ordinal:en} Stock.
    day: today is the {ordinal} day of the journey.
        heute ist der {ordinal:e} Tag der Reise.
    missed: {person} has missed the {ordinal} train.
        {person} hat den {ordinal:en} Zug verpasst.
    born: {person} was born in {year}. | {person} was born in the year {year}.
        {person} wurde {year} geboren. | {person} wurde im Jahr {year} geboren.
    built: {person} knows that the house was built in {year}.
        {person} weiß, dass das Haus {year} gebaut wurde.
    weighs: the {item} weighs {decimal} kilograms.
        {item} wiegt {decimal} Kilogramm.
    long: {person} believes that the way is {decimal} kilometres long.
        {person} glaubt, dass der Weg {decimal} Kilometer lang ist.
    costs: the {item} costs {price}.
        {item} kostet {price}.
    paid: {person} has paid {price} for the {item}.
        {person} hat für {item:acc} {price} bezahlt. | {person} hat {price} für {item:acc} bezahlt.
    if: if the {item} costs {price}, {person} buys it.
        wenn {item} {price} kostet, kauft {person} {item:it}.
    today: today is {date}.
        heute ist der {date:e}.
    birthday: {person} was born on {date}, {year}.
        {person} wurde am {date:en} {year} geboren.
    arrives: {person} arrives on {date}.
        {person} kommt am {date:en} an. | am {date:en} kommt {person} an.
    party: the party takes place on {weekday}, {date}.
        die Feier findet am {weekday}, dem {date:en}, statt.
    moves: on {date}, {person} moves to {city}. | {person} moves to {city} on {date}.
        am {date:en} zieht {person} nach {city}. | {person} zieht am {date:en} nach {city}.
    now: it is {time}.
        es ist {time}.
    leaves: the {vehicle} leaves at {time}.
        {vehicle} fährt um {time} ab. | um {time} fährt {vehicle} ab.
    ask: does the {vehicle} leave at {time}?
        fährt {vehicle} um {time} ab?
    rise: {person} gets up at {time} in the morning.
        {person} steht morgens um {time} auf.
    comes: {person} knows that the {vehicle} arrives at {time}.
        {person} weiß, dass {vehicle} um {time} ankommt.
""")
SLOT = re.compile(r"\{(\w+):?(\w*)\}")


@cache
def kinds_in(frame: str) -> tuple[str, ...]:
    """Returns the kinds of a frame's slots, in the order of English."""
    return tuple(dict.fromkeys(kind for kind, _ in SLOT.findall(FRAMES[frame]["en"][0])))
