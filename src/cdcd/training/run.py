"""Starting, resuming and fine-tuning runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from cdcd.data.corpus import (
    BUILT_IN,
    Split,
    built_in_documents,
    make_tokenizer,
    read_documents,
    split_documents,
    to_sequences,
)
from cdcd.data.tokenizer import Tokenizer
from cdcd.networks.precision import choose_device
from cdcd.settings import override
from cdcd.training.checkpoint import Checkpoint, RunDirectory, check_shapes, refuse_existing
from cdcd.training.config import RunConfig
from cdcd.training.trainer import Trainer, initial_checkpoint


@dataclass(frozen=True)
class Sequences:
    """Token sequences to train on and to validate on."""

    train: Int[Tensor, "sequences length"]
    valid: Int[Tensor, "held_out length"]


def load_documents(config: RunConfig) -> Split:
    """The documents of a run's corpus, split the same way every time."""
    data, seed = config.data, config.training.seed
    if data.source in BUILT_IN:
        documents = built_in_documents(
            data.source,
            count=data.num_documents,
            length=data.length,
            num_states=data.num_states,
            seed=seed,
        )
    else:
        documents = read_documents(data.source)
    return split_documents(documents, data.valid_share, seed=seed)


def tokenise(split: Split, tokenizer: Tokenizer, config: RunConfig) -> Sequences:
    """Both parts of a corpus as sequences."""
    length, layout = config.data.length, config.data.layout
    return Sequences(
        train=to_sequences(split.train, tokenizer, length=length, layout=layout),
        valid=to_sequences(split.valid, tokenizer, length=length, layout=layout),
    )


def start(
    config: RunConfig, out: Path, *, init_from: Path | None = None, console: Console | None = None
) -> Trainer:
    """A new run in `out`; from the weights, warp and tokenizer of another run where one is given."""
    refuse_existing(out)
    choose_device(config.training.device)
    split = load_documents(config)
    config = _located(config)
    if init_from is None:
        data = config.data
        tokenizer = make_tokenizer(
            data.tokenizer,
            data.source,
            split.train,
            vocab_size=data.vocab_size,
            num_states=data.num_states,
        )
    else:
        tokenizer = RunDirectory(init_from).tokenizer
    sequences = tokenise(split, tokenizer, config)
    first = initial_checkpoint(config, tokenizer.vocab_size)
    if init_from is not None:
        first = _inherit(first, init_from)
    run = RunDirectory.create(out, config, tokenizer, first)
    return Trainer(run, sequences.train, sequences.valid, console=console)


def _located(config: RunConfig) -> RunConfig:
    """The corpus by its full path, so that the run can be resumed from any folder."""
    if config.data.source in BUILT_IN:
        return config
    source = str(Path(config.data.source).expanduser().resolve())
    return replace(config, data=replace(config.data, source=source))


def inherited_config(config: RunConfig, init_from: Path) -> RunConfig:
    """The model of another run with the data and training of this one."""
    other = RunDirectory(init_from).config
    data = replace(config.data, length=other.data.length)
    return replace(other, data=data, training=config.training)


def _inherit(first: Checkpoint, init_from: Path) -> Checkpoint:
    found = RunDirectory(init_from).load()
    weights = dict(found.weights)
    # Start both the weights and their average from what the other run would sample with.
    for name in list(first.weights):
        if name.startswith("model.") and f"average.{name[6:]}" in weights:
            weights[name] = weights[f"average.{name[6:]}"]
        if name.startswith("average."):
            weights.setdefault(name, weights[f"model.{name[8:]}"])
    weights = {
        n: w for n, w in weights.items() if n in first.weights or not n.startswith("average.")
    }
    check_shapes(first.weights, weights, str(init_from))
    return Checkpoint(0, weights, {})


def resume(
    out: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    checkpoint: int | None = None,
    console: Console | None = None,
) -> Trainer:
    """Go on with a run; only settings of `training` (but for the seed) and `sampling` may change."""
    run = RunDirectory(out)
    changes = dict(changes or {})
    free = ("training.", "sampling.")
    # Another seed would be another corpus and another split: held-out text would be trained on.
    if fixed := [n for n in changes if not n.startswith(free) or n == "training.seed"]:
        raise ValueError(
            f"{fixed[0]} is fixed by the run {out}; only training.* (but for the seed) and "
            f"sampling.* can change"
        )
    config = override(run.config, changes)
    if run.existing_step(checkpoint) >= config.training.steps:
        raise ValueError(
            f"{out} has already been trained for its {config.training.steps} steps; "
            f"for more: --resume --training.steps {config.training.steps * 2}"
        )
    sequences = tokenise(load_documents(config), run.tokenizer, config)
    trainer = Trainer(
        run,
        sequences.train,
        sequences.valid,
        config=config,
        checkpoint=checkpoint,
        console=console,
    )
    # The run is changed only now that nothing is left to be refused.
    if checkpoint is not None:
        run.set_aside_after(checkpoint)
    if changes:
        run.replace_config(config)
    return trainer
