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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

Value: TypeAlias = Mapping[str, str]
"""One value of a variable: the word that each of its slots shows."""


class Slot(NamedTuple):
    """One token of a pattern: the word that each value shows, and the values behind a word."""

    variable: int
    words: Sequence[str]
    values: Mapping[str, int]
    role: str
    mark: str


@dataclass(frozen=True, eq=False)
class Line:
    """A sentence: its slots, the facts that it takes for granted, and the facts that it brings about."""

    slots: tuple[Slot, ...]
    needs: Mapping[str, str]
    sets: Mapping[str, str]

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

    def is_possible(self, facts: Mapping[str, str]) -> bool:
        """Tells if the facts are those that the sentence takes for granted."""
        return self.needs.items() <= facts.items()


@dataclass(frozen=True, eq=False)
class Step:
    """One choice of an act: its sentence, and the act after it."""

    line: Line
    then: "Act"


Act: TypeAlias = tuple[Step, ...]
"""The choices in given facts, each as often as its weight; none at the end of a story."""


class Grammar:
    """The tables, compiled once: a graph to draw stories from, and lines to read them with.

    `sentences` are lines `name: text [facts that it needs] -> facts that it sets`; the plan has lines
    `act: weight sentence, … > next act | …`, one or more for each act.
    """

    def __init__(self, variables: Mapping[str, Sequence[Value]], sentences: str, plan: str) -> None:
        self.sizes = (1, *map(len, variables.values()))  # variable 0 never varies: plain words
        self.unknown = tuple((1 << size) - 1 for size in self.sizes)
        slots: dict[str, Slot] = {}
        for variable, values in enumerate(variables.values(), start=1):
            for name in values[0]:
                words = [value[name] for value in values]
                slots[name] = Slot(variable, words, _masks(words), name.split(".")[0], "")
        rows = re.findall(r"(\w+): (.*? [.?!])(?: +\[(.*)\])?(?: +-> (.*))?\n", sentences)
        self.lines = {
            name: Line(_slots(text, slots), _facts(needs), _facts(sets))
            for name, text, needs, sets in rows
        }
        self.root = self._compiled(plan)

    def _compiled(self, plan: str) -> Act:
        """Returns the first act, from which all others can be reached."""

        @cache
        def act(name: str, facts: frozenset[tuple[str, str]]) -> Act:
            known, steps = dict(facts), []
            rows = " | ".join(re.findall(rf" {name}: (.*)\n", plan))
            for choices, after in re.findall(r"([^>|]+) > (\w+)", rows):
                for weight, sentence in re.findall(r"(\d+) (\w+)", choices):
                    line = self.lines[sentence]
                    if line.is_possible(known):
                        then = act(after, frozenset({**known, **line.sets}.items()))
                        steps += [Step(line, then)] * int(weight)
            return tuple(steps)

        return act("open", frozenset())

    def vocabulary(self) -> tuple[str, ...]:
        """Returns every word that some sentence shows."""
        slots = [slot for line in self.lines.values() for slot in line.slots]
        return tuple(sorted({word for slot in slots for word in slot.words}))

    def sample(self, rng: random.Random) -> list[str]:
        """Draws a path, and each variable when the path first needs it."""
        values = [0] + [-1] * (len(self.sizes) - 1)
        words: list[str] = []
        act = self.root
        while act:
            step = rng.choice(act)
            for slot in step.line.slots:
                if values[slot.variable] < 0:
                    values[slot.variable] = rng.randrange(self.sizes[slot.variable])
                words.append(slot.words[values[slot.variable]])
            act = step.then
        return words

    def probability(self, words: Sequence[str]) -> float:
        """Returns the sum over the paths that give exactly these words; zero if none does."""
        return self._probability(self.root, words, self.unknown)

    def _probability(self, act: Act, words: Sequence[str], masks: Sequence[int]) -> float:
        if not act:
            fits = (mask.bit_count() / size for mask, size in zip(masks, self.sizes, strict=True))
            return 0.0 if words else math.prod(fits)
        total = 0.0
        for step, weight in Counter(act).items():
            length = len(step.line.slots)
            left = step.line.read(words[:length], masks)
            if left is not None:
                total += weight / len(act) * self._probability(step.then, words[length:], left)
        return total

    def log_prob(self, words: Sequence[str]) -> float | None:
        """Returns the exact log-probability of a whole story in nats; None if it is none."""
        probability = self.probability(words)
        return math.log(probability) if probability > 0 else None


def _masks(words: Sequence[str]) -> dict[str, int]:
    """Returns, for each word, the set of values that show it."""
    masks: dict[str, int] = {}
    for value, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << value
    return masks


def _slots(text: str, slots: Mapping[str, Slot]) -> tuple[Slot, ...]:
    return tuple(
        slots[token[1:]]._replace(mark=token[0])
        if token[0] in "+$~"
        else Slot(0, (token,), {token: 1}, "", "")
        for token in text.split()
    )


def _facts(text: str) -> dict[str, str]:
    return dict(fact.split("=") for fact in text.split())


@dataclass(frozen=True)
class Reading:
    """One reading of a sentence in the story so far."""

    in_turn: bool
    """True if it answers if and only if a question is open."""
    references: tuple[bool, ...]
    """Is each reference right."""
    introduced: Mapping[str, int]
    """The values that each role in it may have."""
    sets: Mapping[str, str]
    """The facts that it brings about."""

    @property
    def preference(self) -> tuple[bool, int, int]:
        """Readings in turn come first, so that no wrong answer passes for news; then the most right."""
        right = sum(self.references)
        return self.in_turn, right - len(self.references), right


def _read(
    line: Line, sentence: Sequence[str], known: Mapping[str, int], facts: Mapping[str, str]
) -> Reading:
    """Returns the reading of a sentence as this line; a reference is right if the story entails it.

    What a sentence takes for granted (she has it, to give it) is one reference more. An answer
    is instead all or nothing: its words are right only if they answer the question asked.
    """
    granted, answers = line.is_possible(facts), "asked" in line.needs
    introduced: dict[str, int] = {}
    references: list[bool] = []
    for slot, word in zip(line.slots, sentence, strict=True):
        if slot.mark == "+":
            introduced[slot.role] = introduced.get(slot.role, -1) & slot.values[word]
        elif slot.mark == "$":
            values = known.get(slot.role)
            entailed = values is not None and not values & ~slot.values[word]
            references.append(entailed and (granted or not answers))
    if line.needs and not answers:
        references.append(granted)
    in_turn = answers == ("asked" in facts)
    return Reading(in_turn, tuple(references), introduced, line.sets)


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


def judge(grammar: Grammar, words: Sequence[str]) -> Verdict:
    """Judges any words, however garbled: sentences alone, references in order, the whole."""
    known: dict[str, int] = {}
    facts: dict[str, str] = {}
    references: list[bool] = []
    sentences, num_parsed = split_sentences(words), 0
    for sentence in sentences:
        lines = [line for line in grammar.lines.values() if line.read(sentence, grammar.unknown)]
        readings = [_read(line, sentence, known, facts) for line in lines]
        facts.pop("asked", None)  # only the very next sentence can answer
        if readings:
            best = max(readings, key=lambda reading: reading.preference)
            references += best.references
            known |= best.introduced
            facts |= best.sets
            num_parsed += 1
    log_prob = grammar.log_prob(words)
    return Verdict(len(sentences), num_parsed, len(references), sum(references), log_prob)


def split_sentences(words: Sequence[str]) -> list[list[str]]:
    """Splits words behind each final mark."""
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in (".", "?", "!"):
            sentences.append([])
    return [sentence for sentence in sentences if sentence]
