"""Tales: very short children's stories drawn from a small probabilistic grammar.

A corpus whose law is known exactly, so that a model's samples can be judged without a
reference model: does each sentence parse, does each reference point at something that was
introduced, and how probable is the whole story?

A story is drawn in two independent steps: a *world* (every variable takes one of its values,
uniformly) and a *path* through the plan (every act picks one of its sentences, by weight). The
sentences on the path are then told in that world. Hence

    p(story) = sum over paths of p(path) * product over variables of (values that fit / values)

where a value fits if telling it gives exactly these words. Sets of values are bit masks, and
reading is intersecting them, so one table serves three uses:

* telling: a slot maps a value to a word;
* parsing: the same slot maps a word back to the set of values that would have given it; a
  sentence stands on its own if, for every variable, some value survives all its slots;
* scoring: the same, along whole paths, then count the survivors.

How to read a sentence of the table: ``+role`` introduces a role, ``$role`` refers back to it
(these are the references that `check` counts), ``~role`` merely agrees with it, and
``role.form`` is another word for the same role (``hero.She``, ``thing.it``, ``size.a``).
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from cdcd.data.words import join_words, split_words

Value: TypeAlias = Mapping[str, str]
"""One value of a variable: the word that each of its slots shows."""

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


@dataclass(frozen=True)
class Sentence:
    """One pattern: its slots, the facts it takes for granted, and the facts it brings about."""

    text: str
    needs: str = ""
    sets: str = ""


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

# --- The grammar, compiled -------------------------------------------------------------------


class Slot(NamedTuple):
    """One token of a pattern: the word that each value shows, and the values behind a word."""

    variable: int
    words: Sequence[str]
    values: Mapping[str, int]
    role: str
    mark: str


@dataclass(frozen=True, eq=False)
class Line:
    """A compiled sentence."""

    slots: tuple[Slot, ...]
    needs: Mapping[str, str]
    sets: Mapping[str, str]
    variables: tuple[int, ...]

    def read(self, words: Sequence[str], masks: Sequence[int]) -> list[int] | None:
        """The values that survive hearing these words, or None if a variable has none left."""
        if len(words) != len(self.slots):
            return None
        left = list(masks)
        for (variable, _, values, _, _), word in zip(self.slots, words, strict=True):
            mask = left[variable] & values.get(word, 0)
            if not mask:
                return None
            left[variable] = mask
        return left


@dataclass(frozen=True, eq=False)
class Step:
    """One choice of an act: its probability, what is told, and what comes after."""

    share: float
    line: Line
    then: "Node"


@dataclass(frozen=True, eq=False)
class Node:
    """An act in given facts; the deck holds each step as often as its weight. Empty at the end."""

    steps: tuple[Step, ...]
    deck: tuple[Step, ...]
    longest: int
    """Words in the longest story from here."""


def _facts(text: str) -> dict[str, str]:
    return dict(fact.split("=") for fact in text.split())


def _holds(needs: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    return needs.items() <= facts.items()


def _behind(words: Sequence[str]) -> dict[str, int]:
    """For each word, the set of values that show it."""
    values: dict[str, int] = {}
    for value, word in enumerate(words):
        values[word] = values.get(word, 0) | 1 << value
    return values


class Grammar:
    """The tables, compiled once: a graph to tell stories from, and lines to read them with."""

    def __init__(
        self,
        variables: Mapping[str, Sequence[Value]],
        sentences: Mapping[str, Sentence],
        plan: Mapping[str, str],
    ) -> None:
        self.sizes = (1, *map(len, variables.values()))  # variable 0 never varies: plain words
        self.unknown = tuple((1 << size) - 1 for size in self.sizes)
        self._slots = self._compile_slots(variables)
        self.lines = {name: self._compile_line(each) for name, each in sentences.items()}
        self._plan = plan
        self._nodes: dict[tuple[str, frozenset[tuple[str, str]]], Node] = {}
        self.root = self._node("open", {})

    @staticmethod
    def _compile_slots(variables: Mapping[str, Sequence[Value]]) -> dict[str, Slot]:
        slots: dict[str, Slot] = {}
        for variable, values in enumerate(variables.values(), start=1):
            for name in values[0]:
                words = [value[name] for value in values]
                slots[name] = Slot(variable, words, _behind(words), name.split(".")[0], "")
        return slots

    def _compile_line(self, sentence: Sentence) -> Line:
        slots = tuple(self._compile_token(token) for token in sentence.text.split())
        variables = tuple(dict.fromkeys(slot.variable for slot in slots if slot.variable))
        return Line(slots, _facts(sentence.needs), _facts(sentence.sets), variables)

    def _compile_token(self, token: str) -> Slot:
        if token[0] in "+$~":
            return self._slots[token[1:]]._replace(mark=token[0])
        return Slot(0, (token,), {token: 1}, "", "")

    def _node(self, act: str, facts: dict[str, str]) -> Node:
        key = (act, frozenset(facts.items()))
        if key not in self._nodes:
            self._nodes[key] = self._build_node(act, facts)
        return self._nodes[key]

    def _build_node(self, act: str, facts: dict[str, str]) -> Node:
        choices = [choice.split() for choice in self._plan.get(act, "").split(" | ") if choice]
        open_to = [each for each in choices if _holds(self.lines[each[1]].needs, facts)]
        total = sum(int(weight) for weight, *_ in open_to)
        steps: list[Step] = []
        for weight, name, _, after in open_to:
            line = self.lines[name]
            steps.append(Step(int(weight) / total, line, self._node(after, {**facts, **line.sets})))
        deck = [
            step for step, each in zip(steps, open_to, strict=True) for _ in range(int(each[0]))
        ]
        longest = max((len(step.line.slots) + step.then.longest for step in steps), default=0)
        return Node(tuple(steps), tuple(deck), longest)

    def vocabulary(self) -> tuple[str, ...]:
        """Every word that some story shows."""
        lines = {step.line for node in self._nodes.values() for step in node.steps}
        return tuple(sorted({word for line in lines for slot in line.slots for word in slot.words}))

    def tell(self, rng: random.Random) -> list[str]:
        """Draw a path, and each variable when the path first needs it."""
        values = [0] + [-1] * (len(self.sizes) - 1)
        words: list[str] = []
        node = self.root
        while node.deck:
            step = rng.choice(node.deck)
            for variable in step.line.variables:
                if values[variable] < 0:
                    values[variable] = rng.randrange(self.sizes[variable])
            words += [slot[1][values[slot[0]]] for slot in step.line.slots]
            node = step.then
        return words

    def probability(self, words: Sequence[str]) -> float:
        """Sum over the paths that tell exactly these words; zero if none does."""
        return self._probability(self.root, words, self.unknown)

    def _probability(self, node: Node, words: Sequence[str], masks: Sequence[int]) -> float:
        if not node.steps:
            fits = (mask.bit_count() / size for mask, size in zip(masks, self.sizes, strict=True))
            return 0.0 if words else math.prod(fits)
        total = 0.0
        for step in node.steps:
            length = len(step.line.slots)
            left = step.line.read(words[:length], masks)
            if left is not None:
                total += step.share * self._probability(step.then, words[length:], left)
        return total

    def readings(self, sentence: Sequence[str]) -> list[Line]:
        """The lines that could be this sentence if nothing else were known."""
        lines = self.lines.values()
        return [line for line in lines if line.read(sentence, self.unknown) is not None]


# --- Judging a story in order ----------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What the story has said: the values each role may have, and the facts of the plot."""

    known: Mapping[str, int]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Heard:
    """One reading of a sentence in its scene: is each reference right, and the scene after it."""

    references: tuple[bool, ...]
    after: Scene
    in_turn: bool = True
    """Whether it answers if and only if a question is open."""

    @property
    def charity(self) -> tuple[bool, int, int]:
        """Prefer readings in turn, so that no wrong answer passes for news; then the most right."""
        right = sum(self.references)
        return self.in_turn, right - len(self.references), right


