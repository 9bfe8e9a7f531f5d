"""Starting, resuming and fine-tuning runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.config import DataConfig, RunConfig
from cdcd.data.corpus import (
    BUILT_IN,
    Split,
    built_in_documents,
    make_tokenizer,
    read_documents,
    split_documents,
    to_sequences,
)
from cdcd.data.pairs import PairDataset, PreparedPairs, holds_pairs, pairs_in_memory
from cdcd.data.prepare.reading_pairs import BUILT_IN_PAIRS
from cdcd.data.sequences import InMemory, Sequences, TokenDataset, is_dataset
from cdcd.data.subword_sampling import SubwordSampledPairs
from cdcd.data.tokenizers import Tokenizer, numerals_tokenizer, tokenizer_hash
from cdcd.languages import numerals
from cdcd.presets import TRANSLATION
from cdcd.settings import flatten, override
from cdcd.training.checkpoint import Checkpoint, RunDirectory, check_shapes, refuse_existing
from cdcd.training.distributed import ALONE, World
from cdcd.training.parallel import check_shares
from cdcd.training.trainer import Trainer, initial_checkpoint


@dataclass(frozen=True)
class Corpus:
    """A run's text as token sequences: what it trains on, what it validates on."""

    tokenizer: Tokenizer
    train: Sequences
    valid: Sequences


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


