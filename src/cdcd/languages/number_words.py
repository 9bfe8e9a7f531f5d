"""Numbers, prices, dates and times of day in English and German words.

Every function gives all wordings of a value that count as right, the plainest first:

    cardinals(105, "en")    one hundred and five, one hundred five
    cardinals(105, "de")    einhundertfünf, hundertfünf
    times((2, 30), "de")    halb drei, zwei Uhr dreißig

`number_in`, `price_in` and `decimal_in` go the other way, but only guess: they add up the number words
of any text. A text says the value if it is one of the value's wordings; an impossible value has none.
"""

import re
from itertools import product
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "de"]
LANGUAGES: tuple[Language, ...] = ("en", "de")
LARGEST = 999_999


def _words(english: str, german: str) -> dict[Language, list[str]]:
    return {"en": english.split(), "de": german.split()}


UNITS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen",
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn"
    " sechzehn siebzehn achtzehn neunzehn",
)
TENS = _words(
    "- ten twenty thirty forty fifty sixty seventy eighty ninety",
    "- zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
)
MONTHS = _words(
    "January February March April May June July August September October November December",
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
)
SCALES: dict[Language, dict[int, str]] = {
    "en": {100: " hundred", 1000: " thousand"},
    "de": {100: "hundert", 1000: "tausend"},
}
ORDINALS: dict[Language, dict[str, str]] = {
    "en": {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
           "nine": "ninth", "twelve": "twelfth", "y": "ieth", "": "th"},
    "de": {"eins": "erst", "drei": "dritt", "sieben": "siebt", "acht": "acht", "ig": "igst",
           "hundert": "hundertst", "tausend": "tausendst", "": "t"},
}  # fmt: skip
"""Ends of cardinals, and those of their ordinals; the first that fits."""
TIMES: dict[Language, tuple[str, ...]] = {
    "en": ("{now} o'clock", "five past {now}", "ten past {now}", "quarter past {now}",
           "twenty past {now}", "twenty-five past {now}", "half past {now}", "twenty-five to {then}",
           "twenty to {then}", "quarter to {then}", "ten to {then}", "five to {then}"),
    "de": ("{hour} Uhr", "fünf nach {now}", "zehn nach {now}", "Viertel nach {now}",
           "zwanzig nach {now}", "fünf vor halb {then}", "halb {then}", "fünf nach halb {then}",
           "zwanzig vor {then}", "Viertel vor {then}", "zehn vor {then}", "fünf vor {then}"),
}  # fmt: skip
"""Wordings of every fifth minute."""
POINTS: dict[Language, str] = {"en": " point ", "de": " Komma "}


# Numbers