def _hear(line: Line, sentence: Sequence[str], scene: Scene) -> Heard:
    """A reference is right if the story so far entails it.

    What a sentence takes for granted (she has it, to give it) is one reference more. An answer
    is instead all or nothing: its words are right only if they answer the question asked.
    """
    granted, answers = _holds(line.needs, scene.facts), "asked" in line.needs
    introduced: dict[str, int] = {}
    references: list[bool] = []
    for slot, word in zip(line.slots, sentence, strict=True):
        if slot.mark == "+":
            introduced[slot.role] = introduced.get(slot.role, -1) & slot.values[word]
        elif slot.mark == "$":
            values = scene.known.get(slot.role)
            entailed = values is not None and not values & ~slot.values[word]
            references.append(entailed and (granted or not answers))
    if line.needs and not answers:
        references.append(granted)
    after = Scene({**scene.known, **introduced}, {**_silent(scene).facts, **line.sets})
    return Heard(tuple(references), after, in_turn=answers == ("asked" in scene.facts))


def _silent(scene: Scene) -> Scene:
    """The scene without its open question: only the very next sentence can answer it."""
    facts = {fact: value for fact, value in scene.facts.items() if fact != "asked"}
    return Scene(scene.known, facts)


@dataclass(frozen=True)
class Verdict:
    """What `check` found in a text."""

    num_sentences: int
    """Sentences found; a trailing fragment without a final mark counts, and does not parse."""
    num_parsed: int
    """Sentences of the grammar, each on its own, agreement within the sentence included."""
    num_references: int
    """Pronouns, definite mentions, repeated names, answers, and events taken for granted, in the
    sentences that parse."""
    num_right: int
    """References that are true of the story so far."""
    log_prob: float | None
    """Exact log-probability of the whole story in nats; None if it is no story of the grammar."""


def _sentences(words: Sequence[str]) -> list[list[str]]:
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in (".", "?", "!"):
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


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
    probability = _GRAMMAR.probability(words)
    return math.log(probability) if probability > 0 else None


def check(text: str) -> Verdict:
    """Judge any text, however garbled: its sentences alone, its references in order, the whole."""
    words = split_words(text)
    sentences = _sentences(words)
    scene = Scene({}, {})
    references: list[bool] = []
    parsed = 0
    for sentence in sentences:
        heard = [_hear(line, sentence, scene) for line in _GRAMMAR.readings(sentence)]
        best = max(heard, key=lambda each: each.charity, default=Heard((), _silent(scene)))
        parsed += bool(heard)
        references += best.references
        scene = best.after
    return Verdict(len(sentences), parsed, len(references), sum(references), log_prob(words))
