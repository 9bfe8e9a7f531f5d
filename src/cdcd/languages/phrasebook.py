"""The phrasebook of the numerals: what can stand in a slot, and the sentences of both languages.

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
    """What can stand in a slot."""

    name: str
    """What is wrong where the value is."""
    examples: Sequence[Any]
    """Values that together show every word of the kind."""
    draw: Callable[[random.Random], Value]
    wordings: Callable[[Any, Language, str], list[str]]
    """All wordings of a value in a language and a form."""
    read: Callable[[str, Language, str], Collection[Value]]
    """The values with this wording: one, several (ihn), none."""
    pattern: Callable[[Language, str], str]
    """A regular expression that every wording matches."""


# The words


def _anything(language: Language, form: str) -> str:
    return ".+"


def _lexicon(table: str) -> Kind:
    """Words by rows `english = form: german, form: german`; a German without form is for all."""
    rows = [row.split(" = ") for row in table.strip().splitlines()]
    forms = {row[0].strip(): _forms(row[1]) for row in rows}

    def wordings(value: str, language: Language, form: str) -> list[str]:
        german, english = forms[value], {"": value, "it": "it"}
        return [english[form]] if language == "en" else [german.get(form, german[""])]

    def read(text: str, language: Language, form: str) -> list[Value]:
        return [value for value in forms if text in wordings(value, language, form)]

    def pattern(language: Language, form: str) -> str:
        return "|".join(wordings(value, language, form)[0] for value in forms)

    values = list(forms)
    return Kind("words", values, lambda rng: rng.choice(values), wordings, read, pattern)


def _forms(german: str) -> dict[str, str]:
    parts = [part.split(": ") for part in german.split(", ")]
    return {"": parts[0][-1]} | {part[0]: part[1] for part in parts if len(part) == 2}


def _same(names: str) -> Kind:
    return _lexicon("\n".join(f"{name} = {name}" for name in names.split()))


def _tabled(
    name: str,
    values: Sequence[Any],
    wordings: Callable[[Any, Language, str], list[str]],
    pattern: Callable[[Language, str], str] = _anything,
) -> Kind:
    """A kind of few enough values to look up."""

    @cache
    def table(language: Language, form: str) -> dict[str, Value]:
        return {text: value for value in values for text in wordings(value, language, form)}

    def read(text: str, language: Language, form: str) -> list[Value]:
        found = table(language, form).get(text)
        return [] if found is None else [found]

    return Kind(name, values, lambda rng: rng.choice(values), wordings, read, pattern)


def _computed(
    name: str,
    examples: Sequence[Any],
    draw: Callable[[random.Random], Value],
    wordings: Callable[[Any, Language], list[str]],
    read: Callable[[str, Language], Value | None],
) -> Kind:
    """A kind of many values, in one form."""

    def readings(text: str, language: Language, form: str) -> list[Value]:
        found = read(text, language)
        return [] if found is None else [found]

    def said(value: Any, language: Language, form: str) -> list[str]:
        return wordings(value, language)

    return Kind(name, examples, draw, said, readings, _anything)


def _drawn_cardinal(rng: random.Random) -> int:
    """Every number of digits as often as any other."""
    most = 10 ** rng.randint(1, len(str(LARGEST)))
    return rng.randrange(most // 10 if most > 10 else 0, most)


def _drawn_count(rng: random.Random) -> int:
    """Before a plural noun: German would inflect the one of 1, 101, 201, …"""
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

KINDS: dict[str, Kind] = {
    "number": _computed("number", NUMBERS, _drawn_cardinal, words.cardinals, words.read_cardinal),
    "count": _computed("number", NUMBERS, _drawn_count, words.cardinals, _read_count),
    "decimal": _computed("number", DECIMALS, _drawn_decimal, words.decimals, words.read_decimal),
    "price": _computed("price", PRICES, _drawn_price, words.prices, words.read_price),
    "ordinal": _tabled("number", range(1, 100), words.ordinals),
    "year": _tabled("year", range(1500, 2100), lambda value, language, _: words.years(value, language)),
    "date": _tabled("date", DAYS, words.dates, _date_pattern),
    "time": _tabled("time", TIMES, lambda value, language, _: words.times(value, language)),
    "person": _same("Anna Ben Clara David Emma Felix Greta Jonas"),
    "things": _lexicon("""
        books = Bücher
        apples = Äpfel
        chairs = Stühle
        houses = Häuser
        stars = Sterne
        trees = Bäume
        bottles = Flaschen
        birds = Vögel
    """),
    "item": _lexicon("""
        book = das Buch, it: es
        coat = der Mantel, acc: den Mantel, it: ihn
        lamp = die Lampe, it: sie
        table = der Tisch, acc: den Tisch, it: ihn
        picture = das Bild, it: es
        clock = die Uhr, it: sie
    """),
    "vehicle": _lexicon("""
        train = der Zug
        bus = der Bus
        ship = das Schiff
        ferry = die Fähre
    """),
    "weekday": _lexicon("""
        Monday = Montag
        Tuesday = Dienstag
        Wednesday = Mittwoch
        Thursday = Donnerstag
        Friday = Freitag
        Saturday = Samstag
        Sunday = Sonntag
    """),
    "city": _lexicon("""
        Berlin = Berlin
        London = London
        Vienna = Wien
        Munich = München
        Cologne = Köln
        Rome = Rom
    """),
}  # fmt: skip


# The sentences

FRAMES: dict[str, dict[Language, tuple[str, ...]]] = {
    "is": {
        "en": ("the number is {number}.",),
        "de": ("die Zahl ist {number}.",),
    },
    "count": {
        "en": ("{person} counts to {number}.",),
        "de": ("{person} zählt bis {number}.",),
    },
    "bought": {
        "en": ("{person} has bought {count} {things}.",),
        "de": ("{person} hat {count} {things} gekauft.",),
    },
    "see": {
        "en": ("{person} wants to see {count} {things}.",),
        "de": ("{person} will {count} {things} sehen.",),
    },
    "there": {
        "en": ("{person} says that there are {count} {things} here.",),
        "de": ("{person} sagt, dass es hier {count} {things} gibt.",),
    },
    "floor": {
        "en": ("{person} lives on the {ordinal} floor.",),
        "de": ("{person} wohnt im {ordinal:en} Stock.",),
    },
    "day": {
        "en": ("today is the {ordinal} day of the journey.",),
        "de": ("heute ist der {ordinal:e} Tag der Reise.",),
    },
    "missed": {
        "en": ("{person} has missed the {ordinal} train.",),
        "de": ("{person} hat den {ordinal:en} Zug verpasst.",),
    },
    "born": {
        "en": ("{person} was born in {year}.", "{person} was born in the year {year}."),
        "de": ("{person} wurde {year} geboren.", "{person} wurde im Jahr {year} geboren."),
    },
    "built": {
        "en": ("{person} knows that the house was built in {year}.",),
        "de": ("{person} weiß, dass das Haus {year} gebaut wurde.",),
    },
    "weighs": {
        "en": ("the {item} weighs {decimal} kilograms.",),
        "de": ("{item} wiegt {decimal} Kilogramm.",),
    },
    "long": {
        "en": ("{person} believes that the way is {decimal} kilometres long.",),
        "de": ("{person} glaubt, dass der Weg {decimal} Kilometer lang ist.",),
    },
    "costs": {
        "en": ("the {item} costs {price}.",),
        "de": ("{item} kostet {price}.",),
    },
    "paid": {
        "en": ("{person} has paid {price} for the {item}.",),
        "de": ("{person} hat für {item:acc} {price} bezahlt.", "{person} hat {price} für {item:acc} bezahlt."),
    },
    "if": {
        "en": ("if the {item} costs {price}, {person} buys it.",),
        "de": ("wenn {item} {price} kostet, kauft {person} {item:it}.",),
    },
    "today": {
        "en": ("today is {date}.",),
        "de": ("heute ist der {date:e}.",),
    },
    "birthday": {
        "en": ("{person} was born on {date}, {year}.",),
        "de": ("{person} wurde am {date:en} {year} geboren.",),
    },
    "arrives": {
        "en": ("{person} arrives on {date}.",),
        "de": ("{person} kommt am {date:en} an.", "am {date:en} kommt {person} an."),
    },
    "party": {
        "en": ("the party takes place on {weekday}, {date}.",),
        "de": ("die Feier findet am {weekday}, dem {date:en}, statt.",),
    },
    "moves": {
        "en": ("on {date}, {person} moves to {city}.", "{person} moves to {city} on {date}."),
        "de": ("am {date:en} zieht {person} nach {city}.", "{person} zieht am {date:en} nach {city}."),
    },
    "now": {
        "en": ("it is {time}.",),
        "de": ("es ist {time}.",),
    },
    "leaves": {
        "en": ("the {vehicle} leaves at {time}.",),
        "de": ("{vehicle} fährt um {time} ab.", "um {time} fährt {vehicle} ab."),
    },
    "ask": {
        "en": ("does the {vehicle} leave at {time}?",),
        "de": ("fährt {vehicle} um {time} ab?",),
    },
    "rise": {
        "en": ("{person} gets up at {time} in the morning.",),
        "de": ("{person} steht morgens um {time} auf.",),
    },
    "comes": {
        "en": ("{person} knows that the {vehicle} arrives at {time}.",),
        "de": ("{person} weiß, dass {vehicle} um {time} ankommt.",),
    },
}  # fmt: skip
SLOT = re.compile(r"\{(\w+):?(\w*)\}")


@cache
def kinds_in(frame: str) -> tuple[str, ...]:
    """The slots of a frame, in the order of English."""
    return tuple(dict.fromkeys(kind for kind, _ in SLOT.findall(FRAMES[frame]["en"][0])))
