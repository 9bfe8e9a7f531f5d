"""Numbers, prices, dates and times of day in English and German words.

Every function gives all wordings of a value that count as right, the plainest first:

    cardinals(105, "en")    one hundred and five, one hundred five
    cardinals(105, "de")    einhundertfünf, hundertfünf
    times((2, 30), "de")    halb drei, zwei Uhr dreißig

and each `read_…` is the inverse: the value that some wording of it is, or None.
"""

import calendar
import re
from functools import cache
from itertools import product
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "de"]
LANGUAGES: tuple[Language, ...] = ("en", "de")
LARGEST = 999_999


def _words(text: str) -> list[str]:
    return text.split()


UNITS = {
    "en": _words("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
                 "fifteen sixteen seventeen eighteen nineteen"),
    "de": _words("null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
                 "fünfzehn sechzehn siebzehn achtzehn neunzehn"),
}  # fmt: skip
TENS = {
    "en": _words("- ten twenty thirty forty fifty sixty seventy eighty ninety"),
    "de": _words("- zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"),
}
MONTHS = {
    "en": _words(
        "January February March April May June July August September October November December"
    ),
    "de": _words(
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
    ),
}
ENGLISH_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
GERMAN_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


# Cardinals


def _below_hundred(number: int, language: Language) -> str:
    tens, units = divmod(number, 10)
    if number < 20:
        return UNITS[language][number]
    if not units:
        return TENS[language][tens]
    if language == "en":
        return f"{TENS['en'][tens]}-{UNITS['en'][units]}"
    return f"{_linked(UNITS['de'][units])}und{TENS['de'][tens]}"


def _linked(word: str) -> str:
    """Returns a German number as the beginning of a longer word: `eins` loses its s."""
    return word.removesuffix("s") if word.endswith("eins") else word


def _below_thousand(number: int, language: Language) -> list[str]:
    hundreds, rest = divmod(number, 100)
    if not hundreds:
        return [_below_hundred(rest, language)]
    tail = _below_hundred(rest, language) if rest else ""
    unit = UNITS[language][hundreds]
    if language == "en":
        return [f"{unit} hundred{link}{tail}" for link in ((" and ", " ") if rest else ("",))]
    heads = ("ein", "") if hundreds == 1 else (unit,)
    return [f"{head}hundert{tail}" for head in heads]


def cardinals(number: int, language: Language) -> list[str]:
    """Returns cardinals: one hundred and five; einhundertfünf. German `eins` is the number alone, not before a noun."""
    assert 0 <= number <= LARGEST
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _below_thousand(rest, language)
    heads = _below_thousand(thousands, language)
    tails = _below_thousand(rest, language) if rest else [""]
    if language == "de":
        heads = ["ein", ""] if thousands == 1 else [_linked(head) for head in heads]
        return [f"{head}tausend{tail}" for head, tail in product(heads, tails)]
    links = [" and ", " "] if 0 < rest < 100 else [" " if rest else ""]
    return [f"{head} thousand{link}{tail}" for head, link, tail in product(heads, links, tails)]


@cache
def _small_numbers(language: Language) -> dict[str, int]:
    return {word: number for number in range(1000) for word in cardinals(number, language)}


def read_cardinal(text: str, language: Language) -> int | None:
    small = _small_numbers(language)
    head, thousand, tail = text.partition("tausend" if language == "de" else " thousand")
    if not thousand:
        return small.get(text)
    heads = (head, f"{head}s", head + "eins")
    thousands = next((small[word] for word in heads if word in small), 0)
    number = 1000 * thousands + small.get(tail.strip().removeprefix("and "), 0)
    return number if text in cardinals(number, language) else None


# Ordinals


def ordinals(number: int, language: Language, ending: str = "") -> list[str]:
    """Returns ordinals: one hundred and first; einhunderterst, to which an ending comes: -e, -en."""
    words = cardinals(number, language)
    if language == "en":
        return [_english_ordinal(word) for word in words]
    last = number % 100
    if last in GERMAN_ORDINALS:
        stems = [f"{word.removesuffix(UNITS['de'][last])}{GERMAN_ORDINALS[last]}" for word in words]
    else:
        stems = [f"{word}{'t' if 0 < last < 20 else 'st'}" for word in words]
    return [f"{stem}{ending}" for stem in stems]


def _english_ordinal(cardinal: str) -> str:
    *_, last = re.split("[ -]", cardinal)
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return cardinal.removesuffix(last) + ENGLISH_ORDINALS.get(last, regular)


# Years


def years(year: int, language: Language) -> list[str]:
    """Returns years: nineteen ninety; neunzehnhundertneunzig."""
    assert 1100 <= year <= 2099
    century, rest = divmod(year, 100)
    if language == "de":
        tail = _below_hundred(rest, "de") if rest else ""
        return cardinals(year, "de") if century == 20 else [f"{UNITS['de'][century]}hundert{tail}"]
    head, tail = _below_hundred(century, "en"), _below_hundred(rest, "en")
    if century == 20:
        return ([f"{head} {tail}"] if rest >= 10 else []) + cardinals(year, "en")
    if not rest:
        return [f"{head} hundred"]
    return [f"{head} {tail}"] if rest >= 10 else [f"{head} oh {tail}", f"{head} hundred and {tail}"]


