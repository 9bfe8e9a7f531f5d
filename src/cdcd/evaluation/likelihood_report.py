"""A report on likelihoods: one row for each system and method, as a table and JSON."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxtyping import Float, Int
from rich.console import Console
from torch import Tensor

from cdcd.evaluation.report import Cell, as_json, show, table, write_files
from cdcd.evaluation.text_report import mean_over_runs
from cdcd.metrics.intervals import Interval, ratio_interval


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of the held-out text under one run."""

    run: str
    nats_per_token: Interval
    """Bootstrapped over sequences."""
    bits_per_byte: Interval
    parts: dict[str, float]
    """The nats a token of each part of the sum."""

    @classmethod
    def of(
        cls,
        run: str,
        nats: Mapping[str, Float[Tensor, " samples"]],
        num_tokens: Int[Tensor, " samples"],
        num_bytes: Int[Tensor, " samples"],
        *,
        seed: int,
    ) -> "Likelihood":
        total = sum(nats.values(), start=0 * num_tokens)
        return cls(
            run,
            ratio_interval(total, num_tokens, seed=seed),
            ratio_interval(total / math.log(2), num_bytes, seed=seed),
            {name: float(each.sum() / num_tokens.sum()) for name, each in nats.items()},
        )


@dataclass(frozen=True)
class LikelihoodRow:
    """A system by one method, under one or more runs."""

    system: str
    method: str
    is_bound: bool
    """True where the likelihood is at least this high: the nats are an upper bound."""
    measured: list[Likelihood]

    def mean(self, name: str) -> tuple[float, float]:
        """Returns the mean of a value over runs, and its standard error."""
        return mean_over_runs([getattr(each, name) for each in self.measured])

    def part(self, name: str) -> float | None:
        """Returns the nats a token of one part of the sum, where it has several."""
        if len(self.measured[0].parts) == 1:
            return None
        return fmean(each.parts[name] for each in self.measured)


@dataclass(frozen=True)
class LikelihoodReport:
    """The rows of an evaluation, and its protocol."""

    rows: list[LikelihoodRow]
    protocol: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        names = ("nats_per_token", "bits_per_byte")
        return {
            "protocol": self.protocol,
            "rows": [
                asdict(row)
                | {
                    "mean": {
                        name: dict(zip(("value", "error"), row.mean(name), strict=True))
                        for name in names
                    }
                }
                for row in self.rows
            ],
        }

    def write(self, folder: Path) -> list[Path]:
        """Writes likelihood.json."""
        return write_files(folder, {"likelihood.json": as_json(self.as_dict())}, {})

    def print(self, console: Console) -> None:
        """Prints the table and remarks on its numbers."""
        show(console, [table(COLUMNS, self.rows)], _remarks(self))


def _with_error(name: str) -> Cell:
    def cell(row: LikelihoodRow) -> str:
        value, error = row.mean(name)
        return f"{'≤ ' if row.is_bound else ''}{value:.3f} ± {error:.3f}"

    return cell


def _part(name: str) -> Cell:
    def cell(row: LikelihoodRow) -> str | None:
        value = row.part(name)
        return None if value is None else f"{value:.3f}"

    return cell


COLUMNS: dict[str, Cell] = {
    "system": lambda row: row.system,
    "method": lambda row: row.method,
    "nats/token": _with_error("nats_per_token"),
    "bits/byte": _with_error("bits_per_byte"),
    "start": _part("prior"),
    "denoising": _part("diffusion"),
    "tokens at t_min": _part("tokens"),
}


def _remarks(report: LikelihoodReport) -> Iterator[str]:
    protocol = report.protocol
    given = {"none": "nothing", "half": "half", "random": "nothing to half"}[protocol["protocol"]]
    yield (
        f"{protocol['num_samples']} held-out sequences of {protocol['length']} tokens, {given} given: "
        f"{protocol['num_tokens']:,} tokens, {protocol['num_bytes']:,} bytes"
    )
    if any(row.is_bound for row in report.rows):
        yield (
            f"≤ is an upper bound, estimated at {protocol['num_levels']} noise levels a sequence; its "
            f"parts are nats a token"
        )
