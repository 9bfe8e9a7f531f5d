"""Reading texts in two languages as a stream of (source, target) pairs.

They are two columns of one table (`reading.Documents`), two sources that are parallel line by line, or
pairs drawn from the built-in task, `numerals[:en-de|:de-en]`.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from cdcd.data.prepare.reading import Documents, Row
from cdcd.languages import numerals

BUILT_IN_PAIRS = "numerals"
BUILT_IN_COUNT = 100_000


class ParallelDocuments:
    """Two sources, document by document; unequal numbers of documents are an error."""

    def __init__(self, sources: Documents, targets: Documents) -> None:
        self.sources, self.targets = sources, targets
        self.source = f"{sources.source}, {targets.source}"
        self.size = sources.size + targets.size if sources.size and targets.size else None

    def __iter__(self) -> Iterator[Row]:
        both = zip_longest(self.sources, self.targets)
        for number, (source, target) in enumerate(both):
            if source is None or target is None:
                raise self._unequal(number, sum(1 for _ in both) + 1, source is None)
            yield (*source, *target)

    def _unequal(self, shared: int, more: int, source_ended: bool) -> ValueError:
        counts = (shared, shared + more) if source_ended else (shared + more, shared)
        return ValueError(
            f"{self.sources.source} has {counts[0]:,} lines, {self.targets.source} has {counts[1]:,}: "
            f"line n of one must be the translation of line n of the other"
        )


class BuiltInPairs:
    """Pairs drawn from the built-in task; those that are held out have meanings that no others have."""

    size: int | None = None

    def __init__(self, source: str, is_held_out: Sequence[bool], *, seed: int) -> None:
        self.source, self.is_held_out, self.seed = source, is_held_out, seed
        self.direction = source.partition(":")[2] or "en-de"

    def __iter__(self) -> Iterator[Row]:
        for first, held_out in enumerate(self.is_held_out):
            ((english, german),) = numerals.sample_pairs(
                1, seed=self.seed, direction=self.direction, first=first, held_out=held_out
            )
            yield (english, german) if self.direction == "en-de" else (german, english)


def is_built_in(source: str) -> bool:
    """Returns whether this names the built-in task, and no file."""
    return source.split(":")[0] == BUILT_IN_PAIRS
