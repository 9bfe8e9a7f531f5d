"""Categories that are no English text, each with its documents, its exact judge and a task with gaps.

| name | documents | right is | given in the task with gaps |
| --- | --- | --- | --- |
| molecules | SMILES, a byte a token | what RDKit can read | a ring |
| chess | the result and up to 62 moves in UCI | what python-chess can play | all but ten moves |
| chorales | four bars of four voices (`chorales`) | in range, uncrossed, no parallel fifths | the soprano |
| quatrains | four lines of seven characters | the form, rhymes that training poems have | the last line |
| dialogues | turns `U: …` and `S: …` between bars | turns by turn, none empty | all but one turn |
| tales | the built-in stories | right by the grammar | all but the middle |
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdcd.languages import chorales, tales

Check = Callable[[str], dict[str, bool]]
"""A judge: the rules that a document keeps."""
FIRST_MOVES, HIDDEN_MOVES = 62, slice(21, 31)
NUM_TURNS = 6
MOST_CHARACTERS = 440
"""Characters of a dialogue's turns, so that they fit 128 pieces."""
TURN = re.compile(r"([US]): (.*\S.*)", re.DOTALL)
COUPLETS = re.compile(r"(?:[^\W\d_]{7}[，？][^\W\d_]{7}[。？]){2}")
ENDS = (14, 30)
"""The rhyme words of a quatrain, by their index."""


@dataclass(frozen=True)
class Category:
    """A kind of documents, and their judge."""

    read: Callable[[Iterable[str]], Iterator[str]]
    """Makes documents of the lines of the published corpus."""
    judge: Callable[[Iterable[str]], Check]
    """Returns the judge, given the training documents."""
    hide: Callable[[Sequence[str]], list[bool] | None]
    """Returns which pieces of a document are hidden; None where there is nothing to give."""
    normal: Callable[[str], str | None] = str
    """Returns one text for all documents that mean the same; None of one that means nothing."""


# Molecules and games


def _optional(package: str, extra: str = "gallery") -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(
            f"this judge needs the package {package.partition('.')[0]}: pip install 'cdcd[{extra}]'"
        ) from None


@cache
def _chemistry() -> Any:
    chemistry = _optional("rdkit.Chem")
    _optional("rdkit.RDLogger").DisableLog("rdApp.*")
    return chemistry


def canonical_smiles(text: str) -> str | None:
    """Returns the canonical SMILES of a molecule; None where there is no such molecule."""
    molecule = _chemistry().MolFromSmiles(text) if text.strip() else None
    return None if molecule is None else _chemistry().MolToSmiles(molecule)


def check_molecule(text: str) -> dict[str, bool]:
    """Returns whether a SMILES is of one molecule that can exist, by RDKit's valences."""
    name = canonical_smiles(text)
    return {"valid": name is not None and "." not in name}


def hide_around_ring(pieces: Sequence[str]) -> list[bool] | None:
    """Hides all but the first ring: from the atom that opens it to the one that closes it."""
    marks = [i for i, piece in enumerate(pieces) if piece == "1"]
    if len(marks) < 2 or not marks[0]:
        return None
    hidden = [not marks[0] - 1 <= i <= marks[1] for i in range(len(pieces))]
    return hidden if any(hidden) else None


def read_games(lines: Iterable[str]) -> Iterator[str]:
    """Yields the result and the first moves of games, a game a line."""
    for line in lines:
        yield " ".join(line.split()[: 1 + FIRST_MOVES])


def check_game(text: str) -> dict[str, bool]:
    """Returns whether the moves after the result can be played, all of them and the first twenty."""
    result, *moves = text.split() or [""]
    board, legal = _optional("chess").Board(), 0
    for move in moves:
        try:
            board.push_uci(move)
        except ValueError:
            break
        legal += 1
    has_result = result in ("1-0", "0-1", "1/2-1/2")
    return {
        "legal": has_result and 0 < len(moves) == legal,
        "first_twenty_legal": legal >= min(20, len(moves)) > 0,
    }


