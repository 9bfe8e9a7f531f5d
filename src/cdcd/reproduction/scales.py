"""The three scales at which the paper is reproduced: models, corpus, samples and seeds of each."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.data.dataset_files import DESCRIPTION
from cdcd.data.sequences import is_dataset
from cdcd.files import read_json
from cdcd.presets import preset
from cdcd.reproduction.findings import claim_rows
from cdcd.reproduction.rows import Row
from cdcd.reproduction.translators import Translators, lengthened
from cdcd.settings import override, unknown

PROTOCOL = 1
"""Raised where results of the same settings are no longer comparable."""
BEYOND_ALL_SEEDS = 10_000
"""Seed of the judge and of the prompts where the corpus is drawn by the seed."""
TEXT = "text"
"""The corpus of all tables but Table 4; the others are of pairs, named by their languages."""
OF_LARGE = ("table3", "figure7")
"""The tables of the larger model, which completes prompts of random length (§6.5)."""
FIGURE_SAMPLES = 8
"""Texts of each kind in Figure 7."""


@dataclass(frozen=True)
class RawCorpus:
    """Files that a corpus is made of."""

    folder: str
    """The folder of the files in the user's folder, unless they are in the latter itself."""
    files: Mapping[str, str]
    """Names of the files, by the settings of `cdcd data prepare` that take them."""
    settings: Mapping[str, Any]
    """Other settings of the preparation."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One scale: models, samples and seeds. `scales.toml` says what the fields are."""

    name: str
    preset: str
    large: str
    diffusion: Mapping[str, Any]
    autoregressive: Mapping[str, Any]
    num_samples: int
    sweep_samples: int
    batch_size: int
    seeds: int
    other_seeds: int
    vocab_size: int
    translators: Translators
    raw: Mapping[str, RawCorpus] = field(default_factory=dict)
    whole_documents: bool = False

    @property
    def is_built_in(self) -> bool:
        """True where all corpora are built in."""
        return self.name == "tiny"

    def has(self, row: Row) -> bool:
        """Returns whether a row exists at this scale."""
        return not row.is_translation or self.translators.has(row)

    def base(self, model: str = "diffusion", *, is_large: bool = False) -> RunConfig:
        """Returns the configuration that rows change."""
        name = self.large if is_large else self.preset
        return override(preset(name, model), getattr(self, model))

    def vocab_size_of(self, config: RunConfig) -> int:
        """Returns about how many tokens the vocabulary of a training has."""
        return self.vocab_size if config.task == "text" else self.translators.vocab_size

    def start(self, row: Row) -> RunConfig:
        """Returns the configuration of the scale that the training of a row is named against."""
        return self.translators.base(row) if row.is_translation else self.base(row.model)

    def config(self, row: Row, seed: int) -> RunConfig:
        """Returns the training of a row, without its settings of sampling."""
        if row.is_translation:
            return self.translators.config(row, seed)
        base = self.base(row.model, is_large=row.table in OF_LARGE)
        return override(base, {**self._adapted(row.training, base), "training.seed": seed})

    def judge(self) -> RunConfig:
        """Returns the training of the judge, on text that no model sees."""
        base = self.base("autoregressive", is_large=True)
        if base.data.source == "tales":
            return override(base, {"training.seed": BEYOND_ALL_SEEDS})
        return override(base, {"data.split": "judge"})

    def _adapted(self, changes: Mapping[str, Any], base: RunConfig) -> dict[str, Any]:
        """Expresses the paper's changes in the sizes and coordinates of this scale."""
        adapted = dict(changes)
        if "objective.prefix_length" in adapted:
            adapted["objective.prefix_length"] = base.data.length // 2
        if adapted.get("warp.train") == "false" or adapted.get("warp.uniformity") == "1.0":
            # Without warping the paper draws noise levels uniformly in t, whatever our coordinate.
            adapted["warp.bins"] = "linear"
        return adapted

    def samples_of(self, row: Row) -> int:
        """Returns the number of samples of a row; of a translator, of sentences."""
        if row.is_translation:
            return self.translators.num_sentences
        if row.table == "figure7":
            return min(FIGURE_SAMPLES, self.num_samples)
        return self.sweep_samples if row.table in ("table2", "figure6") else self.num_samples

    def prompts(self, row: Row) -> dict[str, Any]:
        """Returns the number, the length and the kind of the texts that a row completes (§6.2, §6.5).

        Of a translator: the largest number of sentences of the test set.
        """
        if row.is_translation:
            return {"num_sentences": self.samples_of(row)}
        is_large = row.table in OF_LARGE
        protocol = "random" if is_large else "half"
        return {
            "samples": self.samples_of(row),
            "length": self.base(is_large=is_large).data.length,
            "protocol": "middle" if row.name.endswith("/infilling") else protocol,
            "whole_documents": is_large and self.whole_documents,
        }

    def seeds_of(self, row: Row) -> int:
        """Returns the number of training seeds of a row."""
        if row.system == "data" or row.table == "figure7":
            return 1
        return self.seeds if row.name in claim_rows() else self.other_seeds

    def protocol(self, corpora: Mapping[str, str]) -> dict[str, Any]:
        """Returns everything that makes the results in a folder comparable."""
        has_pairs = any(name != TEXT for name in corpora)
        return {
            "protocol": PROTOCOL,
            "scale": self.name,
            "samples": self.num_samples,
            "sweep_samples": self.sweep_samples,
            "steps": self.base().training.steps,
            "diffusion": asdict(self.base()),
            "judge": asdict(self.judge()),
            **({"translators": self.translators.protocol()} if has_pairs else {}),
            **{_entry(name): _identity(source) for name, source in corpora.items()},
        }

    def with_samples(self, count: int) -> "Scale":
        """Returns the scale with another number of samples of every row; of translators, of sentences."""
        translators = replace(self.translators, num_sentences=count)
        return replace(self, num_samples=count, sweep_samples=count, translators=translators)

    def with_steps(self, steps: int) -> "Scale":
        """Returns the scale with longer or shorter training; warm-up and decay keep their shares."""
        translators = self.translators.with_steps(steps)
        changes = {**self.diffusion, **lengthened(self.base().training, steps)}
        return replace(self, diffusion=changes, translators=translators)


def _entry(corpus: str) -> str:
    return "corpus" if corpus == TEXT else f"pairs {corpus}"


def _identity(source: str) -> str:
    """Returns a hash of the tokenizer and the tokens of a data set, wherever it lies or was made from."""
    if not is_dataset(source):
        return source
    descriptions = [read_json(path) for path in sorted(Path(source).rglob(DESCRIPTION))]
    content = [[each["tokenizer"]["hash"], each.get("splits")] for each in descriptions]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _scale(name: str, table: dict[str, Any]) -> Scale:
    raw = {corpus: RawCorpus(**facts) for corpus, facts in table.pop("raw", {}).items()}
    translators = Translators(**table.pop("translators"))
    return Scale(name=name, translators=translators, raw=raw, **table)


_TABLES = tomllib.loads((files("cdcd.reproduction") / "scales.toml").read_text("utf-8"))
SCALES = {name: _scale(name, table) for name, table in _TABLES.items()}


def scale_named(name: str) -> Scale:
    """Returns a scale by its name."""
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]
