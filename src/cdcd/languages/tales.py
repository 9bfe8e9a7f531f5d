"""Tales: very short children's stories drawn from a small probabilistic grammar.

A corpus whose law is known exactly, so that a model's samples can be judged without a
reference model: does each sentence parse, does each reference point at something that was
introduced, and how probable is the whole story? `grammar.py` holds the machinery; here are the
words, the sentences and the plan.

How to read a sentence of the table: ``+role`` introduces a role, ``$role`` refers back to it
(these are the references that `check` counts), ``~role`` merely agrees with it, and
``role.form`` is another word for the same role (``hero.She``, ``thing.it``, ``colour.a``).
"""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from cdcd.languages.grammar import Grammar, Sentence, Value, Verdict, judge
from cdcd.languages.words import join_words, split_words

# --- The words -------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return text.split()


_GIRLS = _words("Mia Anna Lily Zoe Ruby Emma")
_BOYS = _words("Tom Ben Sam Leo Max Oscar")
_KIN = _words("friend cousin neighbour classmate playmate sibling")
_NOUNS = _words("kite lamp drum ball boat hat book coin")
_COLOURS = _words("red blue green yellow pink white orange amber")
_ONE_TREAT = _words("apple egg onion pear pie cake")
_TREATS = _words("plums cookies nuts cherries berries carrots")
_SPOTS = _words("bench tree rock bush fence cart")
_PLACES = {
    "in": _words("park garden forest castle"),
    "at": _words("market beach lake"),
    "on": _words("farm hill"),
}
_TRAVELS = _words("went walked ran skipped raced hurried")
_TEMPERS = _words("clever sly sleepy hungry angry eager friendly naughty brave funny gentle")
_SIMPLE = {
    "weather": _words("sunny rainy windy snowy foggy cold warm icy awful autumn"),
    "daypart": _words("day morning afternoon evening"),
    "travel": _TRAVELS,
    "air": _words("quiet busy empty cosy tiny big little lovely pretty old odd ancient"),
    "find": _words("found spotted discovered uncovered"),
    "bring": _words("had carried brought held"),
    "soon": _words("Soon Then Later There"),
    "greet": _words("met saw greeted hugged joined"),
    "temper": _TEMPERS,
    "animal": _words("fox owl crow cat dog goat bear mouse"),
    "twist": _words("Suddenly But Then Soon"),
    "grab": _words("grabbed stole snatched borrowed"),
    "flee": _TRAVELS,
    "win": _words("took brought"),
    "hand": _words("gave handed passed"),
    "manner": _words("gladly shyly proudly quickly quietly slowly bravely gently"),
    "enjoy": _words("played danced sat"),
    "dusk": _words("lunch supper bedtime"),
    "home": _words("quiet cosy tiny lovely pretty warm"),
    "joy": _words("happy glad proud joyful"),
    "gloom": _words("sad worried upset cross"),
    "snack": _TREATS,
    "lair": _SPOTS,
}
"""Variables that show one word; two of them may share their words."""


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _cast() -> list[Value]:
    """Hero and friend, one girl and one boy, so that every he and she has one antecedent."""
    couples = [*itertools.product(_GIRLS, _BOYS), *itertools.product(_BOYS, _GIRLS)]
    return [_couple(hero, friend, kin) for hero, friend in couples for kin in _KIN]


def _couple(hero: str, friend: str, kin: str) -> Value:
    sibling = "brother" if friend in _BOYS else "sister"
    told = sibling if kin == "sibling" else kin
    return {
        **_person("hero", hero),
        **_person("friend", friend),
        "friend.They": "They",
        "kin": told,
    }


def _person(role: str, name: str) -> Value:
    """Slots are named after the girl's words, except `him`: English has one `her` for two."""
    she, him, her = ("he", "him", "his") if name in _BOYS else ("she", "her", "her")
    forms = {"she": she, "She": she.capitalize(), "him": him, "her": her, "Her": her.capitalize()}
    return {role: name, **{f"{role}.{form}": word for form, word in forms.items()}}


def _items() -> list[Value]:
    """Coloured things: the word before the colour depends on both its sound and the number."""
    singular = [_item(noun, colour, _article(colour)) for noun in _NOUNS for colour in _COLOURS]
    amounts = itertools.product(_NOUNS, _COLOURS, ("two", "three"))
    return singular + [_item(noun + "s", colour, amount) for noun, colour, amount in amounts]


def _item(noun: str, colour: str, amount: str) -> Value:
    one = {"thing.it": "it", "thing.It": "It", "thing.was": "was", "thing.has": "has"}
    many = {"thing.it": "them", "thing.It": "They", "thing.was": "were", "thing.has": "have"}
    agreement = many if amount in ("two", "three") else one
    return {"thing": noun, "colour": colour, "colour.a": amount, **agreement}


def _treats() -> list[Value]:
    return [_treat(treat) for treat in _ONE_TREAT + _TREATS]