def load_corpus(config: RunConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """A run's text by its tokenizer; without one, by that of the data set, or one learnt from the text."""
    data = config.data
    if config.task == "translation":
        return load_pairs(config, tokenizer)
    if data.source == BUILT_IN_PAIRS or holds_pairs(data.source):
        raise ValueError(
            f"{data.source} holds pairs to translate: train a translator with --task translation or "
            f"one of the presets {', '.join(TRANSLATION)}"
        )
    if is_dataset(data.source):
        return _prepared(data, tokenizer)
    if data.split != "train":
        raise ValueError(
            f"data.split {data.split} needs a prepared data set: cdcd data prepare --source {data.source}"
        )
    split = load_documents(config)
    tokenizer = tokenizer or make_tokenizer(
        data.tokenizer,
        data.source,
        split.train,
        vocab_size=data.vocab_size,
        num_states=data.num_states,
    )
    train, valid = (
        InMemory(to_sequences(documents, tokenizer, length=data.length, layout=data.layout))
        for documents in (split.train, split.valid)
    )
    return Corpus(tokenizer, train, valid)


def load_pairs(config: RunConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """A translator's pairs: of a prepared data set, or drawn from the built-in task."""
    corpus = _pairs(config, tokenizer)
    alpha = config.data.subword_sampling
    if not alpha:
        return corpus
    assert isinstance(corpus.train, PairDataset)
    return replace(corpus, train=SubwordSampledPairs(corpus.train, corpus.tokenizer, alpha))


def _pairs(config: RunConfig, tokenizer: Tokenizer | None) -> Corpus:
    data = config.data
    if data.source == BUILT_IN_PAIRS:
        return _built_in_pairs(config, tokenizer or numerals_tokenizer())
    if data.source in BUILT_IN:
        raise ValueError(
            f"{data.source} holds no pairs to translate: give --data {BUILT_IN_PAIRS}, or a folder "
            f"made by: cdcd data prepare --source PATH --target-source PATH --out FOLDER"
        )
    dataset = PreparedPairs(data.source)
    _check_tokenizer(dataset, data, tokenizer)
    train, valid = (prepared_pairs(dataset, data, split) for split in (data.split, "valid"))
    return Corpus(dataset.tokenizer, train, valid)


def prepared_pairs(dataset: PreparedPairs, data: DataConfig, split: str) -> PairDataset:
    """The pairs of a part of a prepared data set that fit the model."""
    return dataset.sequences(
        split, source_length=data.source_length, target_length=data.length, reverse=data.reverse
    )


def _built_in_pairs(config: RunConfig, tokenizer: Tokenizer) -> Corpus:
    data = config.data
    num_valid = max(1, round(data.valid_share * data.num_documents))
    counts = {False: data.num_documents - num_valid, True: num_valid}
    train, valid = (
        pairs_in_memory(
            built_in_pairs(data, count, seed=config.training.seed, held_out=held_out),
            tokenizer,
            source_length=data.source_length,
            target_length=data.length,
        )
        for held_out, count in counts.items()
    )
    return Corpus(tokenizer, train, valid)


def built_in_pairs(
    data: DataConfig, count: int, *, seed: int, held_out: bool
) -> list[tuple[str, str]]:
    """Pairs of the built-in task in the direction of the run, of meanings held out or others."""
    if data.reverse:
        raise ValueError(
            f"data.reverse is for prepared data sets; {BUILT_IN_PAIRS} have --data.languages de-en"
        )
    if data.languages == "en-de":
        return numerals.sample_pairs(count, seed=seed, held_out=held_out)
    if data.languages != "de-en":
        raise ValueError(
            f"data.languages is {data.languages}; {BUILT_IN_PAIRS} are written in en-de or de-en"
        )
    drawn = numerals.sample_pairs(count, seed=seed, direction="de-en", held_out=held_out)
    return [(german, english) for english, german in drawn]


def _prepared(data: DataConfig, tokenizer: Tokenizer | None) -> Corpus:
    dataset = TokenDataset(Path(data.source))
    _check_tokenizer(dataset, data, tokenizer)
    train, valid = (prepared_sequences(dataset, data, split) for split in (data.split, "valid"))
    return Corpus(dataset.tokenizer, train, valid)


def _check_tokenizer(
    dataset: TokenDataset | PreparedPairs, data: DataConfig, tokenizer: Tokenizer | None
) -> None:
    if tokenizer is not None and tokenizer_hash(tokenizer) != dataset.tokenizer_hash:
        raise ValueError(
            f"the data set {data.source} has another tokenizer (hash {dataset.tokenizer_hash[:12]}) "
            f"than the run ({tokenizer_hash(tokenizer)[:12]}); prepare it again with --tokenizer RUN"
        )


def prepared_sequences(dataset: TokenDataset, data: DataConfig, split: str) -> Sequences:
    """Sequences of a part of a prepared data set, in the run's layout."""
    if data.layout == "documents":
        return dataset.one_each(split, data.length)
    return dataset.stream(split, data.length)


def start(
    config: RunConfig,
    out: Path,
    *,
    init_from: Path | None = None,
    console: Console | None = None,
    world: World = ALONE,
) -> Trainer:
    """A new run in `out`; from the weights, warp and tokenizer of another run where one is given."""
    check_shares(config.training.batch_size, config.training.accumulate, world)
    # A device that is not there is refused before anything is created.
    world.device(config.training.device)
    made: list[Corpus] = []
    world.on_main(lambda: made.append(_create(config, out, init_from)))
    run = RunDirectory(out)
    corpus = made[0] if made else load_corpus(config, run.tokenizer)
    _tell_dropped(corpus, world, console)
    return Trainer(run, corpus.train, corpus.valid, console=console, world=world)


def _tell_dropped(corpus: Corpus, world: World, console: Console | None) -> None:
    """Say how many pairs are too long for the model."""
    for name, part in (("train", corpus.train), ("valid", corpus.valid)):
        if isinstance(part, PairDataset) and part.num_dropped and world.is_main:
            (console or Console()).print(
                f"{name}: {part.num_dropped:,} of {len(part) + part.num_dropped:,} pairs left out: "
                f"longer than {part.source_length} + {part.target_length} tokens"
            )


def _create(config: RunConfig, out: Path, init_from: Path | None) -> Corpus:
    """Make the directory of a new run; its text."""
    refuse_existing(out)
    inherited = RunDirectory(init_from).tokenizer if init_from is not None else None
    corpus = load_corpus(config, inherited)
    config = _located(config)
    first = initial_checkpoint(config, corpus.tokenizer.vocab_size)
    if init_from is not None:
        first = _inherit(first, init_from)
    RunDirectory.create(out, config, corpus.tokenizer, first)
    return corpus


def _located(config: RunConfig) -> RunConfig:
    """The corpus by its full path, so that the run can be resumed from any folder."""
    if config.data.source in (*BUILT_IN, BUILT_IN_PAIRS):
        return config
    source = str(Path(config.data.source).expanduser().resolve())
    return replace(config, data=replace(config.data, source=source))


def inherited_config(config: RunConfig, init_from: Path) -> RunConfig:
    """The model of another run with the data and training of this one."""
    other = RunDirectory(init_from).config
    kept = {name: getattr(other.data, name) for name in ("length", "source_length", "languages")}
    data = replace(config.data, **kept)
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
    _tell_dropped(corpus, world, console)
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
FREE = ("training", "sampling", "decoding", "beam")
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
    """The settings in which a configuration, made for a new run, differs from that of a run."""
    present = flatten(run.config)
    return {n: v for n, v in flatten(_located(config)).items() if v != present[n]}


def is_finished(run: RunDirectory, changes: Mapping[str, Any]) -> bool:
    """Whether a run with these changes has no step left."""
    return run.existing_step() >= changed_config(run, changes).training.steps