# Decimals and prices

POINTS = {"en": " point ", "de": " Komma "}
Decimal: TypeAlias = tuple[int, str]
"""The whole part, and the digits behind the point."""
Price: TypeAlias = tuple[int, int]
"""Euros and cents."""


def decimals(value: Decimal, language: Language) -> list[str]:
    """Returns decimals: three point one four; drei Komma eins vier."""
    digits = " ".join(UNITS[language][int(digit)] for digit in value[1])
    return [f"{whole}{POINTS[language]}{digits}" for whole in cardinals(value[0], language)]


def read_decimal(text: str, language: Language) -> Decimal | None:
    head, _, tail = text.partition(POINTS[language])
    whole = read_cardinal(head, language)
    digits = tail.split(" ")
    if whole is None or not all(digit in UNITS[language][:10] for digit in digits):
        return None
    return whole, "".join(str(UNITS[language].index(digit)) for digit in digits)


def prices(price: Price, language: Language) -> list[str]:
    """Returns prices: three euros and fifty cents; drei Euro fünfzig. In German the accusative: einen Euro."""
    euros, cents = price
    heads, tails = _amounts(euros, "euro", language), _amounts(cents, "cent", language)
    if not euros or not cents:
        return tails if not euros else heads
    link = {"en": " and ", "de": " und "}[language]
    whole = [f"{head}{link}{tail}" for head, tail in product(heads, tails)]
    short = [f"{head} {_below_hundred(cents, language)}" for head in heads] if cents >= 10 else []
    return whole + short if language == "en" else short + whole


def _amounts(number: int, coin: str, language: Language) -> list[str]:
    if language == "de":
        words = ["einen"] if number == 1 else cardinals(number, "de")
        return [f"{word} {coin.capitalize()}" for word in words]
    return [f"{word} {coin}{'' if number == 1 else 's'}" for word in cardinals(number, "en")]


def read_price(text: str, language: Language) -> Price | None:
    head, tail = ["", *re.split(" [eE]uros?", text, maxsplit=1)][-2:]
    tail = re.sub("^ (and |und )?| [cC]ents?$", "", tail)
    euros, cents = (_read_amount(part, language) for part in (head, tail))
    if euros is None or cents is None or cents >= 100:
        return None
    return (euros, cents) if text in prices((euros, cents), language) else None


def _read_amount(text: str, language: Language) -> int | None:
    if not text:
        return 0
    return 1 if text == "einen" else read_cardinal(text, language)


# Dates and times of day

Date: TypeAlias = tuple[int, int]
"""Month and day."""
Time: TypeAlias = tuple[int, int]
"""Hour of twelve, and minute, a multiple of five."""


def days_in(month: int, year: int = 2000) -> int:
    return calendar.monthrange(year, month)[1]


def dates(date: Date, language: Language, ending: str = "e") -> list[str]:
    """Returns dates: the third of October; dritte Oktober, without its article, the ending by the case."""
    month, day = MONTHS[language][date[0] - 1], ordinals(date[1], language, ending)[0]
    if language == "de":
        return [f"{day} {month}"]
    return [f"the {day} of {month}", f"{month} the {day}"]


def times(time: Time, language: Language) -> list[str]:
    """Returns times: quarter past two, two fifteen; Viertel nach zwei, zwei Uhr fünfzehn."""
    hour, minute = time
    now, after = (UNITS[language][each] for each in (hour, hour % 12 + 1))
    if language == "de":
        o_clock = f"{_linked(now)} Uhr"
        if not minute:
            return [o_clock]
        return [_german_time(minute, now, after), f"{o_clock} {_below_hundred(minute, 'de')}"]
    if not minute:
        return [f"{now} o'clock"]
    digital = f"{'oh ' if minute < 10 else ''}{_below_hundred(minute, 'en')}"
    return [_english_time(minute, now, after), f"{now} {digital}"]


def _english_time(minute: int, now: str, after: str) -> str:
    names = {15: "quarter", 30: "half"}
    near = min(minute, 60 - minute)
    name = names.get(near, _below_hundred(near, "en"))
    return f"{name} past {now}" if minute <= 30 else f"{name} to {after}"


def _german_time(minute: int, now: str, after: str) -> str:
    """Counts half an hour towards the next hour, and the minutes around it."""
    halves = {25: "fünf vor halb", 30: "halb", 35: "fünf nach halb"}
    if minute in halves:
        return f"{halves[minute]} {after}"
    near = min(minute, 60 - minute)
    name = "Viertel" if near == 15 else _below_hundred(near, "de")
    return f"{name} nach {now}" if minute < 30 else f"{name} vor {after}"
