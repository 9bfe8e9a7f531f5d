"""The three scales at which the paper is reproduced: models, corpus, samples and seeds of each."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.sequences import is_dataset
from cdcd.files import file_hash
from cdcd.presets import preset
from cdcd.reproduction.findings import claim_rows
from cdcd.reproduction.rows import Row
from cdcd.settings import override, unknown

PROTOCOL = 1
"""Raised where results of the same settings are no longer comparable."""
CAPTIONS = ("captions_train.en.txt.xz", "captions_val.en.txt.xz")
BEYOND_ALL_SEEDS = 10_000
"""Seed of the judge and of the prompts where the corpus is drawn by the seed."""


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
    whole_documents: bool = False

    def base(self, model: str = "diffusion", *, is_large: bool = False) -> RunConfig:
        """Returns the configuration that rows change."""
        name = self.large if is_large else self.preset
        return override(preset(name, model), getattr(self, model))

    def config(self, row: Row, seed: int) -> RunConfig:
        """Returns the training of a row, without its settings of sampling."""
        model = "autoregressive" if row.system == "autoregressive" else "diffusion"
        base = self.base(model, is_large=row.table == "table3")
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
        """Returns the number of samples of a row."""
        return self.sweep_samples if row.table in ("table2", "figure6") else self.num_samples

    def prompts(self, row: Row) -> dict[str, Any]:
        """Returns the number, the length and the kind of the texts that a row completes (§6.2, §6.5)."""
        is_table_3 = row.table == "table3"
        return {
            "samples": self.samples_of(row),
            "length": self.base(is_large=is_table_3).data.length,
            "protocol": "random" if is_table_3 else "half",
            "whole_documents": is_table_3 and self.whole_documents,
        }

    def seeds_of(self, row: Row) -> int:
        """Returns the number of training seeds of a row."""
        if row.system == "data":
            return 1
        return self.seeds if row.name in claim_rows() else self.other_seeds

    def protocol(self, data: str) -> dict[str, Any]:
        """Returns everything that makes the results in a folder comparable."""
        return {
            "protocol": PROTOCOL,
            "scale": self.name,
            "samples": self.num_samples,
            "sweep_samples": self.sweep_samples,
            "corpus": file_hash(Path(data) / "dataset.json") if is_dataset(data) else data,
            "steps": self.base().training.steps,
            "diffusion": asdict(self.base()),
            "judge": asdict(self.judge()),
        }

    def with_steps(self, steps: int) -> "Scale":
        """Returns the scale with longer or shorter training; warm-up and decay keep their shares."""
        training = self.base().training
        parts = {
            f"training.{name}": round(getattr(training, name) * steps / training.steps)
            for name in ("steps", "warmup_steps", "decay_steps")
        }
        return replace(self, diffusion={**self.diffusion, **parts})


_TABLES = tomllib.loads((files("cdcd.reproduction") / "scales.toml").read_text("utf-8"))
SCALES = {name: Scale(name=name, **table) for name, table in _TABLES.items()}


def scale_named(name: str) -> Scale:
    """Returns a scale by its name."""
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]


def corpus(scale: Scale, data: str | None, out: Path) -> str:
    """Returns the corpus of a scale, prepared in `out` where `data` holds the files it is made of."""
    if scale.name == "tiny":
        return "tales"
    if data is not None and is_dataset(data):
        return data
    wanted = "a data set made by cdcd data prepare with --judge-share and --test-share"
    if scale.name == "small":
        wanted += f", or a folder with {CAPTIONS[0]} and {CAPTIONS[1]}"
    if data is None:
        raise ValueError(f"scale {scale.name} needs --data: {wanted}")
    folders = [Path(data), Path(data) / "multi30k"] if scale.name == "small" else []
    for folder in folders:
        train, valid = (folder / name for name in CAPTIONS)
        if train.is_file() and valid.is_file():
            settings = PrepareConfig(
                source=str(train),
                valid_source=str(valid),
                test_share=0.03,
                judge_share=0.48,
                group_size=5,
                vocab_size=4096,
            )
            prepare(settings, out / "data")
            return str(out / "data")
    looked = " and ".join(map(str, folders or [data]))
    raise ValueError(f"scale {scale.name} needs {wanted}; looked for in {looked}")