def _treat(treat: str) -> Value:
    a = "some" if treat in _TREATS else _article(treat)
    return {"treat": treat, "treat.a": a, "treat.A": a.capitalize()}


def _spots() -> list[Value]:
    pairs = itertools.product(_SPOTS, _words("under behind beside near"))
    return [{"spot": s, "spot.under": p, "spot.Under": p.capitalize()} for s, p in pairs]


def _places() -> list[Value]:
    pairs = [(place, at) for at, places in _PLACES.items() for place in places]
    return [{"place": p, "place.in": at, "place.In": at.capitalize()} for p, at in pairs]


def _feasts() -> list[Value]:
    return [{"dish": one, "side": two} for one, two in itertools.permutations(_TREATS, 2)]


def _simple(role: str, words: Iterable[str]) -> list[Value]:
    return [{role: word, f"{role}.a": _article(word)} for word in words]


VARIABLES: Mapping[str, Sequence[Value]] = {
    "cast": _cast(),
    "item": _items(),
    "treat": _treats(),
    "spot": _spots(),
    "place": _places(),
    "feast": _feasts(),
    **{role: _simple(role, words) for role, words in _SIMPLE.items()},
}

# --- The sentences and the plan --------------------------------------------------------------


SENTENCES: Mapping[str, Sentence] = {
    # Where and when.
    "went": Sentence("One +weather +daypart +hero +travel to the +place ."),
    "was": Sentence("+hero was ~place.in the +place one +weather +daypart ."),
    "stayed": Sentence("+hero was ~place.in the +air +place ."),
    # The thing, and the friend.
    "found": Sentence(
        "$hero.She +find ~colour.a +colour +thing +spot.under the +spot .",
        sets="owner=hero spot=found",
    ),
    "lay": Sentence(
        "+spot.Under the +spot ~thing.was ~colour.a +colour +thing .",
        sets="owner=hero spot=found",
    ),
    "had": Sentence("$hero.She +bring ~colour.a +colour +thing .", sets="owner=hero"),
    "met": Sentence("+soon $hero.she +greet $hero.her +kin +friend .", sets="met=yes"),
    # What happens to it.
    "kept": Sentence("$hero.She +manner took $thing.it home .", needs="owner=hero"),
    "homed": Sentence("Now the $thing ~thing.has a +home home .", needs="owner=hero"),
    "gave": Sentence(
        "$hero.She +manner +hand $thing.it to $friend.him .",
        needs="owner=hero",
        sets="owner=friend",
    ),
    "traded": Sentence(
        "$friend gave $hero.him ~treat.a +treat for $thing.it .",
        needs="owner=hero",
        sets="owner=friend treat=friend",
    ),
    "refused": Sentence("$friend offered +snack , but $hero.she refused ."),
    "shared": Sentence("$friend.They +enjoy with $thing.it until +dusk ."),
    "feasted": Sentence("$friend.They ate +dish and +side ."),
    "hid": Sentence(
        "$hero.She hid $thing.it +spot.under the +spot .",
        needs="owner=hero",
        sets="owner=nobody spot=hid",
    ),
    "sought": Sentence("But $friend.she +find $thing.it .", needs="spot=hid", sets="owner=friend"),
    "stole": Sentence(
        "+twist ~temper.a +temper +animal +grab $thing.it .",
        needs="owner=hero",
        sets="owner=animal thief=animal",
    ),
    "rescued": Sentence("$friend +win $thing.it back .", needs="owner=animal", sets="owner=friend"),
    "bartered": Sentence(
        "$hero.She traded ~treat.a +treat for $thing.it .",
        needs="owner=animal",
        sets="owner=hero treat=hero",
    ),
    "returned": Sentence(
        "But the $animal +hand $thing.it back .", needs="owner=animal", sets="owner=hero"
    ),
    "fled": Sentence("The $animal +flee to the +lair .", sets="gone=animal"),
    "begged": Sentence("The $animal only wanted +snack ."),
    # How they feel.
    "pleased": Sentence("How +joy $friend.she was !", sets="feel=friend"),
    "cheered": Sentence("$friend.She felt +joy .", sets="feel=friend"),
    "rejoiced": Sentence("$friend.They felt +joy ."),
    "grieved": Sentence("$hero.She felt +gloom .", sets="feel=hero"),
    # Questions, and their answers.
    "who_has": Sentence("Who has the $thing now ?", sets="asked=owner"),
    "who_stole": Sentence("Who $grab the $thing ?", needs="thief=animal", sets="asked=thief"),
    "who_is": Sentence("Who is $friend ?", needs="met=yes", sets="asked=kin"),
    "where_find": Sentence(
        "Where did $hero find $thing.it ?", needs="spot=found", sets="asked=spot"
    ),
    "where_hide": Sentence("Where did $hero hide $thing.it ?", needs="spot=hid", sets="asked=spot"),
    "where_meet": Sentence("Where did $hero meet $friend ?", needs="met=yes", sets="asked=place"),
    "where_go": Sentence("Where did the $animal go ?", needs="gone=animal", sets="asked=lair"),
    "where_was": Sentence("Where was $hero ?", sets="asked=place"),
    "what_colour": Sentence("What colour ~thing.was the $thing ?", sets="asked=colour"),
    "what_got": Sentence("What did $friend give $hero ?", needs="treat=friend", sets="asked=treat"),
    "what_paid": Sentence("What did $hero trade ?", needs="treat=hero", sets="asked=treat"),
    "how_friend": Sentence("How did $friend feel ?", needs="feel=friend", sets="asked=joy"),
    "how_hero": Sentence("How did $hero feel ?", needs="feel=hero", sets="asked=gloom"),
    "hero": Sentence("$hero .", needs="asked=owner owner=hero"),
    "friend": Sentence("$friend .", needs="asked=owner owner=friend"),
    "animal": Sentence("The $animal .", needs="asked=owner owner=animal"),
    "thief": Sentence("The $animal .", needs="asked=thief"),
    "kin": Sentence("$hero.Her $kin .", needs="asked=kin"),
    "spot": Sentence("$spot.Under the $spot .", needs="asked=spot"),
    "lair": Sentence("To the $lair .", needs="asked=lair"),
    "place": Sentence("$place.In the $place .", needs="asked=place"),
    "colour": Sentence("$thing.It ~thing.was $colour .", needs="asked=colour"),
    "treat": Sentence("$treat.A $treat .", needs="asked=treat"),
    "joy": Sentence("$friend.She felt $joy .", needs="asked=joy"),
    "gloom": Sentence("$hero.She felt $gloom .", needs="asked=gloom"),
}

