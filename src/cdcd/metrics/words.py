"""Words of a sentence as a reader sees them, and what translations get wrong about them.

No language's rules are built in: words are runs of letters or digits, Chinese characters are words of
their own, and two languages are told apart by the words that are frequent in given texts of each.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NUMBER = r"\d+(?:[.,]\d+)*"
HAN = "\u3400-\u9fff"
WORD = rf"{NUMBER}|[{HAN}]|[^\W\d_{HAN}]+(?:['’-]?[^\W_{HAN}]+)*"
MARK = r"[^\w\s]"
FUNCTION_WORDS = 200
"""The most frequent words of a language tell it from another: hardly any are names or topics."""
LEAST_COPIED = 4
"""Letters of a word that two languages share for a reason: not `in`, `an` or `so`."""

_number, _word, _token = re.compile(NUMBER), re.compile(WORD), re.compile(f"{WORD}|{MARK}")


def words(text: str) -> list[str]:
    """Without punctuation, in their own case."""
    return _word.findall(text)


def numbers(text: str) -> list[str]:
    """Digits without separators, which languages exchange: 1,234.5 and 1.234,5 are the same."""
    return [re.sub("[.,]", "", found) for found in _number.findall(text)]


def copied(source: str, reference: str) -> list[str]:
    """Words that a translation takes over, as names and numbers: long or with a digit, in both."""
    shared = (Counter(words(source)) & Counter(words(reference))).elements()
    return [word for word in shared if len(word) >= LEAST_COPIED or any(map(str.isdigit, word))]


def repeats(text: str) -> int:
    """Words that repeat the word before them, or end two words that repeat the two before them.

    Case does not part words and punctuation does: in `die, die` nothing repeats.
    """
    tokens = [token.lower() for token in _token.findall(text)]
    is_word = [bool(_word.match(token)) for token in tokens]
    return sum(
        is_word[i] and (_repeats(tokens, i, 1) or (is_word[i - 1] and _repeats(tokens, i, 2)))
        for i in range(1, len(tokens))
    )


def _repeats(tokens: Sequence[str], last: int, length: int) -> bool:
    """Whether the stretch that ends here equals the one of its length before it."""
    end = last + 1
    middle, start = end - length, end - 2 * length
    return start >= 0 and tokens[start:middle] == tokens[middle:end]


@dataclass(frozen=True)
class LanguageProfiles:
    """Which of two languages a text is in, by the frequent words of both.

    A naive Bayes classifier of the function words, with equal priors.
    """

    log_odds: dict[str, float]
    """ln p(word | target language) − ln p(word | source language)."""

    @classmethod
    def of(cls, sources: Iterable[str], targets: Iterable[str]) -> "LanguageProfiles":
        """From texts of the two languages; counts are raised by a half, so that none is 0."""
        counts = [_lower_words(sources), _lower_words(targets)]
        frequent = {word for each in counts for word, _ in each.most_common(FUNCTION_WORDS)}
        totals = [sum(each[word] + 0.5 for word in frequent) for each in counts]
        source, target = counts
        offset = math.log(totals[0] / totals[1]) if frequent else 0.0
        return cls(
            {
                word: math.log((target[word] + 0.5) / (source[word] + 0.5)) + offset
                for word in frequent
            }
        )

    def evidence(self, text: str) -> float:
        """Nats for the target language; negative for the source's, 0 without a word that tells."""
        return math.fsum(self.log_odds.get(word.lower(), 0.0) for word in words(text))


def _lower_words(texts: Iterable[str]) -> Counter[str]:
    return Counter(word.lower() for text in texts for word in words(text))
