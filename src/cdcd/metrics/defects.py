"""Repeated and missing words: the defects that the paper saw in translations (§6.6).

Words are runs of letters or digits; Chinese characters are words of their own.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

HAN = "\u3400-\u9fff"
WORD = rf"\d+(?:[.,]\d+)*|[{HAN}]|[^\W\d_{HAN}]+(?:['’-]?[^\W_{HAN}]+)*"
_word, _token = re.compile(WORD), re.compile(rf"{WORD}|[^\w\s]")


def words(text: str) -> list[str]:
    """Returns the words in their own case, without punctuation."""
    return _word.findall(text)


def missing_share(expected: Iterable[str], actual: Iterable[str]) -> float:
    """Returns the share of the expected texts' words, counted with repeats, that the actual ones lack."""
    num_expected = num_missing = 0
    for wanted, given in zip(map(words, expected), map(words, actual), strict=True):
        num_expected += len(wanted)
        num_missing += (Counter(wanted) - Counter(given)).total()
    return num_missing / max(num_expected, 1)


def repeated_share(texts: Sequence[str]) -> float:
    """Returns the share of the texts' words that `count_repeats` counts."""
    return sum(map(count_repeats, texts)) / max(sum(len(words(text)) for text in texts), 1)


def count_repeats(text: str) -> int:
    """Counts words that repeat the word before them, or end two words that repeat the two before them.

    Upper and lower case are equal. Punctuation separates: in `die, die` nothing repeats.
    """
    tokens = [token.lower() for token in _token.findall(text)]
    is_word = [bool(_word.match(token)) for token in tokens]

    def repeats(end: int, length: int) -> bool:
        last, before = tokens[end - length : end], tokens[max(end - 2 * length, 0) : end - length]
        return last == before and all(is_word[end - length : end])

    return sum(repeats(end, 1) or repeats(end, 2) for end in range(2, len(tokens) + 1))
