"""Tales: very short children's stories drawn from a small probabilistic grammar.

A corpus whose law is known exactly, so that a model's samples can be judged without a
reference model: does each sentence parse, does each reference point at something that was
introduced, and how probable is the whole story? `grammar.py` holds the machinery; here are the
words, the sentences and the plan.

In a sentence of the table ``+role`` introduces a role, ``$role`` refers back to it (these are the
references that `check` counts), ``~role`` merely agrees with it, and ``role.form`` is another word
for the same role (``hero.She``, ``thing.it``, ``colour.a``). Behind it stand [the facts that it needs]
and -> the facts that it sets. In the plan an act has its choices, ``weight sentence, … > next act``; a
sentence whose needs fail is left out.
"""

import itertools
import random
from collections.abc import Mapping, Sequence

from cdcd.languages.grammar import Grammar, Value, Verdict, judge
from cdcd.languages.word_splitting import join_words, split_words

# --- The words -------------------------------------------------------------------------------

_GIRLS = ["Mia", "Anna", "Lily", "Zoe", "Ruby", "Emma"]
_BOYS = ["Tom", "Ben", "Sam", "Leo", "Max", "Oscar"]
_KIN = ["friend", "cousin", "neighbour", "classmate", "playmate", "sibling"]
_NOUNS = ["kite", "lamp", "drum", "ball", "boat", "hat", "book", "coin"]
_COLOURS = ["red", "blue", "green", "yellow", "pink", "white", "orange", "amber"]
_ONE_TREAT = ["apple", "egg", "onion", "pear", "pie", "cake"]
_TREATS = ["plums", "cookies", "nuts", "cherries", "berries", "carrots"]
_SPOTS = ["bench", "tree", "rock", "bush", "fence", "cart"]
_PLACES = {"in": "park garden forest castle", "at": "market beach lake", "on": "farm hill"}
_TRAVELS = "went walked ran skipped raced hurried"
_ONE_WORD = {
    "weather": "sunny rainy windy snowy foggy cold warm icy awful autumn",
    "daypart": "day morning afternoon evening",
    "travel": _TRAVELS,
    "air": "quiet busy empty cosy tiny big little lovely pretty old odd ancient",
    "find": "found spotted discovered uncovered",
    "bring": "had carried brought held",
    "soon": "Soon Then Later There",
    "greet": "met saw greeted hugged joined",
    "temper": "clever sly sleepy hungry angry eager friendly naughty brave funny gentle",
    "animal": "fox owl crow cat dog goat bear mouse",
    "twist": "Suddenly But Then Soon",
    "grab": "grabbed stole snatched borrowed",
    "flee": _TRAVELS,
    "win": "took brought",
    "hand": "gave handed passed",
    "manner": "gladly shyly proudly quickly quietly slowly bravely gently",
    "enjoy": "played danced sat",
    "dusk": "lunch supper bedtime",
    "home": "quiet cosy tiny lovely pretty warm",
    "joy": "happy glad proud joyful",
    "gloom": "sad worried upset cross",
    "snack": " ".join(_TREATS),
    "lair": " ".join(_SPOTS),
}
"""Variables that show one word; two of them may share their words."""


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _value(role: str, word: str, **forms: str) -> dict[str, str]:
    """Returns the slots of a role: its word, and other words for it by their forms, also capitalised."""
    capitalised = {form.capitalize(): word.capitalize() for form, word in forms.items()}
    return {role: word} | {f"{role}.{form}": word for form, word in (forms | capitalised).items()}


def _couple(hero: str, friend: str, kin: str) -> Value:
    sibling = "brother" if friend in _BOYS else "sister"
    kin = sibling if kin == "sibling" else kin
    return {**_person("hero", hero), **_person("friend", friend), "friend.They": "They", "kin": kin}


def _person(role: str, name: str) -> Value:
    """Returns slots named after the girl's words, except `him`: English has one `her` for two."""
    she, him, her = ("he", "him", "his") if name in _BOYS else ("she", "her", "her")
    return _value(role, name, she=she, him=him, her=her)


