"""The paper's findings as sentences, with the claims about rows that decide them (`findings.txt`).

A claim is about the difference of a metric between two rows, left less right, of models of one training
seed. It holds where the mean over the seeds, two standard errors to either side, lies in the claim's
band; it fails where that interval lies outside. A finding is reproduced where all its claims hold, not
reproduced where one fails, and else undecided, as it is with fewer than three training seeds.

A side that is a pattern (table2/nucleus/*) is the frontier of its rows: AR-NLL is read off at the entropy
in the middle of the range that both sides reach, and of MAUVE the best row counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from cdcd.metrics.intervals import interpolate_at, mean_and_error
from cdcd.reproduction.rows import BASE, ROWS, base_of

Values = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Measured numbers by row, training seed and metric."""
PAPER: Values = {name: {0: row.paper} for name, row in ROWS.items()}
"""The paper's numbers, which are means, as if they were of one seed."""
MARGINS = {"nll": 0.1, "entropy": 0.1, "mauve": 0.02, "bleu": 0.5}
"""Less is alike: 0.1 nats are a quarter of what self-conditioning brings in the paper."""
FEWEST_SEEDS = 3


def averaged(each: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the mean over seeds and its standard error, as far as there are seeds enough."""
    if len(each) < 2:
        return (each[0] if each else None), None
    return mean_and_error(each)


@dataclass(frozen=True)
class Claim:
    """A claim about the difference between two rows."""

    left: str
    relation: str
    """`>` higher, `<` lower, `>~` not lower by the margin, `~` alike within the margin."""
    right: str
    metric: str = "nll"

    @property
    def band(self) -> tuple[float, float]:
        """The band that the difference is claimed to lie in."""
        margin = MARGINS.get(self.metric, 0.0)
        return {
            ">": (0.0, math.inf),
            "<": (-math.inf, 0.0),
            ">~": (-margin, math.inf),
            "~": (-margin, margin),
        }[self.relation]

    def rows(self) -> list[str]:
        """Returns the names of all rows that it compares."""
        return [*matching(self.left), *matching(self.right)]

    def differences(self, values: Values) -> list[float]:
        """Returns the difference for every training seed that has all rows."""
        seeds = set.intersection(*(set(values.get(name, ())) for name in self.rows()))
        each = (self._difference(values, seed) for seed in sorted(seeds))
        return [difference for difference in each if difference is not None]

    def _difference(self, values: Values, seed: int) -> float | None:
        sides = [
            [values[name][seed] for name in matching(side)] for side in (self.left, self.right)
        ]
        if not all(self.metric in row for side in sides for row in side):
            return None
        if self.metric == "mauve" or all(len(side) == 1 for side in sides):
            left, right = (max(row[self.metric] for row in side) for side in sides)
            return left - right
        return _between_frontiers(*sides)

    def result(self, values: Values) -> dict[str, Any]:
        """Returns the mean difference, its error, the number of seeds, and `holds`, `fails` or `undecided`."""
        return judged(self.differences(values), self.band)


def judged(each: Sequence[float], band: tuple[float, float]) -> dict[str, Any]:
    """Returns the mean of some differences, its error, their number, and whether it lies in the band."""
    mean, error = averaged(each)
    (low, high), verdict = band, "undecided"
    if len(each) >= FEWEST_SEEDS and mean is not None and error is not None:
        if low < mean - 2 * error and mean + 2 * error < high:
            verdict = "holds"
        elif mean + 2 * error <= low or high <= mean - 2 * error:
            verdict = "fails"
    return {"ours": mean, "error": error, "seeds": len(each), "verdict": verdict}


FRONTIER = "table2/score-temperature/*"
"""The rows whose frontier a row is compared with at its own entropy."""


def at_equal_entropy(name: str, values: Values) -> list[float]:
    """Returns, for every seed that has all rows, AR-NLL less that of the base model at equal entropy.

    A row of Tables 1 and 2 may have a lower AR-NLL because its samples are less diverse, which a score
    temperature buys from the base model too. Both coordinates of the base model's frontier are taken
    less those of its own base row, since tables differ in the number of their samples. A seed is left
    out where the frontier does not reach the row's entropy.
    """
    base, origin, points = base_of(name), base_of(FRONTIER), matching(FRONTIER)
    differences = []
    for seed in values.get(name, {}):
        rows = [values.get(each, {}).get(seed, {}) for each in (name, base, origin, *points)]
        if not all("nll" in row and "entropy" in row for row in rows):
            continue
        entropy, nll = _less(values[name][seed], values[base][seed])
        frontier = [_less(values[each][seed], values[origin][seed]) for each in points]
        expected = interpolate_at(frontier, entropy)
        if expected is not None:
            differences.append(nll - expected)
    return differences


def _less(row: Mapping[str, float], base: Mapping[str, float]) -> tuple[float, float]:
    return row["entropy"] - base["entropy"], row["nll"] - base["nll"]


def matching(pattern: str) -> list[str]:
    """Returns the names of the rows that a side of a claim stands for."""
    return [name for name in ROWS if fnmatchcase(name, pattern)]


def _between_frontiers(
    left: Sequence[Mapping[str, float]], right: Sequence[Mapping[str, float]]
) -> float | None:
    """Returns the difference in AR-NLL at one entropy; None where a frontier does not reach it."""
    sides = [[(row["entropy"], row["nll"]) for row in side] for side in (left, right)]
    low = max(min(entropy for entropy, _ in side) for side in sides)
    high = min(max(entropy for entropy, _ in side) for side in sides)
    first, second = (interpolate_at(side, (low + high) / 2) for side in sides)
    return None if first is None or second is None else first - second


@dataclass(frozen=True)
class Finding:
    """A finding of the paper in one sentence."""

    name: str
    sentence: str
    claims: list[Claim]

    def verdict(self, values: Values) -> str:
        """Returns `reproduced`, `not reproduced`, `undecided` or `not run`."""
        results = [claim.result(values) for claim in self.claims]
        if not any(result["seeds"] for result in results):
            return "not run"
        verdicts = {result["verdict"] for result in results}
        if "fails" in verdicts:
            return "not reproduced"
        return "reproduced" if verdicts == {"holds"} else "undecided"


def _parse(text: str) -> Iterator[Finding]:
    claims: list[Claim] = []
    for line in text.splitlines():
        if line.startswith("  "):
            left, relation, right, *metric = line.split()
            right = base_of(left) if right == "base" else right
            claims.append(Claim(left, relation, right, *metric))
        elif line and line[0] != "#":
            name, _, sentence = line.partition(": ")
            claims = []
            yield Finding(name, sentence, claims)


FINDINGS = list(_parse((files("cdcd.reproduction") / "findings.txt").read_text("utf-8")))
"""All findings that rows decide, the most important first."""


def claim_rows() -> list[str]:
    """Returns the names of the rows that carry a claim, the most important first."""
    claims = (claim for finding in FINDINGS for claim in finding.claims)
    return list(dict.fromkeys([BASE, *(name for claim in claims for name in claim.rows())]))
