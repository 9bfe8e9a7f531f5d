"""Splitting texts into sentences, for texts that are longer than a translator reads.

A mark (. ! ? … and those of Chinese and Japanese) ends a sentence where white space follows it and its
closing quotes, and the next word does not begin in lower case. A full stop ends none after an
abbreviation, an initial or an ordinal (German: am 3. Mai). Unclear cases end none: a piece that is too
long is noticed, one that was cut in the middle is translated wrongly.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
OPENING, CLOSING = "\"'“‘„‚»«›‹¿¡([{–—-", "\"'”’“‘»«›‹)\\]}"
END = re.compile(rf"[.!?…]+[{CLOSING}]*\s+|(?P<clear>[。！？｡]+[{CLOSING}」』）】》〉]*\s*)")
"""Marks that may end a sentence, and the white space behind them, which Chinese and Japanese need not have."""
LONGEST = 40
"""Characters that are looked at for a word, or for the beginning of the next."""

INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
"""J, z.B, U.S: letters with full stops between them."""
ORDINAL = re.compile(r"\d{1,2}|[IVX]+")
ABBREVIATION = re.compile(
    # Before names.
    "Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|Messrs|Hr|Fr|Dipl|Ing|"
    # Between words.
    "vs|cf|approx|ca|viz|al|bzw|evtl|ggf|inkl|exkl|max|min|sog|vgl|zzgl|geb|gest|Mio|Mrd|etw|jmd|"
    "Str|Tel|Hrsg|Jh|Jhd|Okt|Sept"
)
BEFORE_NUMBER = re.compile(
    "No|no|Nr|nr|Nos|Fig|fig|Abb|Vol|vol|Bd|Ch|ch|Kap|Art|Abs|Sec|Tab|pp|Jan|Feb|Mar|Apr|Jun|Jul|Aug|"
    "Sep|Oct|Nov|Dec|Dez"
)
"""An abbreviation where a number follows, else the end of a sentence."""


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text with the white space behind them: joined they are the text."""
    ends = [match.end() for match in END.finditer(text) if _is_end(text, match)]
    return [text[a:b] for a, b in pairwise([0, *ends, len(text)]) if b > a]


def _is_end(text: str, match: re.Match[str]) -> bool:
    if match["clear"]:
        return True
    first = text[match.end() : match.end() + LONGEST].lstrip(OPENING).lstrip()[:1]
    if first.islower():
        return False
    before = text[max(0, match.start() - LONGEST) : match.start()]
    return match[0].rstrip() != "." or not _is_part_of_word(before, first)


def _is_part_of_word(before: str, first: str) -> bool:
    """Returns whether a full stop belongs to the word before it."""
    word = re.split(r"[^\w.]", before)[-1]
    if any(kind.fullmatch(word) for kind in (INITIALS, ORDINAL, ABBREVIATION)):
        return True
    return first.isdigit() and BEFORE_NUMBER.fullmatch(word) is not None


def pack_sentences(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Returns a text in few pieces of whole sentences that fit; a sentence that does not is a piece alone."""
    pieces: list[str] = []
    for sentence in split_sentences(text):
        if pieces and fits((pieces[-1] + sentence).strip()):
            pieces[-1] += sentence
        else:
            pieces.append(sentence)
    return [piece.strip() for piece in pieces if piece.strip()]


@dataclass(frozen=True)
class Pieces:
    """The pieces of some texts: each text, or its first piece, and behind them all the others.

    So a text has the same index, and the same samples, whatever the texts before it are.
    """

    texts: list[str]
    owners: list[int]
    """The index of the text that each piece belongs to."""
    too_long: list[int]
    """Indices of the texts that did not fit."""
    unread: list[int]
    """Those of them with a sentence that does not fit either; the piece is empty."""

    def by_text(self, values: Sequence[T]) -> list[list[T]]:
        """Returns the values of the pieces of each text."""
        grouped: list[list[T]] = [[] for _ in set(self.owners)]
        for owner, value in zip(self.owners, values, strict=True):
            grouped[owner].append(value)
        return grouped


def split_long(texts: Sequence[str], fits: Callable[[str], bool]) -> Pieces:
    """Splits the texts that do not fit into pieces; never within a sentence."""
    too_long = [index for index, text in enumerate(texts) if not fits(text)]
    pieces = {index: pack_sentences(texts[index], fits) or [""] for index in too_long}
    unread = [index for index in too_long if not all(map(fits, pieces[index]))]
    rest = [(index, piece) for index in too_long for piece in pieces[index][1:]]
    first = [pieces[index][0] if index in pieces else text for index, text in enumerate(texts)]
    return Pieces(
        [piece if fits(piece) else "" for piece in [*first, *(piece for _, piece in rest)]],
        [*range(len(texts)), *(index for index, _ in rest)],
        too_long,
        unread,
    )
