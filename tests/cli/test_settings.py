"""Ranges of settings: every bound, and the message behind it."""

import math
from types import SimpleNamespace

import pytest

from cdcd.settings import check_ranges


@pytest.mark.parametrize(
    ("ranges", "allowed", "refused", "limit"),
    [
        ({"at_least": {2: ["x"]}}, [2, 9, None], [1, 1.9, math.nan], "be at least 2"),
        ({"positive": ["x"]}, [1e-9, None], [0, -1, math.nan], "be positive"),
        ({"not_negative": ["x"]}, [0, 3], [-1e-9, math.nan], "not be negative"),
        ({"share": ["x"]}, [0, 0.5, 1], [-0.1, 1.1, math.nan], "be between 0 and 1"),
        ({"inner_share": ["x"]}, [0.1, 0.9], [0, 1, math.nan], "be between 0 and 1"),
        ({"below_one": ["x"]}, [0, 0.9], [-0.1, 1, math.nan], "be at least 0 and below 1"),
        ({"above_zero": ["x"]}, [0.1, 1], [0, 1.1, math.nan], "be above 0 and at most 1"),
    ],
)
def test_ranges(ranges, allowed, refused, limit):
    for value in allowed:
        check_ranges(SimpleNamespace(x=value), **ranges)
    for value in refused:
        with pytest.raises(ValueError, match=rf"^x is {value}, it must {limit}$"):
            check_ranges(SimpleNamespace(x=value), **ranges)
        with pytest.raises(ValueError, match=rf"^data\.x is {value}, "):
            check_ranges(SimpleNamespace(x=value), "data", **ranges)
