"""Text of users, vocabularies and files as a terminal may show it."""

import re
import sys
from collections.abc import Iterable

MOST_ECHOED = 200
"""Characters of an argument, or of any word, that a message repeats."""
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Returns a text with its control characters escaped, such as \x1b; newlines and tabs are kept."""
    return _UNPRINTABLE.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    return (
        character.encode("ascii", "backslashreplace").decode()
        if character > "\x7f"
        else repr(character)[1:-1]
    )


def for_terminal(text: str) -> str:
    """Returns a text as stdout may show it: a terminal would obey control characters, a file keeps them.

    What stdout has no code for is escaped in both, such as the bytes of a path that are not UTF-8.
    """
    if sys.stdout.isatty():
        return printable(text)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def one_line(message: str, arguments: Iterable[str] = ()) -> str:
    """Returns a message as one printable line, in which long arguments and words are cut."""
    for word in arguments:
        for argument in (word, word.partition("=")[2]):
            if len(argument) <= MOST_ECHOED:
                continue
            message = message.replace(argument, _cut(argument))
            message = message.replace(repr(argument)[1:-1], _cut(argument))
    message = re.sub(rf"\S{{{MOST_ECHOED + 1},}}", lambda match: _cut(match[0]), message)
    return printable(message.strip().replace("\n", "\\n"))


def _cut(text: str) -> str:
    return f"{text[:MOST_ECHOED]}…"


def say(message: str) -> None:
    """Prints a line to stderr."""
    print(message, file=sys.stderr, flush=True)