PLAN: Mapping[str, str] = {
    "open": "4 went > start | 3 was > start | 3 stayed > start",
    "start": "3 found > got | 3 lay > got | 5 had > held",
    "got": "4 met > meeting | 5 stole > robbed | 1 kept > ask | 1 kept > keep",
    "keep": "1 homed > ask",
    "meeting": "2 gave > ask | 4 traded > ask | 2 refused > quick | 2 shared > ask | 3 feasted > ask",
    "held": "7 met > outing | 3 stole > robbed",
    "outing": "3 gave > glad | 4 traded > ask | 2 refused > ask | 2 shared > merry"
    " | 3 feasted > merry | 3 hid > hidden | 2 hid > wonder | 4 stole > chase",
    "glad": "1 pleased > quick | 1 cheered > ask",
    "merry": "1 rejoiced > ask",
    "hidden": "1 sought > quick",
    "chase": "1 rescued > quick | 1 grieved > ask",
    "robbed": "5 bartered > ask | 3 returned > ask | 4 fled > ask | 3 begged > ask"
    " | 3 grieved > ask",
    "ask": "4 who_has > answer | 3 who_stole > answer | 2 who_is > answer | 3 where_find > answer"
    " | 3 where_hide > answer | 2 where_meet > answer | 1 where_was > answer"
    " | 5 where_go > answer | 2 what_colour > answer | 6 what_got > answer | 6 what_paid > answer"
    " | 4 how_friend > answer | 4 how_hero > answer",
    "quick": "3 who_has > answer | 3 who_stole > answer | 2 who_is > answer | 3 how_friend > answer",
    "wonder": "2 where_hide > answer | 1 what_colour > answer | 1 who_is > answer",
    "answer": "1 hero > end | 1 friend > end | 1 animal > end | 1 thief > end | 1 kin > end"
    " | 1 spot > end | 1 lair > end | 1 place > end | 1 colour > end | 1 treat > end"
    " | 1 joy > end | 1 gloom > end",
}
"""For each act, ``weight sentence > next act``; a sentence whose needs fail is left out."""

_GRAMMAR = Grammar(VARIABLES, SENTENCES, PLAN)

VOCABULARY: tuple[str, ...] = _GRAMMAR.vocabulary()
"""Every word and punctuation mark, sorted; no special tokens."""

MAX_WORDS: int = _GRAMMAR.root.longest
"""Words and marks in the longest possible story."""


def generate(rng: random.Random) -> list[str]:
    """The words of one story."""
    return _GRAMMAR.tell(rng)


def stories(count: int, *, seed: int) -> list[str]:
    """The texts of `count` independent stories; the same seed gives the same stories."""
    rng = random.Random(seed)
    return [join_words(generate(rng)) for _ in range(count)]


def log_prob(words: Sequence[str]) -> float | None:
    """Exact log-probability in nats of a whole story; None if the grammar cannot tell it."""
    return _GRAMMAR.log_prob(words)


def check(text: str) -> Verdict:
    """Judge any text: which sentences parse, which references are right, how likely it is."""
    return judge(_GRAMMAR, split_words(text))
