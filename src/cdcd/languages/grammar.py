"""A probabilistic grammar of stories, compiled from tables: sampling, parsing and exact scoring.

A story is drawn in two independent steps: a *world* (every variable takes one of its values,
uniformly) and a *path* through the plan (every act picks one of its sentences, by weight). The
sentences on the path then describe that world. Hence

    p(story) = sum over paths of p(path) * product over variables of (values that fit / values)

where a value fits if it gives exactly these words. Sets of values are bit masks, and reading is
intersecting them, so one table serves three uses:

* sampling: a slot maps a value to a word;
* parsing: the same slot maps a word back to the set of values that would have given it; a
  sentence stands on its own if, for every variable, some value survives all its slots;
* scoring: the same, along whole paths, then count the survivors.
"""

import math
import random
import re
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


def parse_sentences(table: str) -> dict[str, Sentence]:
    """Reads a table of lines `name: text [facts that it needs] -> facts that it sets`."""
    rows = re.findall(r"(\w+): (.*? [.?!])(?: +\[(.*)\])?(?: +-> (.*))?\n", table)
    return {name: Sentence(text, needs, sets) for name, text, needs, sets in rows}


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
        """Returns the values that survive these words, or None if a variable has none left."""
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
    """One choice of an act: its probability, its sentence, and the act after it."""

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


def _values_by_word(words: Sequence[str]) -> dict[str, int]:
    """Returns, for each word, the set of values that show it."""
    values: dict[str, int] = {}
    for value, word in enumerate(words):
        values[word] = values.get(word, 0) | 1 << value
    return values


class Grammar:
    """The tables, compiled once: a graph to draw stories from, and lines to read them with."""

    def __init__(
        self,
        variables: Mapping[str, Sequence[Value]],
        sentences: Mapping[str, Sentence],
        plan: Mapping[str, str],
    ) -> None:
        self.sizes = (1, *map(len, variables.values()))  # variable 0 never varies: plain words
        self.unknown = tuple((1 << size) - 1 for size in self.sizes)
        self._slots: dict[str, Slot] = {}
        for variable, values in enumerate(variables.values(), start=1):
            for name in values[0]:
                words = [value[name] for value in values]
                by_word = _values_by_word(words)
                self._slots[name] = Slot(variable, words, by_word, name.split(".")[0], "")
        self.lines = {name: self._compile(sentence) for name, sentence in sentences.items()}
        self._plan = plan
        self._nodes: dict[tuple[str, frozenset[tuple[str, str]]], Node] = {}
        self.root = self._node("open", {})

    def _compile(self, sentence: Sentence) -> Line:
        slots = tuple(
            self._slots[token[1:]]._replace(mark=token[0])
            if token[0] in "+$~"
            else Slot(0, (token,), {token: 1}, "", "")
            for token in sentence.text.split()
        )
        variables = tuple(dict.fromkeys(slot.variable for slot in slots if slot.variable))
        return Line(slots, _facts(sentence.needs), _facts(sentence.sets), variables)

    def _node(self, act: str, facts: dict[str, str]) -> Node:
        key = (act, frozenset(facts.items()))
        if key not in self._nodes:
            self._nodes[key] = self._build_node(act, facts)
        return self._nodes[key]

    def _build_node(self, act: str, facts: dict[str, str]) -> Node:
        choices = re.findall(r"(\d+) (\w+) > (\w+)", self._plan.get(act, ""))
        possible = [
            (int(weight), self.lines[name], after)
            for weight, name, after in choices
            if _holds(self.lines[name].needs, facts)
        ]
        total = sum(weight for weight, _, _ in possible)
        steps, deck = [], []
        for weight, line, after in possible:
            steps.append(Step(weight / total, line, self._node(after, {**facts, **line.sets})))
            deck += steps[-1:] * weight
        longest = max((len(step.line.slots) + step.then.longest for step in steps), default=0)
        return Node(tuple(steps), tuple(deck), longest)

    def vocabulary(self) -> tuple[str, ...]:
        """Returns every word that some story shows."""
        lines = {step.line for node in self._nodes.values() for step in node.steps}
        return tuple(sorted({word for line in lines for slot in line.slots for word in slot.words}))

    def sample(self, rng: random.Random) -> list[str]:
        """Draws a path, and each variable when the path first needs it."""
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
        """Returns the sum over the paths that give exactly these words; zero if none does."""
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
        """Returns the exact log-probability of a whole story in nats; None if it is none."""
        probability = self.probability(words)
        return math.log(probability) if probability > 0 else None


@dataclass(frozen=True)
class Scene:
    """The content of the story so far: the values each role may have, and the facts of the plot."""

    known: Mapping[str, int]
    facts: Mapping[str, str]

    @property
    def without_question(self) -> "Scene":
        """The scene without its open question: only the very next sentence can answer it."""
        return Scene(self.known, {k: v for k, v in self.facts.items() if k != "asked"})


@dataclass(frozen=True)
class Reading:
    """One reading of a sentence in its scene: is each reference right, and the scene after it."""

    references: tuple[bool, ...]
    after: Scene
    in_turn: bool = True
    """True if it answers if and only if a question is open."""

    @property
    def preference(self) -> tuple[bool, int, int]:
        """Readings in turn come first, so that no wrong answer passes for news; then the most right."""
        right = sum(self.references)
        return self.in_turn, right - len(self.references), right


def _read(line: Line, sentence: Sequence[str], scene: Scene) -> Reading:
    """Returns the reading of a sentence as this line; a reference is right if the story entails it.

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
    facts = {**scene.without_question.facts, **line.sets}
    after = Scene({**scene.known, **introduced}, facts)
    return Reading(tuple(references), after, in_turn=answers == ("asked" in scene.facts))


@dataclass(frozen=True)
class Verdict:
    """The judge's counts for a text."""

    num_sentences: int
    """Sentences; a trailing fragment without a final mark counts, and does not parse."""
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
    """Splits words behind each final mark."""
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in (".", "?", "!"):
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def judge(grammar: Grammar, words: Sequence[str]) -> Verdict:
    """Judges any words, however garbled: sentences alone, references in order, the whole."""
    sentences = split_sentences(words)
    scene = Scene({}, {})
    references: list[bool] = []
    num_parsed = 0
    for sentence in sentences:
        lines = [line for line in grammar.lines.values() if line.read(sentence, grammar.unknown)]
        readings = [_read(line, sentence, scene) for line in lines]
        no_reading = Reading((), scene.without_question)
        best = max(readings, key=lambda reading: reading.preference, default=no_reading)
        num_parsed += bool(readings)
        references += best.references
        scene = best.after
    log_prob = grammar.log_prob(words)
    return Verdict(len(sentences), num_parsed, len(references), sum(references), log_prob)
