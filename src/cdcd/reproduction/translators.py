"""The translators of Table 4 at a scale: their sizes, directions and models (§6.6)."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cdcd.config import RunConfig, TrainingConfig
from cdcd.presets import preset
from cdcd.reproduction.rows import ROWS, Row
from cdcd.settings import override


def size_and_direction(row: Row) -> tuple[str, str]:
    """Returns the size of the model, and the languages, such as en-de, of a row of Table 4."""
    _, group, direction = row.name.split("/")
    return group.partition("-")[0], direction


def lengthened(training: TrainingConfig, steps: int) -> dict[str, int]:
    """Returns changes for a number of training steps; warm-up and decay keep their shares."""
    return {
        f"training.{name}": round(getattr(training, name) * steps / training.steps)
        for name in ("steps", "warmup_steps", "decay_steps")
    }


@dataclass(frozen=True, kw_only=True)
class Translators:
    """Models and pairs of Table 4 at one scale. `scales.toml` says what the fields are."""

    presets: Mapping[str, str]
    directions: Mapping[str, Mapping[str, Any]]
    num_sentences: int
    batch_size: int
    vocab_size: int
    diffusion: Mapping[str, Any]
    autoregressive: Mapping[str, Any]
    masks: Mapping[str, Any]

    def has(self, row: Row) -> bool:
        """Returns whether the scale has the size and the direction of a row."""
        size, direction = size_and_direction(row)
        return size in self.presets and direction in self.directions

    def base(self, row: Row) -> RunConfig:
        """Returns the configuration that a row changes; its `data.source` names a corpus of pairs."""
        size, direction = size_and_direction(row)
        changes = {**getattr(self, row.model), **self.directions[direction]}
        return override(preset(self.presets[size], row.model), changes)

    def config(self, row: Row, seed: int) -> RunConfig:
        """Returns the training of a row, without its settings of sampling."""
        masks = self.masks if "objective.masking" in row.training else {}
        return override(self.base(row), {**masks, **row.training, "training.seed": seed})

    def with_steps(self, steps: int) -> "Translators":
        """Returns the same with longer or shorter training of the diffusion models."""
        size = next(iter(self.presets))
        training = override(preset(self.presets[size]), self.diffusion).training
        return replace(self, diffusion={**self.diffusion, **lengthened(training, steps)})

    def protocol(self) -> dict[str, Any]:
        """Returns everything that the results depend on."""
        return asdict(self) | {"models": dict(self._models())}

    def _models(self) -> Iterator[tuple[str, Any]]:
        for row in ROWS.values():
            if row.is_translation and self.has(row):
                name = "-".join((*size_and_direction(row), row.model))
                yield name, asdict(self.base(row))