def hide_moves(pieces: Sequence[str]) -> list[bool] | None:
    """Hides ten moves in the middle of a game."""
    if len(pieces) <= HIDDEN_MOVES.stop:
        return None
    return [HIDDEN_MOVES.start <= i < HIDDEN_MOVES.stop for i in range(len(pieces))]


# Poems and dialogues


def read_quatrains(lines: Iterable[str]) -> Iterator[str]:
    """Yields poems with spaces between their characters, which are then tokens."""
    for line in lines:
        yield " ".join(line.strip())


def quatrain_judge(training: Iterable[str]) -> Check:
    """Returns the judge of quatrains: two words rhyme that end the couplets of a training poem."""
    pairs = {frozenset(ends) for poem in training if (ends := _ends(poem))}

    def check(text: str) -> dict[str, bool]:
        poem = text.replace(" ", "")
        return {
            "form": COUPLETS.fullmatch(poem) is not None,
            "rhyme": (ends := _ends(text)) is not None and frozenset(ends) in pairs,
        }

    return check


def _ends(poem: str) -> tuple[str, str] | None:
    characters = poem.replace(" ", "")
    if len(characters) != 32:
        return None
    first, second = (characters[end] for end in ENDS)
    return (first, second) if first != second else None


def read_dialogues(lines: Iterable[str]) -> Iterator[str]:
    """Yields stretches of dialogues (JSON with `turns` of speaker and text), six turns or what fits."""
    for line in lines:
        turns = [(s, " ".join(t.replace("|", " ").split())) for s, t in json.loads(line)["turns"]]
        for start in range(0, len(turns) - 2, NUM_TURNS):
            text = ""
            for speaker, said in turns[start : start + NUM_TURNS]:
                longer = f"{text} | {speaker}: {said}" if text else f"{speaker}: {said}"
                if len(longer) > MOST_CHARACTERS:
                    break
                text = longer
            if text.count("|") >= 2:
                yield text


def check_dialogue(text: str) -> dict[str, bool]:
    """Returns whether turns have speakers and words, and whether the speakers alternate."""
    turns = [TURN.fullmatch(turn) for turn in text.split(" | ")]
    speakers = [turn[1] for turn in turns if turn is not None]
    is_whole = len(speakers) == len(turns)
    alternates = all(a != b for a, b in itertools.pairwise(speakers))
    return {
        "turns": is_whole,
        "alternating": is_whole and len(turns) > 1 and alternates,
        "ended": is_whole and text.rstrip()[-1:] in ".?!",
    }


def hide_turn(pieces: Sequence[str]) -> list[bool] | None:
    """Hides the second turn, its speaker too."""
    bars = [i for i, piece in enumerate(pieces) if "|" in piece]
    if len(bars) < 2 or bars[1] - bars[0] < 2:
        return None
    return [bars[0] < i < bars[1] for i in range(len(pieces))]


# All


def _stripped(lines: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in lines)


def _tale(text: str) -> dict[str, bool]:
    verdict = tales.check(text)
    return {
        "sentences_parse": 0 < verdict.num_sentences == verdict.num_parsed,
        "right": verdict.log_prob is not None,
    }


def _middle(pieces: Sequence[str]) -> list[bool] | None:
    third = len(pieces) // 3
    return [third <= i < len(pieces) - third for i in range(len(pieces))] if third else None


CATEGORIES = {
    "molecules": Category(
        _stripped, lambda _: check_molecule, hide_around_ring, normal=canonical_smiles
    ),
    "chess": Category(read_games, lambda _: check_game, hide_moves),
    "chorales": Category(
        chorales.read,
        lambda _: chorales.check,
        lambda pieces: [not piece.startswith("S") for piece in pieces],
    ),
    "quatrains": Category(
        read_quatrains, quatrain_judge, lambda pieces: [i < 24 for i in range(len(pieces))]
    ),
    "dialogues": Category(read_dialogues, lambda _: check_dialogue, hide_turn),
    "tales": Category(_stripped, lambda _: _tale, _middle),
}
