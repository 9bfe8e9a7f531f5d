"""Reading texts in two languages as a stream of (source, target) pairs.

Two sources are parallel document by document: files line by line, or two columns of one table. Or the
pairs are drawn from the built-in task, `numerals[:en-de|:de-en]`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Protocol, TypeAlias

from cdcd.data.prepare.reading import Documents
from cdcd.languages import numerals

Pair: TypeAlias = tuple[str, str]
BUILT_IN_PAIRS = "numerals"
BUILT_IN_COUNT = 100_000


class Pairs(Protocol):
    """Pairs of texts; each iteration reads them anew."""

    @property
    def source(self) -> str:
        """Where they come from."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes to read, where known."""
        ...

    @property
    def position(self) -> int:
        """How many of these bytes have been read."""
        ...

    def __iter__(self) -> Iterator[Pair]: ...
    def check(self) -> None:
        """Raise where the sides do not belong together."""
        ...


class ParallelDocuments:
    """Two sources, document by document; unequal numbers of documents are an error."""

    def __init__(self, sources: Documents, targets: Documents) -> None:
        self.sources, self.targets = sources, targets
        self.is_one_table = sources.source == targets.source
        self.source = sources.source if self.is_one_table else f"{sources.source}, {targets.source}"

    @property
    def size(self) -> int | None:
        sizes = (self.sources.size, self.targets.size)
        return None if None in sizes else sum(size for size in sizes if size)

    @property
    def position(self) -> int:
        return self.sources.position + self.targets.position

    def __iter__(self) -> Iterator[Pair]:
        both = zip_longest(self.sources, self.targets)
        for number, (source, target) in enumerate(both):
            if source is None or target is None:
                raise self._unequal(number, sum(1 for _ in both) + 1, source is None)
            yield source, target

    def check(self) -> None:
        """Count both sides, unless they are rows of one table."""
        if not self.is_one_table:
            for _ in self:
                pass

    def _unequal(self, shared: int, more: int, source_ended: bool) -> ValueError:
        counts = (shared, shared + more) if source_ended else (shared + more, shared)
        return ValueError(
            f"{self.sources.source} has {counts[0]:,} lines, {self.targets.source} has {counts[1]:,}: "
            f"line n of one must be the translation of line n of the other"
        )


class BuiltInPairs:
    """Pairs drawn from the built-in task; those of some numbers mean what no others mean."""

    size = None
    position = 0

    def __init__(
        self, source: str, *, count: int, seed: int, is_held_out: Callable[[int], bool]
    ) -> None:
        _, _, direction = source.partition(":")
        numerals.check_direction(direction or "en-de")
        self.source, self.count, self.seed = source, count, seed
        self.is_held_out = is_held_out
        self.direction: numerals.Direction = "de-en" if direction == "de-en" else "en-de"

    def __iter__(self) -> Iterator[Pair]:
        for number in range(self.count):
            ((english, german),) = numerals.sample_pairs(
                1,
                seed=self.seed,
                direction=self.direction,
                first=number,
                held_out=self.is_held_out(number),
            )
            yield (english, german) if self.direction == "en-de" else (german, english)

    def check(self) -> None:
        """Nothing can be wrong with them."""


def is_built_in(source: str) -> bool:
    """Whether this names the built-in task, and no file."""
    return source.split(":")[0] == BUILT_IN_PAIRS


def read_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs in memory; those with an empty side are left out."""
    return [pair for pair in pairs if all(text.strip() for text in pair)]
