"""From rows to trainings and samples: what is to be done, what is done, and in which order.

A row of one training seed is one result. Results that differ in sampling only share a training, and
a training that several rows ask for has one name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.files import read_json, write_json
from cdcd.reproduction.findings import claim_rows
from cdcd.reproduction.rows import ROWS, Row
from cdcd.reproduction.scales import TEXT, Scale
from cdcd.reproduction.translators import size_and_direction
from cdcd.settings import flatten, override
from cdcd.training.checkpoint import RunDirectory

ROWS_IN_A_JOB = 12
"""Rows that one process samples, so that several can share the rows of one model."""
JUDGE = "judge"
LACKING = "not at this scale"


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
        data, has_masks = config.data, objective.masking != "none"
        sizes = (config.network, config.seq2seq, replace(config.embedding, init_scale=1.0))
        lengths = (data.source, data.length, data.source_length)
        losses = (has_masks, objective.self_conditioning, objective.loss)
        return (config.task, config.model, *sizes, *lengths, *losses)

    @property
    def needs_judge(self) -> bool:
        """True where its samples are judged; those of a text model may be."""
        if self.rows:
            return any(row.needs_judge for row, _ in self.rows)
        return self.config.task == "text" and self.name != JUDGE

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the jobs without which it is of no use."""
        own = (self.training,) if self.rows else ()
        return (*own, JUDGE) if self.needs_judge else own


@dataclass(frozen=True)
class Plan:
    """Rows at a scale, with everything that they need, in a folder."""

    scale: Scale
    rows: Sequence[Row]
    """The rows that are asked for; those that the scale lacks have no results."""
    corpora: Mapping[str, str]
    """The data sets, or built-in corpora, by name."""
    out: Path
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the machine, such as the device."""

    @cached_property
    def results(self) -> list[tuple[Row, int]]:
        """Every row with every seed, the most important first."""
        claims = {name: number for number, name in enumerate(claim_rows())}
        present = filter(self.scale.has, self.rows)
        ordered = sorted(present, key=lambda row: claims.get(row.name, len(claims)))
        # A row that is the same as another has its seeds.
        firsts = {row.name: ROWS.get(self._twins.get(row.name, ""), row) for row in ordered}
        seeds = {name: self.scale.seeds_of(first) for name, first in firsts.items()}
        return [(row, seed) for row in ordered for seed in range(seeds[row.name])]

    @cached_property
    def _twins(self) -> dict[str, str]:
        """The first row that asks for the same samples of the same training, by row."""
        first: dict[Any, str] = {}
        rows = filter(self.scale.has, ROWS.values())
        return {row.name: first.setdefault(self._identity(row), row.name) for row in rows}

    def _identity(self, row: Row) -> tuple[Any, ...]:
        prompts = tuple(self.scale.prompts(row).values())
        if row.system == "data":
            return prompts
        name, config = self.training(row, 0)
        if row.is_translation:
            return (name, *sorted(row.sampling.items()), *prompts)
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

    def states(self, row: Row) -> list[str]:
        """Returns the state of a row for each seed; of one that the scale lacks, `not at this scale`."""
        if not self.scale.has(row):
            return [LACKING]
        return [self.state(each, seed) for each, seed in self.results if each is row]

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
        base = flatten(self.scale.start(row))
        changed = {n: v for n, v in flatten(config).items() if v != base[n]}
        changed.pop("training.seed", None)
        names = [f"{name.split('.')[-1]}={value}" for name, value in changed.items()]
        prefix = "" if config.model == "diffusion" else "baseline,"
        if row.is_translation:
            prefix = f"{'-'.join(size_and_direction(row))},{prefix}"
        return f"{prefix}{','.join(names) or 'base'}.{seed}", self._placed(config)

    def _placed(self, config: RunConfig) -> RunConfig:
        name = TEXT if config.task == "text" else config.data.source
        return override(config, {"data.source": self.corpora.get(name, name)} | self.changes)

    def run(self, training: str) -> Path:
        """Returns the folder of a training."""
        return self.out / "runs" / training

    def is_trained(self, training: str, config: RunConfig) -> bool:
        """Returns whether a training has ended: at its last step, or early, of which a record tells."""
        run = self.run(training)
        if not (run / "config.json").is_file():
            return False
        has_record = (run / "record.json").is_file()
        return has_record or RunDirectory(run).existing_step() >= config.training.steps

    def jobs(self) -> list[Job]:
        """Returns what is to be done, the most important first: the judge, trainings, their samples."""
        missing: dict[Path, tuple[Row, int]] = {}
        for result in self.results:
            if self.state(*result) != "done":
                missing.setdefault(self.path(*result), result)
        needs_judge = any(row.needs_judge for row, _ in missing.values())
        jobs = [Job(JUDGE, JUDGE, self._placed(self.scale.judge()))] if needs_judge else []
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
        path, wanted = self.out / "protocol.json", self.scale.protocol(self.corpora)
        noted = read_json(path) if path.is_file() else {}
        # A later version may have more settings, and other rows need other corpora.
        present = _flat(noted)
        for name, value in _flat(wanted).items():
            if present.get(name, value) != value:
                raise ValueError(
                    f"{self.out} holds results of another protocol: {name} is {present[name]}, not "
                    f"{value}; choose another --out"
                )
        (self.out / "rows").mkdir(parents=True, exist_ok=True)
        write_json(path, wanted | noted)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat
