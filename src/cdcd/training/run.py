"""Starting, resuming and fine-tuning runs."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN, BUILT_IN_PAIRS
from cdcd.data.pairs import PairDataset
from cdcd.data.remote import dataset_folder, is_remote
from cdcd.files import expanded, warn, without_empty_folders
from cdcd.settings import flatten, override
from cdcd.training.checkpoint import (
    FREE,
    Checkpoint,
    RunDirectory,
    refuse_existing,
    with_prefixes,
    without_prefix,
)
from cdcd.training.corpora import (
    Corpus,
    check_split_is_kept,
    load_corpus,
    split_seed,
    unknown_share,
)
from cdcd.training.distillation import distilled_config
from cdcd.training.distributed import ALONE, World
from cdcd.training.logging import check_log
from cdcd.training.memory import refuse_what_cannot_fit
from cdcd.training.packed_model import open_run
from cdcd.training.parallel import check_shares
from cdcd.training.tensor_files import check_shapes
from cdcd.training.trackers import check_tracker
from cdcd.training.trainer import Trainer, initial_checkpoint


def start(
    config: RunConfig,
    out: Path,
    *,
    init_from: Path | None = None,
    allow_unknown: bool = False,
    console: Console | None = None,
    world: World = ALONE,
) -> Trainer:
    """Starts a run in `out`; with `init_from`, from another run's weights, warp and tokenizer.

    More than a few words that the other run does not know are an error, unless they are allowed.
    """
    check_shares(config.training.batch_size, config.training.accumulate, world)
    # A device or a tracker that is not there is refused before anything is created.
    world.device(config.training.device)
    check_tracker(config.training.tracker)
    if is_remote(config.data.source):
        # Each machine fetches for itself, before ranks wait for each other.
        dataset_folder(config.data.source)
    created: list[tuple[RunDirectory, Corpus]] = []
    with ExitStack() as stack:
        stack.enter_context(without_empty_folders(out.parent))
        world.on_main(
            lambda: created.append(_create(config, out, init_from, allow_unknown, console, world))
        )
        if created:
            run, corpus = created[0]
            # A run that cannot be trained is not left behind.
            stack.callback(run.remove)
        else:
            run = RunDirectory(out)
            corpus = load_corpus(config, run.tokenizer)
        _print_left_out(corpus, world, console)
        trainer = Trainer(run, corpus.train, corpus.valid, console=console, world=world)
        stack.pop_all()
    return trainer


def _print_left_out(corpus: Corpus, world: World, console: Console | None) -> None:
    """Prints the number of pairs that are too long for the model."""
    for name, part in (("train", corpus.train), ("valid", corpus.valid)):
        if isinstance(part, PairDataset) and part.num_dropped and world.is_main:
            (console or Console()).print(
                f"{name}: {part.num_dropped:,} of {len(part) + part.num_dropped:,} pairs left out: "
                f"longer than {part.source_length} + {part.target_length} tokens"
            )


def _create(
    config: RunConfig,
    out: Path,
    init_from: Path | None,
    allow_unknown: bool,
    console: Console | None,
    world: World,
) -> tuple[RunDirectory, Corpus]:
    """Makes the directory of a new run, and returns it with its text."""
    refuse_existing(out)
    if config.distillation.teacher_steps and init_from is None:
        raise ValueError("distillation.teacher_steps needs a teacher: cdcd distill RUN --out NEW")
    config = _located(config)
    parent = None if init_from is None else open_run(init_from)
    # Before a model of its size is built: it may be a stranger's.
    inherited = parent and parent.load()
    corpus = load_corpus(config, parent and parent.tokenizer)
    refuse_what_cannot_fit(config, corpus.tokenizer.vocab_size, world)
    first = initial_checkpoint(config, corpus.tokenizer.vocab_size)
    if parent is not None and inherited is not None:
        if _may_open_text(parent, config):
            check_split_is_kept(config, parent.config, corpus.tokenizer)
        if corpus.text_hash is None or corpus.text_hash != parent.text_hash:
            _check_words(corpus, parent, allow_unknown, console)
        first = _inherit(first, inherited, parent.path)
    run = RunDirectory.create(out, config, corpus.tokenizer, first, corpus.text_hash)
    return run, corpus


def _check_words(
    corpus: Corpus, parent: RunDirectory, allow_unknown: bool, console: Console | None
) -> None:
    """Prints the share of words that another run does not know, and refuses a large one."""
    share = unknown_share(corpus.train)
    problem = f"{share:.1%} of the words of the text are unknown to the tokenizer of {parent.path}"
    if share > MOST_UNKNOWN and not allow_unknown:
        raise ValueError(
            f"{problem}, more than {MOST_UNKNOWN:.0%}: train a new run without --init-from, or accept "
            f"it with --allow-unknown"
        )
    if share:
        (console or Console()).print(problem, highlight=False)


def _may_open_text(parent: RunDirectory, config: RunConfig) -> bool:
    """Returns whether the text of another run may be read: it was made here, or the user names its text."""
    source = parent.config.data.source
    may = parent.is_where_it_was_made or not _is_path(source) or source == config.data.source
    if not may:
        warn(
            f"{parent.path} was made elsewhere, and its text, said to be at {source}, is not opened: "
            f"whether the new run keeps documents apart that it held out is not known"
        )
    return may


def _located(config: RunConfig) -> RunConfig:
    """Writes out the path of the corpus, so that the run can be resumed from any folder."""
    if not _is_path(config.data.source) or is_remote(config.data.source):
        return config
    source = os.path.realpath(expanded(config.data.source))
    return replace(config, data=replace(config.data, source=source))


def _is_path(source: str) -> bool:
    return source not in (*BUILT_IN, BUILT_IN_PAIRS)


MOST_UNKNOWN = 0.05
"""Share of unknown words above which another run's tokenizer is refused."""
INHERITED_DATA = (
    *("length", "source_length", "languages"),
    *("valid_share", "num_documents", "num_states"),
)
"""Settings of `data` that a run tuned from another keeps: the model's, and those that split the text."""


