"""The phrasebook of the numerals: the kinds of slots, and the sentences of both languages.

A frame has one or more templates in each language, all of which say the same. In a slot `{kind:form}`
the form is the German case or ending, or the pronoun (`it`) for what the slot stands for.
"""

import random
import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from cdcd.languages import number_words as words
from cdcd.languages.number_words import LARGEST, Language

Value: TypeAlias = int | str | tuple[int, Any]
Wordings: TypeAlias = Callable[[Any, Language, str], list[str]]
"""Returns all wordings of a value in a language and a form."""


@dataclass(frozen=True, eq=False)
class Kind:
    """The values that a slot can have, and their wordings."""

    name: str
    """The name of a mistake in the value."""
    values: Sequence[Any]
    """All values; of a kind with a guess, values that together show every word."""
    wordings: Wordings
    random_value: Callable[[random.Random], Value] | None = None
    """Draws one of many values; None: one of `values`."""
    guess: Callable[[str, Language], Value] | None = None
    """Returns the value of a wording, and any value of other text; None: few enough to look up."""

    def draw(self, rng: random.Random) -> Value:
        return rng.choice(self.values) if self.random_value is None else self.random_value(rng)

    def read(self, text: str, language: Language, form: str) -> list[Value]:
        """Returns the values with this wording: one, several (ihn), none."""
        if self.guess is None:
            return _table(self, language, form).get(text, [])
        value = self.guess(text, language)
        return [value] if text in self.wordings(value, language, form) else []

    def pattern(self, language: Language, form: str) -> str:
        """Returns a regular expression that every wording matches, and no other text if they are few."""
        return ".+" if self.guess is not None else "|".join(_table(self, language, form))


@cache
def _table(kind: Kind, language: Language, form: str) -> dict[str, list[Value]]:
    """Returns the values behind each wording."""
    values_by_text: dict[str, list[Value]] = {}
    for value in kind.values:
        for text in kind.wordings(value, language, form):
            values_by_text.setdefault(text, []).append(value)
    return values_by_text


def _any_form(wordings: Callable[[Any, Language], list[str]]) -> Wordings:
    return lambda value, language, _: wordings(value, language)


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

    return Kind("words", list(forms), wordings)


def _random_cardinal(rng: random.Random) -> int:
    """Draws every number of digits as often as any other."""
    most = 10 ** rng.randint(1, len(str(LARGEST)))
    return rng.randrange(most // 10 if most > 10 else 0, most)


def _random_count(rng: random.Random) -> int:
    number = 0
    while not words.counts(number, "de"):
        number = _random_cardinal(rng)
    return number


def _random_decimal(rng: random.Random) -> tuple[int, str]:
    digits = [str(rng.randrange(10))] * rng.randrange(2)
    return rng.randrange(100), "".join([*digits, str(rng.randint(1, 9))])


def _random_price(rng: random.Random) -> tuple[int, int]:
    euros = rng.choice([1, _random_count(rng) % 1000])
    cents = rng.choice([0, 5, 99, *range(10, 100, 5)])
    return euros, cents or (0 if euros else 50)


NUMBERS = [1000 * thousands + rest for rest in range(100) for thousands in (0, rest)]
NUMBERS += [*range(100, 120), *range(200, 1000, 100), 1000, 1100, 101_101]
DECIMALS = [(whole, "0123456789") for whole in range(100)]
PRICES = [(number % 1000, number % 97) for number in NUMBERS]
PRICES += [(0, cents) for cents in range(1, 100)]
DAYS = [(month, day + 1) for month in range(1, 13) for day in range(monthrange(2000, month)[1])]
TIMES = [(hour, minute) for hour in range(1, 13) for minute in range(0, 60, 5)]

CARDINALS, COUNTS = _any_form(words.cardinals), _any_form(words.counts)
KINDS: dict[str, Kind] = {
    "number": Kind("number", NUMBERS, CARDINALS, _random_cardinal, words.number_in),
    "count": Kind("number", NUMBERS, COUNTS, _random_count, words.number_in),
    "decimal": Kind("number", DECIMALS, _any_form(words.decimals), _random_decimal, words.decimal_in),
    "price": Kind("price", PRICES, _any_form(words.prices), _random_price, words.price_in),
    "ordinal": Kind("number", range(1, 100), words.ordinals),
    "year": Kind("year", range(1500, 2100), _any_form(words.years)),
    "date": Kind("date", DAYS, words.dates),
    "time": Kind("time", TIMES, _any_form(words.times)),
    "person": _lexicon("Anna = Anna; Ben = Ben; Clara = Clara; David = David; Emma = Emma; Felix = Felix;"
                       "Greta = Greta; Jonas = Jonas"),
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
