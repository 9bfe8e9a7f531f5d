"""A probabilistic grammar of stories, compiled from tables: telling, parsing and exact scoring.

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
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Value: TypeAlias = Mapping[str, str]
"""One value of a variable: the word that each of its slots shows."""


@dataclass(frozen=True)
class Sentence:
    """One pattern: its slots, the facts it takes for granted, and the facts it brings about."""

    text: str
    needs: str = ""
    sets: str = ""


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

    def log_prob(self, words: Sequence[str]) -> float | None:
        """Exact log-probability in nats of a whole story; None if the grammar cannot tell it."""
        probability = self.probability(words)
        return math.log(probability) if probability > 0 else None

    def readings(self, sentence: Sequence[str]) -> list[Line]:
        """The lines that could be this sentence if nothing else were known."""
        lines = self.lines.values()
        return [line for line in lines if line.read(sentence, self.unknown) is not None]


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
    """What was found in a text."""

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


def split_sentences(words: Sequence[str]) -> list[list[str]]:
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in (".", "?", "!"):
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def judge(grammar: Grammar, words: Sequence[str]) -> Verdict:
    """Judge any words, however garbled: sentences alone, references in order, the whole."""
    sentences = split_sentences(words)
    scene = Scene({}, {})
    references: list[bool] = []
    parsed = 0
    for sentence in sentences:
        heard = [_hear(line, sentence, scene) for line in grammar.readings(sentence)]
        best = max(heard, key=lambda each: each.charity, default=Heard((), _silent(scene)))
        parsed += bool(heard)
        references += best.references
        scene = best.after
    found = grammar.log_prob(words)
    return Verdict(len(sentences), parsed, len(references), sum(references), found)