def _item(noun: str, colour: str, amount: str) -> Value:
    if amount in ("two", "three"):
        forms = _value("thing", noun + "s", it="them", was="were", has="have")
        forms["thing.It"] = "They"
    else:
        forms = _value("thing", noun, it="it", was="was", has="has")
    return {**forms, "colour": colour, "colour.a": amount}


_COLOURED = [*itertools.product(_NOUNS, _COLOURS)]
_COUPLES = [*itertools.product(_GIRLS, _BOYS), *itertools.product(_BOYS, _GIRLS)]
"""Hero and friend, one girl and one boy, so that every he and she has one antecedent."""

VARIABLES: Mapping[str, Sequence[Value]] = {
    "cast": [_couple(hero, friend, kin) for hero, friend in _COUPLES for kin in _KIN],
    # The word before the colour depends on both its sound and the number.
    "item": [
        *(_item(noun, colour, _article(colour)) for noun, colour in _COLOURED),
        *(_item(*coloured, amount) for coloured in _COLOURED for amount in ("two", "three")),
    ],
    "treat": [
        *(_value("treat", treat, a=_article(treat)) for treat in _ONE_TREAT),
        *(_value("treat", treat, a="some") for treat in _TREATS),
    ],
    "spot": [
        _value("spot", spot, under=under)
        for spot in _SPOTS
        for under in ("under", "behind", "beside", "near")
    ],
    "place": [
        _value("place", name, **{"in": at})
        for at, names in _PLACES.items()
        for name in names.split()
    ],
    "feast": [{"dish": one, "side": two} for one, two in itertools.permutations(_TREATS, 2)],
    **{
        role: [_value(role, word, a=_article(word)) for word in words.split()]
        for role, words in _ONE_WORD.items()
    },
}

# --- The sentences and the plan --------------------------------------------------------------


SENTENCES = """
    went: One +weather +daypart +hero +travel to the +place .
    was: +hero was ~place.in the +place one +weather +daypart .
    stayed: +hero was ~place.in the +air +place .

    found: $hero.She +find ~colour.a +colour +thing +spot.under the +spot .  -> owner=hero spot=found
    lay: +spot.Under the +spot ~thing.was ~colour.a +colour +thing .  -> owner=hero spot=found
    had: $hero.She +bring ~colour.a +colour +thing .  -> owner=hero
    met: +soon $hero.she +greet $hero.her +kin +friend .  -> met=yes

    kept: $hero.She +manner took $thing.it home .  [owner=hero]
    homed: Now the $thing ~thing.has a +home home .  [owner=hero]
    gave: $hero.She +manner +hand $thing.it to $friend.him .  [owner=hero]  -> owner=friend
    traded: $friend gave $hero.him ~treat.a +treat for $thing.it .  [owner=hero]  -> owner=friend treat=friend
    refused: $friend offered +snack , but $hero.she refused .
    shared: $friend.They +enjoy with $thing.it until +dusk .
    feasted: $friend.They ate +dish and +side .
    hid: $hero.She hid $thing.it +spot.under the +spot .  [owner=hero]  -> owner=nobody spot=hid
    sought: But $friend.she +find $thing.it .  [spot=hid]  -> owner=friend
    stole: +twist ~temper.a +temper +animal +grab $thing.it .  [owner=hero]  -> owner=animal thief=animal
    rescued: $friend +win $thing.it back .  [owner=animal]  -> owner=friend
    bartered: $hero.She traded ~treat.a +treat for $thing.it .  [owner=animal]  -> owner=hero treat=hero
    returned: But the $animal +hand $thing.it back .  [owner=animal]  -> owner=hero
    fled: The $animal +flee to the +lair .  -> gone=animal
    begged: The $animal only wanted +snack .

    pleased: How +joy $friend.she was !  -> feel=friend
    cheered: $friend.She felt +joy .  -> feel=friend
    rejoiced: $friend.They felt +joy .
    grieved: $hero.She felt +gloom .  -> feel=hero

    who_has: Who has the $thing now ?  -> asked=owner
    who_stole: Who $grab the $thing ?  [thief=animal]  -> asked=thief
    who_is: Who is $friend ?  [met=yes]  -> asked=kin
    where_find: Where did $hero find $thing.it ?  [spot=found]  -> asked=spot
    where_hide: Where did $hero hide $thing.it ?  [spot=hid]  -> asked=spot
    where_meet: Where did $hero meet $friend ?  [met=yes]  -> asked=place
    where_go: Where did the $animal go ?  [gone=animal]  -> asked=lair
    where_was: Where was $hero ?  -> asked=place
    what_colour: What colour ~thing.was the $thing ?  -> asked=colour
    what_got: What did $friend give $hero ?  [treat=friend]  -> asked=treat
    what_paid: What did $hero trade ?  [treat=hero]  -> asked=treat
    how_friend: How did $friend feel ?  [feel=friend]  -> asked=joy
    how_hero: How did $hero feel ?  [feel=hero]  -> asked=gloom

    hero: $hero .  [asked=owner owner=hero]
    friend: $friend .  [asked=owner owner=friend]
    animal: The $animal .  [asked=owner owner=animal]
    thief: The $animal .  [asked=thief]
    kin: $hero.Her $kin .  [asked=kin]
    spot: $spot.Under the $spot .  [asked=spot]
    lair: To the $lair .  [asked=lair]
    place: $place.In the $place .  [asked=place]
    colour: $thing.It ~thing.was $colour .  [asked=colour]
    treat: $treat.A $treat .  [asked=treat]
    joy: $friend.She felt $joy .  [asked=joy]
    gloom: $hero.She felt $gloom .  [asked=gloom]
"""

