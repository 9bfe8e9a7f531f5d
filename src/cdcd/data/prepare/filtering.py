"""Outcomes of documents and pairs: kept, or left out for a reason, which is counted."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int64

from cdcd.data.prepare.config import PrepareConfig

OUTCOMES = ("kept", "empty", "too_long", "bad_ratio")


def outcomes_of(
    lengths: Sequence[Int64[np.ndarray, " documents"]],
    is_limited: Bool[np.ndarray, " documents"],
    config: PrepareConfig,
) -> Int64[np.ndarray, " documents"]:
    """Returns indices into `OUTCOMES`, by the tokens of each side, ends included.

    The limits hold for documents where `is_limited`; the first reason to leave one out counts.
    """
    limits = (config.max_source_length, config.max_target_length)
    is_too_long = np.any(
        [side > (limit or np.inf) for side, limit in zip(lengths, limits, strict=False)], axis=0
    )
    longer = np.max(lengths, axis=0) - 1
    shorter = np.maximum(np.min(lengths, axis=0) - 1, 1)
    is_bad_ratio = longer > (config.max_ratio or np.inf) * shorter
    is_empty = np.min(lengths, axis=0) == 0
    return np.select([is_empty, is_limited & is_too_long, is_limited & is_bad_ratio], [1, 2, 3], 0)


def outcomes_in_words(counts: Mapping[str, int]) -> str:
    """Returns a sentence part that says how many pairs had each outcome."""
    return (
        f"{sum(counts.values()):,} pairs read: {counts['kept']:,} kept, {counts['empty']:,} with an empty "
        f"side, {counts['too_long']:,} too long, {counts['bad_ratio']:,} of a bad ratio"
    )
