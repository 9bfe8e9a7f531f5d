"""The rule by which one setting of a sweep is chosen, fixed before any test text is looked at.

A setting counts if its samples are about as varied as the data: as a whole, within each sample, and
without repetition. Of those that count, the one with the lowest NLL is chosen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VarietyRule:
    """Bounds on the variety that samples may lack beside the data."""

    entropy_below: float = 0.07
    """Nats by which the pooled entropy may be below the data's."""
    sample_entropy_below: float = 0.12
    """Nats by which the mean entropy within a sample may be below the data's."""
    most_repetition: float = 0.010
    """Largest share of repeated n-grams, whatever the data's."""

    def allows(self, samples: "MeasuredSetting", data: "MeasuredSetting") -> bool:
        """Returns whether samples are varied enough."""
        return (
            samples.entropy >= data.entropy - self.entropy_below
            and samples.sample_entropy >= data.sample_entropy - self.sample_entropy_below
            and samples.repetition <= self.most_repetition
        )


@dataclass(frozen=True)
class MeasuredSetting:
    """The means over runs of the numbers that the rule compares, for one row of a report."""

    system: str
    settings: Mapping[str, Any]
    nll: float
    entropy: float
    sample_entropy: float
    repetition: float

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "MeasuredSetting":
        """Reads a row of report.json."""
        names = ("nll", "entropy", "sample_entropy", "repetition")
        try:
            means = {name: float(row["mean"][name]["value"]) for name in names}
            return cls(row["system"], row["settings"], **means)
        except KeyError as error:
            raise ValueError(
                f"a row of the report has no {error}: evaluate the run again"
            ) from None


def best_settings(
    rows: Iterable[MeasuredSetting], rule: VarietyRule | None = None
) -> dict[str, MeasuredSetting | None]:
    """Returns the best setting of each system, None where none is varied enough; `data` is the measure."""
    rule, rows = rule or VarietyRule(), list(rows)
    data = next((row for row in rows if row.system == "data"), None)
    if data is None:
        raise ValueError("the rows have none of the system 'data': give the whole report")
    best: dict[str, MeasuredSetting | None] = {}
    for row in rows:
        if row.system == "data":
            continue
        chosen = best.setdefault(row.system, None)
        if rule.allows(row, data) and (chosen is None or row.nll < chosen.nll):
            best[row.system] = row
    return best