def inherited_config(config: RunConfig, init_from: Path) -> RunConfig:
    """Returns the model of another run, and its split of the text, with the training of this one."""
    parent = open_run(init_from).config
    kept = {name: getattr(parent.data, name) for name in INHERITED_DATA}
    data = replace(config.data, **kept, split_seed=split_seed(parent))
    return replace(parent, data=data, training=config.training)


def distil(
    teacher: Path,
    out: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
    world: World = ALONE,
) -> Trainer:
    """Starts a run in `out` that learns to sample as another run does, in fewer steps."""
    parent, changes = open_run(teacher), dict(changes or {})
    source = parent.config.data.source
    if _is_path(source) and "data.source" not in changes and not parent.is_where_it_was_made:
        raise ValueError(
            f"{teacher} was made elsewhere; its data is said to be at {source}: give --data PATH to "
            f"confirm"
        )
    config = distilled_config(parent.config, changes)
    config = replace(config, data=replace(config.data, split_seed=split_seed(parent.config)))
    return start(config, out, init_from=teacher, console=console, world=world)


def _inherit(first: Checkpoint, inherited: Checkpoint, parent: Path) -> Checkpoint:
    """Returns a run's first checkpoint with the weights and the warp of another run's last one."""
    weights = inherited.weights
    # Start both the weights and their average from what the other run would sample with.
    model = without_prefix("model", weights) | without_prefix("average", weights)
    averaged = [name for name in without_prefix("average", first.weights) if name in model]
    groups = {"model": model, "average": {name: model[name] for name in averaged}}
    groups["warp"] = without_prefix("warp", weights)
    if without_prefix("teacher", first.weights):
        groups["teacher"] = model
    weights = with_prefixes(groups)
    check_shapes(first.weights, weights, str(parent))
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
    world.on_main(run.lock)
    with ExitStack() as stack:
        stack.callback(run.unlock)
        trainer = _resume(run, dict(changes or {}), checkpoint, console, world)
        stack.pop_all()
    return trainer


def _resume(
    run: RunDirectory,
    changes: Mapping[str, Any],
    checkpoint: int | None,
    console: Console | None,
    world: World,
) -> Trainer:
    config = changed_config(run, changes)
    check_tracker(config.training.tracker)
    if run.existing_step(checkpoint) >= config.training.steps:
        raise ValueError(
            f"{run.path} has already been trained for its {config.training.steps} steps; "
            f"for more: --resume --training.steps {config.training.steps * 2}"
        )
    is_confirmed = "data.source" in changes
    if _is_path(config.data.source) and not is_confirmed and not run.is_where_it_was_made:
        raise ValueError(
            f"{run.path} was made elsewhere; its data is said to be at {config.data.source}: give "
            f"--data PATH to confirm"
        )
    if is_remote(config.data.source):
        dataset_folder(config.data.source)
    corpus = load_corpus(config, run.tokenizer)
    _check_text(run, corpus, config.data.source)
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

    check_log(run.metrics_path)

    def change_run() -> None:
        if checkpoint is not None:
            run.set_aside_after(checkpoint)
        if changes:
            run.replace_config(config, text_hash=corpus.text_hash if is_confirmed else None)

    # The run is changed only now that nothing is left to be refused, on any rank.
    world.on_main(change_run)
    return trainer


def _check_text(run: RunDirectory, corpus: Corpus, source: str) -> None:
    """Refuses another text than the run's."""
    if corpus.text_hash is None or corpus.text_hash == run.text_hash:
        return
    if run.text_hash is not None:
        raise ValueError(
            f"{source} is not the text that {run.path} is trained on: it has other documents; give the "
            f"right one with --data PATH, or tune the run on other text with --init-from"
        )
    warn(
        f"{run.path} was made by an earlier version of cdcd: whether {source} is the text that it is "
        f"trained on is not known"
    )


FIXED_IN_TRAINING = {
    "training.seed": "another seed splits the corpus in another way and trains on held-out text",
    "training.batch_size": "the data would be read from another position: step × batch size",
    "training.optimiser": "the checkpoint holds the state of the other optimiser",
}
"""Settings of `training` that a resumed run keeps, with the reasons."""


def changed_config(run: RunDirectory, changes: Mapping[str, Any]) -> RunConfig:
    """Returns a run's configuration with changes, after checking that a resumed run can make them."""
    present = run.config
    config = _located(override(present, changes))
    before, after = flatten(present), flatten(config)
    for name in (name for name in changes if after[name] != before[name]):
        reason = FIXED_IN_TRAINING.get(name)
        if name == "data.source" and _is_path(before[name]) and _is_path(after[name]):
            continue  # The text may have moved; it is compared when it is read.
        if name.split(".")[0] not in FREE:
            reason = "the run has its model and its data"
        if name == "training.average_decay" and not (before[name] and after[name]):
            reason = f"the run keeps {'a' if before[name] else 'no'} moving average of its weights"
        if name == "training.valid_sequences" and present.training.patience:
            reason = "training.patience compares validation losses of the same sequences"
        if name == "training.valid_sequences" and present.training.keep_best:
            reason = "training.keep_best compares validation losses of the same sequences"
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
    """Returns whether a run with these changes has no step left, also where it went back to its best."""
    config = changed_config(run, changes)
    went_back = config.training.keep_best and run.aside(config.training.steps).exists()
    return went_back or run.existing_step() >= config.training.steps