def cardinals(number: int, language: Language) -> list[str]:
    """Returns cardinals up to `LARGEST`: one hundred and five; einhundertfünf.

    German `eins` is the number alone, not before a noun.
    """
    if number > LARGEST:
        return []
    if number < 20:
        return [UNITS[language][number]]
    if number < 100:
        ten, unit = TENS[language][number // 10], UNITS[language][number % 10]
        both = f"{ten}-{unit}" if language == "en" else f"{_linked(unit)}und{ten}"
        return [both if number % 10 else ten]
    scale = 100 if number < 1000 else 1000
    many, rest = divmod(number, scale)
    heads, links = cardinals(many, language), [""]
    if language == "de":
        heads = ["ein", ""] if many == 1 else [_linked(head) for head in heads]
    elif rest:
        links = [" and ", " "] if rest < 100 else [" "]
    tails = cardinals(rest, language) if rest else [""]
    name = SCALES[language][scale]
    return [f"{head}{name}{link}{tail}" for head, link, tail in product(heads, links, tails)]


def _linked(word: str) -> str:
    """Returns a German number as the beginning of a longer word: `eins` loses its s."""
    return word.removesuffix("s") if word.endswith("eins") else word


def counts(number: int, language: Language) -> list[str]:
    """Returns cardinals before a plural noun; not of 1, 101, 201, …, which German would inflect."""
    return [] if not number or number % 100 == 1 else cardinals(number, language)


def ordinals(number: int, language: Language, ending: str = "") -> list[str]:
    """Returns ordinals: one hundred and first; einhunderterst, to which an ending comes: -e, -en."""
    words = []
    for cardinal in cardinals(number, language):
        end = next(end for end in ORDINALS[language] if cardinal.endswith(end))
        words.append(cardinal.removesuffix(end) + ORDINALS[language][end] + ending)
    return words


def decimals(value: tuple[int, str], language: Language) -> list[str]:
    """Returns decimals, of the whole part and the digits: three point one four; drei Komma eins vier."""
    whole, digits = value
    tail = " ".join(UNITS[language][int(digit)] for digit in digits)
    return [f"{head}{POINTS[language]}{tail}" for head in cardinals(whole, language) if digits]


def years(year: int, language: Language) -> list[str]:
    """Returns years from 1100 to 2099: nineteen ninety; neunzehnhundertneunzig."""
    century, rest = divmod(year, 100)
    head, tail = cardinals(century, language)[0], cardinals(rest, language)[0]
    in_full = cardinals(year, language) if century == 20 else []
    if language == "de":
        return in_full or [f"{head}hundert{tail if rest else ''}"]
    if rest >= 10:
        return [f"{head} {tail}", *in_full]
    if rest:
        return in_full or [f"{head} oh {tail}", f"{head} hundred and {tail}"]
    return in_full or [f"{head} hundred"]


# Prices, dates and times of day


def prices(price: tuple[int, int], language: Language) -> list[str]:
    """Returns prices, of euros and cents: three euros and fifty cents; drei Euro fünfzig.

    In German the accusative: einen Euro.
    """
    euros, cents = price
    if cents > 99:
        return []
    heads, tails = _amounts(euros, "Euro", language), _amounts(cents, "Cent", language)
    if not euros or not cents:
        return heads if euros else tails
    link = "and" if language == "en" else "und"
    whole = [f"{head} {link} {tail}" for head, tail in product(heads, tails)]
    short = [f"{head} {cardinals(cents, language)[0]}" for head in heads if cents >= 10]
    return whole + short if language == "en" else short + whole


def _amounts(number: int, coin: str, language: Language) -> list[str]:
    if language == "de":
        words = ["einen"] if number == 1 else cardinals(number, "de")
    else:
        words, coin = cardinals(number, "en"), coin.lower() + "s" * (number != 1)
    return [f"{word} {coin}" for word in words]


def dates(date: tuple[int, int], language: Language, ending: str = "") -> list[str]:
    """Returns dates, of month and day: the third of October; dritte Oktober, without its article."""
    month, day = MONTHS[language][date[0] - 1], ordinals(date[1], language, ending)[0]
    return (
        [f"{day} {month}"] if language == "de" else [f"the {day} of {month}", f"{month} the {day}"]
    )


def times(time: tuple[int, int], language: Language) -> list[str]:
    """Returns times, of the hour of twelve and every fifth minute: half past two, two thirty; halb drei."""
    now, then = UNITS[language][time[0]], UNITS[language][time[0] % 12 + 1]
    hour, minute = _linked(now), time[1]
    wording = TIMES[language][minute // 5].format(now=now, then=then, hour=hour)
    link = " Uhr " if language == "de" else " oh " if minute < 10 else " "
    return [wording, f"{hour}{link}{cardinals(minute, language)[0]}"] if minute else [wording]


# Reading

VALUES: dict[Language, dict[str, int]] = {
    language: {word.strip(): scale for scale, word in SCALES[language].items()}
    | {word: 10 * tens for tens, word in enumerate(TENS[language]) if tens}
    | {word: units for units, word in enumerate(UNITS[language])}
    for language in LANGUAGES
}
VALUES["de"]["ein"] = 1


def number_in(text: str, language: Language) -> int:
    """Adds up the number words of a text; 0 if it has none."""
    values = VALUES[language]
    thousands = rest = 0
    for word in re.findall("|".join(sorted(values, key=len, reverse=True)), text):
        value = values[word]
        if value == 1000:
            thousands, rest = 1000 * max(rest, 1), 0
        else:
            rest = 100 * max(rest, 1) if value == 100 else rest + value
    return thousands + rest


def price_in(text: str, language: Language) -> tuple[int, int]:
    """Returns the numbers before and behind `Euro`; without that word all is cents."""
    euros, cents = ["", *re.split("[eE]uro", text, maxsplit=1)][-2:]
    return number_in(euros, language), number_in(cents, language)


def decimal_in(text: str, language: Language) -> tuple[int, str]:
    """Returns the number before the point, and the digits behind it."""
    whole, _, digits = text.partition(POINTS[language])
    values = (VALUES[language].get(word, "") for word in digits.split())
    return number_in(whole, language), "".join(map(str, values))
