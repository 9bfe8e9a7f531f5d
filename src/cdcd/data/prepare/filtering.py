"""What becomes of a pair: kept, or left out for a reason, which is counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

FATES = ("kept", "empty", "too_long", "bad_ratio")


@dataclass(frozen=True)
class Limits:
    """What is trained on; None: anything."""

    max_source_length: int | None = None
    max_target_length: int | None = None
    max_ratio: float | None = None

    def fates(
        self, lengths: Sequence[Int64[np.ndarray, " documents"]], is_limited: np.ndarray
    ) -> Int64[np.ndarray, " documents"]:
        """Places in `FATES`, by the tokens of each side, ends included; the first that holds counts."""
        bounds = (self.max_source_length, self.max_target_length)
        too_long = np.any(
            [each > (bound or np.inf) for each, bound in zip(lengths, bounds, strict=False)], axis=0
        )
        longest = np.max(lengths, axis=0) - 1
        shortest = np.maximum(np.min(lengths, axis=0) - 1, 1)
        bad_ratio = longest > (self.max_ratio or np.inf) * shortest
        is_empty = np.min(lengths, axis=0) == 0
        return np.select([is_empty, is_limited & too_long, is_limited & bad_ratio], [1, 2, 3], 0)


def count_fates(fates: Int64[np.ndarray, " documents"]) -> dict[str, int]:
    return dict(zip(FATES, np.bincount(fates, minlength=len(FATES)).tolist(), strict=True))


def fates_in_words(counts: Mapping[str, int]) -> str:
    return (
        f"{sum(counts.values()):,} pairs read: {counts['kept']:,} kept, {counts['empty']:,} with an empty "
        f"side, {counts['too_long']:,} too long, {counts['bad_ratio']:,} of a bad ratio"
    )
