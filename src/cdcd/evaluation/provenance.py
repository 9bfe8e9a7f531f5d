"""Which text is whose: what a run trained on, what is held out, and which runs may be compared."""

from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN, to_sequences
from cdcd.data.sequences import InMemory, Sequences, TokenDataset, is_dataset
from cdcd.data.tokenizers import Tokenizer, tokenizer_hash
from cdcd.evaluation.judge import HUGGING_FACE
from cdcd.evaluation.texts import full_documents
from cdcd.inference.text_model import TextModel
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.corpora import load_corpus, load_documents, prepared_sequences


def held_out_sequences(
    run: RunConfig,
    tokenizer: Tokenizer,
    *,
    split: str,
    whole_documents: bool,
    trained_on: Collection[str],
) -> Sequences:
    """The text that the runs, which trained on these splits, did not train on."""
    data = run.data
    if is_dataset(data.source):
        dataset = TokenDataset(Path(data.source))
        if dataset.tokenizer_hash != tokenizer_hash(tokenizer):
            raise ValueError(f"the data set {data.source} has another tokenizer than the run")
        if split == "auto":
            split = "test" if "test" in dataset.splits else "valid"
        if split in trained_on:
            raise ValueError(f"the split {split} is what a run trained on; choose another --split")
        if whole_documents:
            return dataset.full_documents(split, data.length)
        return prepared_sequences(dataset, data, split)
    if split not in ("auto", "valid"):
        raise ValueError(f"--split {split} needs a prepared data set; leave it out")
    documents = load_documents(run).valid
    if whole_documents:
        return full_documents(documents, tokenizer, data.length)
    return InMemory(to_sequences(documents, tokenizer, length=data.length, layout=data.layout))


def training_sequences(run: RunConfig, tokenizer: Tokenizer) -> Sequences:
    """The text that a run trained on."""
    return load_corpus(run, tokenizer).train


def training_text(run: RunConfig) -> tuple[Any, ...]:
    """What the text that a run trained on is a function of."""
    return (run.data, None if is_dataset(run.data.source) else run.training.seed)


def with_source(config: RunConfig, source: str | None) -> RunConfig:
    """The run's configuration with its text somewhere else."""
    if source is None:
        if not is_dataset(config.data.source) and config.data.source not in BUILT_IN:
            path = Path(config.data.source)
            if not path.exists():
                raise ValueError(f"the run's text {path} is not there; say where with --data PATH")
        return config
    return replace(config, data=replace(config.data, source=source))


def check_comparable(model: TextModel, reference: TextModel) -> None:
    if tokenizer_hash(model.tokenizer) != tokenizer_hash(reference.tokenizer):
        raise ValueError(
            "the runs have different tokenizers, so their tokens cannot be compared; train the "
            "baseline on the same prepared data set"
        )
    for name in ("length", "layout"):
        ours, other = (getattr(m.config.data, name) for m in (model, reference))
        if ours != other:
            raise ValueError(f"the runs differ in data.{name}: {other} and {ours}")
    check_same_split(model.config, reference.config)


def check_same_split(run: RunConfig, reference: RunConfig) -> None:
    """The held-out part of a text that is not prepared depends on the run."""
    source = reference.data.source
    if is_dataset(source) or source in BUILT_IN:
        return
    if len({(each.training.seed, each.data.valid_share) for each in (run, reference)}) > 1:
        raise ValueError(
            "the runs differ in training.seed or data.valid_share, so each trained on what another "
            "holds out; train them on one prepared data set: cdcd data prepare"
        )


def about_judge(name: str, run: RunConfig, data: str | None) -> dict[str, Any]:
    if name.startswith(HUGGING_FACE):
        return {"name": name, "about": "a Hugging Face model", "disjoint": False}
    directory = RunDirectory(Path(name))
    config = directory.config
    same_text = config.data.source == run.data.source or data is not None
    disjoint = same_text and config.data.split != run.data.split
    if run.data.source in BUILT_IN:
        disjoint = config.training.seed != run.training.seed
    where = f"{Path(config.data.source).name} ({config.data.split})"
    return {
        "name": name,
        "about": f"{config.network.num_blocks} × {config.network.width}, trained on {where}",
        "disjoint": disjoint,
        "step": directory.steps()[-1],
        "config": described(config),
    }


def described(config: RunConfig) -> dict[str, Any]:
    """A run's configuration; of its text only the name, since a path is of one machine."""
    source = Path(config.data.source).name
    return asdict(replace(config, data=replace(config.data, source=source)))
