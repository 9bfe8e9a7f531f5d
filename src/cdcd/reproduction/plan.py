"""From rows to trainings and samples: what is to be done, what is done, and in which order.

A row of one training seed is one result. Results that differ in sampling only share a training, and
a training that several rows ask for has one name.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.files import read_json, write_json
from cdcd.reproduction.findings import claim_rows
from cdcd.reproduction.rows import ROWS, Row
from cdcd.reproduction.scales import Scale
from cdcd.settings import flatten, override
from cdcd.training.checkpoint import RunDirectory

ROWS_IN_A_JOB = 12
"""Rows that one process samples, so that several can share the rows of one model."""
JUDGE = "judge"


@dataclass(frozen=True)
class Job:
    """One training, or the samples of some rows from one trained model."""

    name: str
    training: str
    config: RunConfig
    rows: Sequence[tuple[Row, int]] = ()
    """The rows that are sampled, with their seeds; none: this is the training."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """The settings that change what is compiled."""
        config, objective = self.config, self.config.objective
        has_masks = objective.masking != "none"
        sizes = (config.network, replace(config.embedding, init_scale=1.0))
        return (config.model, *sizes, has_masks, objective.self_conditioning, objective.loss)


@dataclass(frozen=True)
class Plan:
    """Rows at a scale, with everything that they need, in a folder."""

    scale: Scale
    rows: Sequence[Row]
    data: str
    out: Path
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the machine, such as the device."""

    @cached_property
    def results(self) -> list[tuple[Row, int]]:
        """Every row with every seed, the most important first."""
        claims = {name: number for number, name in enumerate(claim_rows())}
        ordered = sorted(self.rows, key=lambda row: claims.get(row.name, len(claims)))
        # A row that is the same as another has its seeds.
        firsts = {row.name: ROWS.get(self._twins.get(row.name, ""), row) for row in ordered}
        seeds = {name: self.scale.seeds_of(first) for name, first in firsts.items()}
        return [(row, seed) for row in ordered for seed in range(seeds[row.name])]

    @cached_property
    def _twins(self) -> dict[str, str]:
        """The first row that asks for the same samples of the same training, by row."""
        first: dict[Any, str] = {}
        rows = [row for row in ROWS.values() if row.table != "table4"]
        return {row.name: first.setdefault(self._identity(row), row.name) for row in rows}

    def _identity(self, row: Row) -> tuple[Any, ...]:
        prompts = tuple(self.scale.prompts(row).values())
        if row.system == "data":
            return prompts
        name, config = self.training(row, 0)
        section = config.decoding if row.system == "autoregressive" else config.sampling
        return (name, override(section, row.sampling), *prompts)

    def path(self, row: Row, seed: int) -> Path:
        """Returns the file of a result; rows that are the same share one."""
        name = self._twins.get(row.name, row.name).replace("/", ".")
        return self.out / "rows" / f"{name}.{seed}.json"

    def result(self, row: Row, seed: int) -> dict[str, Any] | None:
        """Returns a result that is there, or the error that was there instead."""
        path = self.path(row, seed)
        return read_json(path) if path.is_file() else None

    def state(self, row: Row, seed: int) -> str:
        """Returns `done`, `failed`, `trained` or `to do`."""
        result = self.result(row, seed)
        if result is not None:
            return "failed" if "error" in result else "done"
        return "trained" if self.is_trained(*self.training(row, seed)) else "to do"

    def training(self, row: Row, seed: int) -> tuple[str, RunConfig]:
        """Returns the training that a row needs, named by what differs from the base model."""
        if row.system == "data":
            return JUDGE, self._placed(self.scale.judge())
        config = self.scale.config(row, seed)
        base = flatten(self.scale.base(config.model))
        changed = {n: v for n, v in flatten(config).items() if v != base[n]}
        changed.pop("training.seed", None)
        names = [f"{name.split('.')[-1]}={value}" for name, value in changed.items()]
        prefix = "" if config.model == "diffusion" else "baseline,"
        return f"{prefix}{','.join(names) or 'base'}.{seed}", self._placed(config)

    def _placed(self, config: RunConfig) -> RunConfig:
        return override(config, {"data.source": self.data} | self.changes)

    def run(self, training: str) -> Path:
        """Returns the folder of a training."""
        return self.out / "runs" / training

    def is_trained(self, training: str, config: RunConfig) -> bool:
        """Returns whether a training has reached its last step."""
        run = self.run(training)
        if not (run / "config.json").is_file():
            return False
        return RunDirectory(run).existing_step() >= config.training.steps

    def jobs(self) -> list[Job]:
        """Returns what is to be done, the most important first: the judge, trainings, their samples."""
        missing: dict[Path, tuple[Row, int]] = {}
        for result in self.results:
            if self.state(*result) != "done":
                missing.setdefault(self.path(*result), result)
        jobs = [Job(JUDGE, JUDGE, self._placed(self.scale.judge()))] if missing else []
        parts: dict[str, list[tuple[Row, int]]] = {}
        counts = Counter({JUDGE: 0})
        for row, seed in missing.values():
            name, config = self.training(row, seed)
            if name not in counts:
                jobs.append(Job(name, name, config))
            if counts[name] % ROWS_IN_A_JOB == 0:
                parts[name] = []
                jobs.append(Job(f"{name}+{counts[name]}", name, config, parts[name]))
            parts[name].append((row, seed))
            counts[name] += 1
        return [job for job in jobs if job.rows or not self.is_trained(job.name, job.config)]

    def check_protocol(self) -> None:
        """Notes the protocol of the folder; refuses a folder of another one."""
        path, wanted = self.out / "protocol.json", self.scale.protocol(self.data)
        if not path.is_file():
            (self.out / "rows").mkdir(parents=True, exist_ok=True)
            write_json(path, wanted)
            return
        # A later version may have more settings.
        present = _flat(read_json(path))
        for name, value in _flat(wanted).items():
            if present.get(name, value) != value:
                raise ValueError(
                    f"{self.out} holds results of another protocol: {name} is {present[name]}, not "
                    f"{value}; choose another --out"
                )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat
