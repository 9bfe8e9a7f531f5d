"""Starting, resuming and fine-tuning runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN, BUILT_IN_PAIRS
from cdcd.data.pairs import PairDataset
from cdcd.settings import flatten, override
from cdcd.training.checkpoint import (
    Checkpoint,
    RunDirectory,
    check_shapes,
    refuse_existing,
    with_prefixes,
    without_prefix,
)
from cdcd.training.corpora import Corpus, check_split_is_kept, load_corpus, split_seed
from cdcd.training.distributed import ALONE, World
from cdcd.training.memory import refuse_what_cannot_fit
from cdcd.training.parallel import check_shares
from cdcd.training.trainer import Trainer, initial_checkpoint


def start(
    config: RunConfig,
    out: Path,
    *,
    init_from: Path | None = None,
    console: Console | None = None,
    world: World = ALONE,
) -> Trainer:
    """Starts a run in `out`; with `init_from`, from another run's weights, warp and tokenizer."""
    check_shares(config.training.batch_size, config.training.accumulate, world)
    # A device that is not there is refused before anything is created.
    world.device(config.training.device)
    loaded: list[Corpus] = []
    world.on_main(lambda: loaded.append(_create(config, out, init_from, world)))
    run = RunDirectory(out)
    corpus = loaded[0] if loaded else load_corpus(config, run.tokenizer)
    _print_left_out(corpus, world, console)
    return Trainer(run, corpus.train, corpus.valid, console=console, world=world)


def _print_left_out(corpus: Corpus, world: World, console: Console | None) -> None:
    """Prints the number of pairs that are too long for the model."""
    for name, part in (("train", corpus.train), ("valid", corpus.valid)):
        if isinstance(part, PairDataset) and part.num_dropped and world.is_main:
            (console or Console()).print(
                f"{name}: {part.num_dropped:,} of {len(part) + part.num_dropped:,} pairs left out: "
                f"longer than {part.source_length} + {part.target_length} tokens"
            )


def _create(config: RunConfig, out: Path, init_from: Path | None, world: World) -> Corpus:
    """Makes the directory of a new run and returns its text."""
    refuse_existing(out)
    config = _located(config)
    parent = None if init_from is None else RunDirectory(init_from)
    corpus = load_corpus(config, parent and parent.tokenizer)
    refuse_what_cannot_fit(config, corpus.tokenizer.vocab_size, world)
    first = initial_checkpoint(config, corpus.tokenizer.vocab_size)
    if parent is not None:
        check_split_is_kept(config, parent.config, corpus.tokenizer)
        first = _inherit(first, parent)
    RunDirectory.create(out, config, corpus.tokenizer, first)
    return corpus


def _located(config: RunConfig) -> RunConfig:
    """Writes out the path of the corpus, so that the run can be resumed from any folder."""
    if config.data.source in (*BUILT_IN, BUILT_IN_PAIRS):
        return config
    source = str(Path(config.data.source).expanduser().resolve())
    return replace(config, data=replace(config.data, source=source))


INHERITED_DATA = (
    *("length", "source_length", "languages"),
    *("valid_share", "num_documents", "num_states"),
)
"""Settings of `data` that a run tuned from another keeps: the model's, and those that split the text."""


def inherited_config(config: RunConfig, init_from: Path) -> RunConfig:
    """Returns the model of another run, and its split of the text, with the training of this one."""
    parent = RunDirectory(init_from).config
    kept = {name: getattr(parent.data, name) for name in INHERITED_DATA}
    data = replace(config.data, **kept, split_seed=split_seed(parent))
    return replace(parent, data=data, training=config.training)


def _inherit(first: Checkpoint, parent: RunDirectory) -> Checkpoint:
    """Returns a run's first checkpoint with the weights and the warp of another run's last one."""
    weights = parent.load().weights
    # Start both the weights and their average from what the other run would sample with.
    model = without_prefix("model", weights) | without_prefix("average", weights)
    averaged = [name for name in without_prefix("average", first.weights) if name in model]
    groups = {"model": model, "average": {name: model[name] for name in averaged}}
    weights = with_prefixes(groups | {"warp": without_prefix("warp", weights)})
    check_shapes(first.weights, weights, str(parent.path))
    return Checkpoint(0, weights, {})


def resume(
    out: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    checkpoint: int | None = None,
    console: Console | None = None,
    world: World = ALONE,
) -> Trainer:
    """Continues a run, with changes that a resumed run can make."""
    run = RunDirectory(out)
    changes = dict(changes or {})
    config = changed_config(run, changes)
    if run.existing_step(checkpoint) >= config.training.steps:
        raise ValueError(
            f"{out} has already been trained for its {config.training.steps} steps; "
            f"for more: --resume --training.steps {config.training.steps * 2}"
        )
    corpus = load_corpus(config, run.tokenizer)
    _print_left_out(corpus, world, console)
    trainer = Trainer(
        run,
        corpus.train,
        corpus.valid,
        config=config,
        checkpoint=checkpoint,
        console=console,
        world=world,
    )

    def change_run() -> None:
        if checkpoint is not None:
            run.set_aside_after(checkpoint)
        if changes:
            run.replace_config(config)

    # The run is changed only now that nothing is left to be refused, on any rank.
    world.on_main(change_run)
    return trainer


FIXED_IN_TRAINING = {
    "training.seed": "another seed splits the corpus in another way and trains on held-out text",
    "training.batch_size": "the data would be read from another position: step × batch size",
    "training.optimiser": "the checkpoint holds the state of the other optimiser",
}
"""Settings of `training` that a resumed run keeps, with the reasons."""
FREE = ("training", "decoder", "sampling", "mask_predict", "decoding", "beam")
"""Sections whose other settings can change when a run is resumed; all others describe its model and data."""


def changed_config(run: RunDirectory, changes: Mapping[str, Any]) -> RunConfig:
    """Returns a run's configuration with changes, after checking that a resumed run can make them."""
    present = run.config
    config = override(present, changes)
    before, after = flatten(present), flatten(config)
    for name in (name for name in changes if after[name] != before[name]):
        reason = FIXED_IN_TRAINING.get(name)
        if name.split(".")[0] not in FREE:
            reason = "the run has its model and its data"
        if name == "training.average_decay" and not (before[name] and after[name]):
            reason = f"the run keeps {'a' if before[name] else 'no'} moving average of its weights"
        if name == "training.valid_sequences" and present.training.patience:
            reason = "training.patience compares validation losses of the same sequences"
        if reason:
            raise ValueError(
                f"{name} is fixed at {before[name]} by the run {run.path} ({reason}); a resumed run can "
                f"change other settings of {', '.join(FREE)}"
            )
    return config


def changes_to(run: RunDirectory, config: RunConfig) -> dict[str, Any]:
    """Returns the settings in which a configuration, made for a new run, differs from that of a run."""
    present = flatten(run.config)
    return {n: v for n, v in flatten(_located(config)).items() if v != present[n]}


def is_finished(run: RunDirectory, changes: Mapping[str, Any]) -> bool:
    """Returns whether a run with these changes has no step left."""
    return run.existing_step() >= changed_config(run, changes).training.steps
