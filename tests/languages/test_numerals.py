"""Numerals: number words against a second implementation and a table, sentences against the judge."""

import random
import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.data.tokenizers import MorphemeTokenizer, load_tokenizer, numerals_tokenizer
from cdcd.data.vocabulary import UNKNOWN
from cdcd.languages import number_words as words
from cdcd.languages import numerals
from cdcd.languages.number_words import LANGUAGES, LARGEST
from cdcd.languages.numerals import DIRECTIONS, Meaning, check, parse, sample_pairs, wordings
from cdcd.languages.phrasebook import FRAMES, KINDS, SLOT, kinds_in
from cdcd.presets import preset

NUMBERS = st.one_of(st.integers(0, 1200), st.integers(0, LARGEST))

# Number words

CARDINALS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    11: ("eleven", "elf"),
    12: ("twelve", "zwölf"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    40: ("forty", "vierzig"),
    66: ("sixty-six", "sechsundsechzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    100: ("one hundred", "einhundert|hundert"),
    101: ("one hundred and one|one hundred one", "einhunderteins|hunderteins"),
    121: ("one hundred and twenty-one|one hundred twenty-one",
          "einhunderteinundzwanzig|hunderteinundzwanzig"),
    200: ("two hundred", "zweihundert"),
    1000: ("one thousand", "eintausend|tausend"),
    1001: ("one thousand and one|one thousand one", "eintausendeins|tausendeins"),
    1100: ("one thousand one hundred",
           "eintausendeinhundert|eintausendhundert|tausendeinhundert|tausendhundert"),
    2026: ("two thousand and twenty-six|two thousand twenty-six", "zweitausendsechsundzwanzig"),
    21_000: ("twenty-one thousand", "einundzwanzigtausend"),
    201_000: ("two hundred and one thousand|two hundred one thousand", "zweihunderteintausend"),
    316_717: ("three hundred and sixteen thousand seven hundred and seventeen|"
              "three hundred and sixteen thousand seven hundred seventeen|"
              "three hundred sixteen thousand seven hundred and seventeen|"
              "three hundred sixteen thousand seven hundred seventeen",
              "dreihundertsechzehntausendsiebenhundertsiebzehn"),
}  # fmt: skip


@pytest.mark.parametrize("number", CARDINALS)
def test_cardinals_by_hand(number):
    for language, wanted in zip(LANGUAGES, CARDINALS[number], strict=True):
        assert words.cardinals(number, language) == wanted.split("|")


def english_oracle(number):
    """Digit by digit from the right, without `and`."""
    digits = f"{number:06d}"
    ones = ["?", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    teens = ["ten", "eleven", "twelve", "thir", "four", "fif", "six", "seven", "eigh", "nine"]
    tens = ["?", "?", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    said = []
    for triple, scale in ((digits[:3], "thousand"), (digits[3:], "")):
        h, t, o = map(int, triple)
        said += [ones[h], "hundred"] if h else []
        if t == 1:
            said.append(teens[o] + ("teen" if o > 2 else ""))
        elif t and o:
            said.append(f"{tens[t]}-{ones[o]}")
        elif t or o:
            said.append(tens[t] if t else ones[o])
        said += [scale] if scale and int(triple) else []
    return " ".join(said) or "zero"


def german_oracle(number):
    """Written regularly, then put right by spelling rules."""
    if number == 0:
        return "null"
    ones = ["?", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    said = ""
    for place, triple in enumerate((number // 1000, number % 1000)):
        h, t, o = triple // 100, triple // 10 % 10, triple % 10
        said += f"{ones[h]}hundert" if h else ""
        said += ones[o] if o else ""
        said += "und" if o and t > 1 else ""
        said += f"{'zehn' if t == 1 else ones[t] + 'zig'}" if t else ""
        said += "tausend" if triple and not place else ""
    for regular, right in (
        ("einzehn", "elf"), ("zweizehn", "zwölf"), ("sechszehn", "sechzehn"),
        ("siebenzehn", "siebzehn"), ("zweizig", "zwanzig"), ("dreizig", "dreißig"),
        ("sechszig", "sechzig"), ("siebenzig", "siebzig"),
    ):  # fmt: skip
        said = said.replace(regular, right)
    return re.sub("ein$", "eins", said)


@pytest.mark.parametrize("language", LANGUAGES)
def test_cardinals_against_a_second_implementation(language):
    oracle = english_oracle if language == "en" else german_oracle
    for number in [*range(3000), *range(3000, LARGEST + 1, 997), LARGEST]:
        found = words.cardinals(number, language)
        assert (found[-1] if language == "en" else found[0]) == oracle(number)
        assert len(set(found)) == len(found)


def test_ordinals_by_hand():
    for number, english, german in (
        (1, "first", "erste"), (2, "second", "zweite"), (3, "third", "dritte"),
        (4, "fourth", "vierte"), (5, "fifth", "fünfte"), (7, "seventh", "siebte"),
        (8, "eighth", "achte"), (9, "ninth", "neunte"), (12, "twelfth", "zwölfte"),
        (17, "seventeenth", "siebzehnte"), (19, "nineteenth", "neunzehnte"),
        (20, "twentieth", "zwanzigste"), (21, "twenty-first", "einundzwanzigste"),
        (28, "twenty-eighth", "achtundzwanzigste"), (30, "thirtieth", "dreißigste"),
        (43, "forty-third", "dreiundvierzigste"), (100, "one hundredth", "einhundertste"),
        (101, "one hundred and first", "einhunderterste"),
        (108, "one hundred and eighth", "einhundertachte"),
        (112, "one hundred and twelfth", "einhundertzwölfte"),
    ):  # fmt: skip
        assert words.ordinals(number, "en")[0] == english
        assert words.ordinals(number, "de", "e")[0] == german
        assert words.ordinals(number, "de", "en")[0] == german + "n"


def test_years_by_hand():
    for year, english, german in (
        (1500, "fifteen hundred", "fünfzehnhundert"),
        (1905, "nineteen oh five|nineteen hundred and five", "neunzehnhundertfünf"),
        (1990, "nineteen ninety", "neunzehnhundertneunzig"),
        (2000, "two thousand", "zweitausend"),
        (2001, "two thousand and one|two thousand one", "zweitausendeins"),
        (2026, "twenty twenty-six|two thousand and twenty-six|two thousand twenty-six",
         "zweitausendsechsundzwanzig"),
    ):  # fmt: skip
        assert words.years(year, "en") == english.split("|")
        assert words.years(year, "de") == german.split("|")


def test_times_by_hand():
    for time, english, german in (
        ((2, 0), "two o'clock", "zwei Uhr"),
        ((1, 0), "one o'clock", "ein Uhr"),
        ((2, 5), "five past two|two oh five", "fünf nach zwei|zwei Uhr fünf"),
        ((1, 15), "quarter past one|one fifteen", "Viertel nach eins|ein Uhr fünfzehn"),
        ((2, 25), "twenty-five past two|two twenty-five",
         "fünf vor halb drei|zwei Uhr fünfundzwanzig"),
        ((2, 30), "half past two|two thirty", "halb drei|zwei Uhr dreißig"),
        ((12, 30), "half past twelve|twelve thirty", "halb eins|zwölf Uhr dreißig"),
        ((2, 35), "twenty-five to three|two thirty-five",
         "fünf nach halb drei|zwei Uhr fünfunddreißig"),
        ((2, 40), "twenty to three|two forty", "zwanzig vor drei|zwei Uhr vierzig"),
        ((12, 45), "quarter to one|twelve forty-five",
         "Viertel vor eins|zwölf Uhr fünfundvierzig"),
    ):  # fmt: skip
        assert words.times(time, "en") == english.split("|")
        assert words.times(time, "de") == german.split("|")


def test_prices_decimals_and_dates_by_hand():
    assert words.prices((1, 1), "en") == ["one euro and one cent"]
    assert words.prices((1, 1), "de") == ["einen Euro und einen Cent"]
    assert words.prices((3, 50), "en") == ["three euros and fifty cents", "three euros fifty"]
    assert words.prices((3, 50), "de") == ["drei Euro fünfzig", "drei Euro und fünfzig Cent"]
    assert words.prices((0, 99), "de") == ["neunundneunzig Cent"]
    assert words.prices((21, 0), "de") == ["einundzwanzig Euro"]
    assert words.decimals((3, "14"), "en") == ["three point one four"]
    assert words.decimals((0, "05"), "de") == ["null Komma null fünf"]
    assert words.dates((10, 3), "en") == ["the third of October", "October the third"]
    assert words.dates((10, 3), "de", "en") == ["dritten Oktober"]


@pytest.mark.parametrize("language", LANGUAGES)
@given(number=NUMBERS)
def test_cardinals_are_read_back(language, number):
    for text in words.cardinals(number, language):
        assert KINDS["number"].read(text, language, "") == [number]


@pytest.mark.parametrize("language", LANGUAGES)
def test_prices_are_read_back(language):
    for price in product([*range(25), 60, 67, 101, 116, 777], range(100)):
        for text in words.prices(price, language):
            assert KINDS["price"].read(text, language, "") == [price]


@pytest.mark.parametrize("language", LANGUAGES)
@given(whole=st.integers(0, 9999), digits=st.text("0123456789", min_size=1, max_size=4))
def test_decimals_are_read_back(language, whole, digits):
    for text in words.decimals((whole, digits), language):
        assert KINDS["decimal"].read(text, language, "") == [(whole, digits)]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("", "en"), ("", "de"), ("thousand", "en"), ("hundert", "en"), ("five hundred and", "en"),
        ("zero thousand", "en"), ("one thousand thousand", "en"), ("twenty one", "en"),
        ("einszwanzig", "de"), ("einsundzwanzig", "de"), ("zwanzigundeins", "de"),
        ("einstausend", "de"), ("hundertein", "de"), ("tausendtausend", "de"),
        ("sechszehn", "de"), ("siebenzehn", "de"), ("dreizig", "de"), ("nulltausend", "de"),
    ],
)  # fmt: skip
def test_what_is_no_number(text, language):
    point, cents = (" point one", " cents") if language == "en" else (" Komma eins", " Cent")
    for kind, said in (("number", text), ("price", text + cents), ("decimal", text + point)):
        assert KINDS[kind].read(said, language, "") == []


# Sentences


def meanings(count, seed=0):
    rng = random.Random(seed)
    return [numerals.draw(rng) for _ in range(count)]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sentences_are_read_back(seed):
    meaning = numerals.draw(random.Random(seed))
    for language in LANGUAGES:
        for text in wordings(meaning, language):
            assert parse(text, language) == {meaning}


def test_sentences_by_hand():
    for frame, values, english, german in (
        ("rise", {"person": "Anna", "time": (2, 30)},
         "Anna gets up at half past two in the morning.", "Anna steht morgens um halb drei auf."),
        ("today", {"date": (10, 3)}, "Today is the third of October.",
         "Heute ist der dritte Oktober."),
        ("arrives", {"person": "Ben", "date": (3, 21)}, "Ben arrives on the twenty-first of March.",
         "Ben kommt am einundzwanzigsten März an."),
        ("party", {"weekday": "Monday", "date": (7, 1)},
         "The party takes place on Monday, the first of July.",
         "Die Feier findet am Montag, dem ersten Juli, statt."),
        ("if", {"item": "coat", "price": (1, 20), "person": "Emma"},
         "If the coat costs one euro and twenty cents, Emma buys it.",
         "Wenn der Mantel einen Euro zwanzig kostet, kauft Emma ihn."),
        ("there", {"person": "Felix", "count": 21, "things": "apples"},
         "Felix says that there are twenty-one apples here.",
         "Felix sagt, dass es hier einundzwanzig Äpfel gibt."),
        ("ask", {"vehicle": "ferry", "time": (1, 0)}, "Does the ferry leave at one o'clock?",
         "Fährt die Fähre um ein Uhr ab?"),
    ):  # fmt: skip
        meaning = Meaning(frame, tuple(values.items()))
        assert wordings(meaning, "en")[0] == english
        assert wordings(meaning, "de")[0] == german


def test_every_template_says_the_whole_meaning():
    for frame, templates in FRAMES.items():
        for template in (*templates["en"], *templates["de"]):
            assert {kind for kind, _ in SLOT.findall(template)} == set(kinds_in(frame)), template
            assert template[-1] in ".?"
    assert {kind for frame in FRAMES for kind in kinds_in(frame)} == set(KINDS)


def test_pairs_are_a_function_of_seed_and_number():
    pairs = sample_pairs(50, seed=3)
    assert sample_pairs(20, seed=3, first=30) == pairs[30:]
    assert sample_pairs(50, seed=4) != pairs
    assert len(set(sample_pairs(1000, seed=0))) > 900


def test_held_out_meanings_are_a_tenth_and_apart():
    assert 0.07 < sum(map(numerals.is_held_out, meanings(2000, 3))) / 2000 < 0.13
    for held_out in (True, False):
        for english, _ in sample_pairs(300, seed=0, held_out=held_out):
            (meaning,) = parse(english, "en")
            assert numerals.is_held_out(meaning) == held_out


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_pair_passes_its_own_judge(direction):
    plainest = {"en-de": 1, "de-en": 0}[direction]
    for pair in sample_pairs(2000, seed=5, direction=direction):
        source, target = pair if direction == "en-de" else pair[::-1]
        assert check(source, target, direction) == "right"
        language = LANGUAGES[plainest]
        (meaning,) = parse(target, language)
        assert target == wordings(meaning, language)[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_translation_is_right_exactly_where_the_grammar_has_it(direction):
    """One word replaced, left out, doubled or swapped: right only if it is another wording."""
    rng = random.Random(1)
    source_language, language = direction.split("-")
    pool = [word for m in meanings(300, 9) for word in wordings(m, language)[0].split()]
    reasons = set()
    for meaning in meanings(400, 7):
        source = rng.choice(wordings(meaning, source_language))
        right = wordings(meaning, language)
        for damage in damages(rng.choice(right).split(), pool, rng):
            verdict = check(source, " ".join(damage), direction)
            assert (verdict == "right") == (" ".join(damage) in right), (source, damage, verdict)
            reasons.add(verdict)
    assert reasons >= {"right", "not grammatical", "wrong number", "wrong words"}


def damages(said, pool, rng):
    place = rng.randrange(len(said))
    yield [*said[:place], rng.choice(pool), *said[place + 1 :]]
    yield [*said[:place], *said[place + 1 :]]
    yield [*said[: place + 1], *said[place:]]
    yield [*said[:place], *said[place : place + 2][::-1], *said[place + 2 :]]


def test_every_wording_is_accepted_for_every_wording():
    for meaning in meanings(100, 11):
        english, german = wordings(meaning, "en"), wordings(meaning, "de")
        for one, other in product(english, german):
            assert check(one, other, "en-de") == "right"
            assert check(other, one, "de-en") == "right"


def test_what_is_wrong_is_named():
    for source, hypothesis, reason in (
        ("The number is five.", "Die Zahl ist sechs.", "wrong number"),
        ("The number is five.", "Die Zahl ist fünf", "not grammatical"),
        ("The number is five.", "die Zahl ist fünf.", "not grammatical"),
        ("The number is five.", "Die zahl ist fünf.", "not grammatical"),
        ("The number is five.", "The number is five.", "not grammatical"),
        ("The number is five.", "", "not grammatical"),
        ("It is half past two.", "Es ist halb zwei.", "wrong time"),
        ("Today is the third of May.", "Heute ist der dritte März.", "wrong date"),
        ("Today is the third of May.", "Heute ist der dritten Mai.", "not grammatical"),
        ("Ben was born in nineteen ninety.", "Ben wurde neunzehnhundertneun geboren.",
         "wrong year"),
        ("Ben was born in nineteen ninety.", "Anna wurde neunzehnhundertneunzig geboren.",
         "wrong words"),
        ("The book costs one euro.", "Das Buch kostet zwei Euro.", "wrong price"),
        ("The book costs one euro.", "Das Buch kostet ein Euro.", "not grammatical"),
        ("Ben arrives on the third of May.", "Ben ankommt am dritten Mai.", "not grammatical"),
        ("If the coat costs one euro, Ben buys it.",
         "Wenn der Mantel einen Euro kostet, kauft Ben sie.", "not grammatical"),
    ):  # fmt: skip
        assert check(source, hypothesis, "en-de") == reason, hypothesis


def test_mistakes():
    with pytest.raises(ValueError, match=r"unknown direction en-fr; did you mean"):
        check("It is two o'clock.", "", "en-fr")
    with pytest.raises(ValueError, match=r"unknown direction fr; known: de-en, en-de"):
        sample_pairs(1, seed=0, direction="fr")
    with pytest.raises(ValueError, match=r"'It is late.' is not a sentence of the task in en"):
        check("It is late.", "Es ist spät.", "en-de")


# Tokens


def test_the_tokenizer_has_every_word(tmp_path):
    tokenizer = numerals_tokenizer()
    assert tokenizer.vocab_size < 400
    longest = 0
    for meaning in meanings(1500, 13):
        for text in (*wordings(meaning, "en"), *wordings(meaning, "de")):
            tokens = tokenizer.encode(text, strict=True)
            assert tokenizer.decode(tokens) == text
            longest = max(longest, len(tokens))
    worst = Meaning("there", (("person", "Ben"), ("count", 777_777), ("things", "books")))
    for language in LANGUAGES:
        longest = max(longest, *(len(tokenizer.encode(t)) for t in wordings(worst, language)))
    assert longest < preset("numerals").data.length
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).content == tokenizer.content


def test_morphemes():
    tokenizer = MorphemeTokenizer(["zwei", "zwanzig", "##und", "##zwanzig", "##."])
    assert tokenizer.pieces("zweiundzwanzig.") == ["zwei", "##und", "##zwanzig", "##."]
    assert (
        tokenizer.decode(tokenizer.encode("zweiundzwanzig zwanzig.")) == "zweiundzwanzig zwanzig."
    )
    assert tokenizer.encode("zweihundert drei") == [3, UNKNOWN, UNKNOWN]
    with pytest.raises(ValueError, match=r"the part '##hundert' is not in the model's vocabulary"):
        tokenizer.encode("zweihundert", strict=True)