PLAN = """
    open: 4 went, 3 was, 3 stayed > start
    start: 3 found, 3 lay > got | 5 had > held
    got: 4 met > meeting | 5 stole > robbed | 1 kept > ask | 1 kept > keep
    keep: 1 homed > ask
    meeting: 2 gave, 4 traded > ask | 2 refused > quick | 2 shared, 3 feasted > ask
    held: 7 met > outing | 3 stole > robbed
    outing: 3 gave > glad | 4 traded, 2 refused > ask | 2 shared, 3 feasted > merry
    outing: 3 hid > hidden | 2 hid > wonder | 4 stole > chase
    glad: 1 pleased > quick | 1 cheered > ask
    merry: 1 rejoiced > ask
    hidden: 1 sought > quick
    chase: 1 rescued > quick | 1 grieved > ask
    robbed: 5 bartered, 3 returned, 4 fled, 3 begged, 3 grieved > ask
    ask: 4 who_has, 3 who_stole, 2 who_is, 3 where_find, 3 where_hide, 2 where_meet > answer
    ask: 1 where_was, 5 where_go, 2 what_colour, 6 what_got, 6 what_paid > answer
    ask: 4 how_friend, 4 how_hero > answer
    quick: 3 who_has, 3 who_stole, 2 who_is, 3 how_friend > answer
    wonder: 2 where_hide, 1 what_colour, 1 who_is > answer
    answer: 1 hero, 1 friend, 1 animal, 1 thief, 1 kin, 1 spot, 1 lair, 1 place > end
    answer: 1 colour, 1 treat, 1 joy, 1 gloom > end
"""
GRAMMAR = Grammar(VARIABLES, SENTENCES, PLAN)
VOCABULARY: tuple[str, ...] = GRAMMAR.vocabulary()
"""Every word and punctuation mark, sorted; no special tokens."""


def stories(count: int, *, seed: int) -> list[str]:
    """Draws the texts of `count` independent stories; the same seed gives the same stories."""
    rng = random.Random(seed)
    return [join_words(GRAMMAR.sample(rng)) for _ in range(count)]


def check(text: str) -> Verdict:
    """Judges any text: which sentences parse, which references are right, how likely it is."""
    return judge(GRAMMAR, split_words(text))
