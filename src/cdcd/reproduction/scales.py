"""The three scales at which the paper is reproduced: models, corpus, samples and seeds of each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
    """One scale: what is trained and how much is sampled."""

    name: str
    preset: str
    changes: Mapping[str, Any]
    """Settings of the diffusion model that differ from its preset."""
    autoregressive: Mapping[str, Any]
    """Settings of the judge and the baseline that differ from the preset's baseline."""
    num_samples: int
    """Samples of a row."""
    sweep_samples: int
    """Samples of a row of Table 2 and Figure 6, which are compared with the same model's."""
    batch_size: int
    seeds: int = 3
    """Training seeds of the rows that carry a claim."""
    other_seeds: int = 1
    vocab_size: int
    """Size of the vocabulary, for estimates."""
    large: str | None = None
    """Preset of the judge and of Table 3, if it is another one."""

    def base(self, model: str = "diffusion", *, is_large: bool = False) -> RunConfig:
        """Returns the configuration that rows change."""
        changes = self.changes if model == "diffusion" else self.autoregressive
        name = self.large if self.large and is_large else self.preset
        return override(preset(name, model), changes)

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

    def seeds_of(self, row: Row) -> range:
        """Returns the training seeds of a row."""
        is_claim = row.name in claim_rows() or row.system == "data"
        return range(1 if row.system == "data" else self.seeds if is_claim else self.other_seeds)

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
            name: round(getattr(training, name) * steps / training.steps)
            for name in ("warmup_steps", "decay_steps")
        }
        changes = {f"training.{n}": v for n, v in {"steps": steps, **parts}.items()}
        return replace(self, changes={**self.changes, **changes})


SCALES = {
    each.name: each
    for each in (
        Scale(
            name="tiny",
            preset="demo",
            vocab_size=300,
            changes={
                "training.steps": 1_000,
                "training.decay_steps": 400,
                "training.seed": 0,
                "training.validate_every": 0,
                "training.checkpoint_every": 250,
                "data.num_documents": 40_000,
                "objective.self_conditioned_share": 0.5,
                "warp.uniformity": 0.0,
                "sampling.num_steps": 200,
                "sampling.score_temperature": 1.0,
            },
            autoregressive={
                "training.steps": 500,
                "training.decay_steps": 150,
                "training.learning_rate": 4e-3,
                "training.seed": 0,
                "training.validate_every": 0,
                "training.checkpoint_every": 250,
                "data.num_documents": 40_000,
            },
            num_samples=256,
            sweep_samples=256,
            batch_size=256,
        ),
        Scale(
            name="small",
            preset="small",
            vocab_size=4096,
            changes={
                "data.length": 32,
                "training.steps": 600,
                "training.warmup_steps": 60,
                "training.decay_steps": 400,
                "training.average_decay": 0.995,
                "training.validate_every": 0,
                "training.checkpoint_every": 0,
                "training.keep_checkpoints": 1,
                "training.valid_sequences": 512,
            },
            autoregressive={
                "data.length": 32,
                "training.steps": 400,
                "training.warmup_steps": 50,
                "training.decay_steps": 250,
                "training.average_decay": 0.99,
                "training.validate_every": 0,
                "training.checkpoint_every": 0,
                "training.keep_checkpoints": 1,
                "training.valid_sequences": 512,
            },
            num_samples=1024,
            sweep_samples=512,
            batch_size=1024,
        ),
        Scale(
            name="paper",
            preset="base",
            vocab_size=32_000,
            changes={},
            autoregressive={},
            num_samples=5_000,
            sweep_samples=5_000,
            batch_size=256,
            seeds=5,
            other_seeds=5,
            large="large",
        ),
    )
}


def scale_named(name: str) -> Scale:
    """Returns a scale by its name."""
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]


def corpus(scale: Scale, data: str | None, out: Path) -> str:
    """Returns the corpus of a scale, prepared in `out` where `data` holds the files it is made of."""
    if scale.name == "tiny":
        return "tales"
    if data is None:
        raise ValueError(f"scale {scale.name} needs --data: {_needed(scale)}")
    if is_dataset(data):
        return data
    folders = (Path(data), Path(data) / "multi30k")
    folder = next((each for each in folders if (each / CAPTIONS[0]).is_file()), None)
    if scale.name == "paper" or folder is None or not (folder / CAPTIONS[1]).is_file():
        looked = " and ".join(str(each) for each in folders)
        raise ValueError(f"{_needed(scale)}; looked for in {looked}")
    train, valid = (str(folder / name) for name in CAPTIONS)
    settings = PrepareConfig(
        source=train,
        valid_source=valid,
        test_share=0.03,
        judge_share=0.48,
        group_size=5,
        vocab_size=4096,
    )
    prepare(settings, out / "data")
    return str(out / "data")


def _needed(scale: Scale) -> str:
    prepared = "a data set made by cdcd data prepare with --judge-share and --test-share"
    return prepared if scale.name == "paper" else f"{prepared}, or a folder with {CAPTIONS[0]}"
