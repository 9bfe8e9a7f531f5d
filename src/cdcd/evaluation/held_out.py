"""Held-out text, and the check that no model of an evaluation has trained on it.

Documents are compared by their text (`shared_documents`), never by paths or the names of splits.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN
from cdcd.data.remote import is_remote
from cdcd.data.sequences import Sequences, TokenDataset, TokenDocuments, is_dataset
from cdcd.data.tokenizers import Tokenizer, tokenizer_hash
from cdcd.evaluation.judges import UNKNOWN, about_external
from cdcd.evaluation.shared_documents import Fingerprints, count_shared
from cdcd.evaluation.systems import System, moved
from cdcd.files import expanded
from cdcd.inference.names import open_named
from cdcd.training.corpora import load_corpus, load_documents, split_seed

MOST_KNOWN = 0.05
"""Share of the held-out documents that a model may have trained on, since corpora repeat some documents
(of Multi30k's captions 0.5%)."""


def held_out_sequences(
    run: RunConfig, tokenizer: Tokenizer, *, split: str, whole_documents: bool
) -> Sequences:
    """Returns the sequences of a split of a prepared data set, or what a run on a text file holds out."""
    data = run.data
    if is_dataset(data.source):
        dataset = TokenDataset(data.source)
        if dataset.tokenizer_hash != tokenizer_hash(tokenizer):
            raise ValueError(f"the data set {data.source} has another tokenizer than the run")
        documents = dataset.documents(_chosen_split(dataset, split))
    elif split not in ("auto", "valid"):
        raise ValueError(f"--split {split} needs a prepared data set; leave it out")
    else:
        valid = load_documents(run).valid
        documents = TokenDocuments.of_texts(valid, tokenizer, "the held-out part of the corpus")
    if whole_documents:
        return documents.full(data.length)
    return documents.sequences(data.length, data.layout)


def _chosen_split(dataset: TokenDataset, split: str) -> str:
    return split if split != "auto" else "test" if "test" in dataset.splits else "valid"


def training_sequences(run: RunConfig, tokenizer: Tokenizer) -> Sequences:
    """Returns the sequences that a run trained on."""
    return load_corpus(run, tokenizer).train


def training_text(run: RunConfig) -> tuple[Any, ...]:
    """Returns what determines the text that a run trained on: equal for equal text."""
    return (run.data, None if is_dataset(run.data.source) else split_seed(run))


def check_comparable(system: System, reference: System) -> None:
    """Refuses a system whose text is not there, or whose sequences cannot be compared with another's."""
    if not is_there(system.config):
        raise ValueError(
            f"the run's text {system.config.data.source} is not there; say where with --data PATH"
        )
    if tokenizer_hash(system.model.tokenizer) != tokenizer_hash(reference.model.tokenizer):
        raise ValueError(
            "the runs have different tokenizers, so their tokens cannot be compared; train the "
            "baseline on the same prepared data set"
        )
    for name in ("length", "layout"):
        ours, other = (getattr(each.config.data, name) for each in (system, reference))
        if ours != other:
            raise ValueError(f"the runs differ in data.{name}: {other} and {ours}")


def is_there(run: RunConfig, *, may_fetch: bool = True) -> bool:
    """Returns whether the text of a run is where its configuration says."""
    if is_remote(run.data.source):
        return may_fetch
    return run.data.source in BUILT_IN or expanded(run.data.source).exists()


# Documents that models have trained on


def documents_of(run: RunConfig, split: str | None = None) -> Iterator[str]:
    """Yields the documents that a run trained on, or those that it holds out in a split, as text."""
    if is_dataset(run.data.source):
        dataset = TokenDataset(run.data.source)
        name = run.data.split if split is None else _chosen_split(dataset, split)
        for document in dataset.documents(name):
            yield dataset.tokenizer.decode(document.tolist())
    else:
        documents = load_documents(run)
        yield from documents.train if split is None else documents.valid


@dataclass(frozen=True)
class Shared:
    """Documents of the systems that a run has trained on."""

    training: int
    """Documents that the systems trained on too."""
    held_out: int
    """Documents that are held out."""


class KnownDocuments:
    """Counts the systems' documents in the training data of runs, once for each body of text."""

    def __init__(self, held_out: Iterable[str], systems: Iterable[RunConfig]) -> None:
        self.held_out = Fingerprints(held_out)
        distinct = {training_text(run): run for run in systems}
        self.training = Fingerprints(chain.from_iterable(map(documents_of, distinct.values())))
        self._counted: dict[tuple[Any, ...], Shared] = {}

    def shared_with(self, name: str, run: RunConfig) -> Shared:
        """Counts shared documents, and refuses a run that has trained on the held-out ones."""
        key = training_text(run)
        if key not in self._counted:
            counts = count_shared((self.training, self.held_out), documents_of(run))
            self._counted[key] = Shared(*counts)
        shared, total = self._counted[key], self.held_out.num_documents
        if shared.held_out > MOST_KNOWN * total:
            raise ValueError(
                f"{name} was trained on {shared.held_out:,} of the {total:,} held-out documents; choose "
                f"another --split, or train all runs and the judge on one prepared data set: cdcd data "
                f"prepare"
            )
        return shared


def about_judge(
    name: str, run: RunConfig, data: str | None, known: KnownDocuments
) -> dict[str, Any]:
    """Returns what a report says of the judge: its training, and which documents it shares with the systems.

    `run`: the first system's configuration, before `data` says where its text has moved. A judge with
    the same text moves with it; one whose text is not there cannot be compared.
    """
    if external := about_external(name):
        return external
    directory = open_named(name)
    config = directory.config
    is_of_same_text = config.data.source == run.data.source
    # An address that only a stranger's run names is not opened.
    may_fetch = directory.is_where_it_was_made
    has_text = is_there(config, may_fetch=may_fetch)
    trained = config if has_text or not is_of_same_text else moved(config, data)
    has_text = is_there(trained, may_fetch=may_fetch or trained.data.source == data)
    shared = known.shared_with(f"the judge {name}", trained) if has_text else None
    where = f"{Path(config.data.source).name} ({config.data.split})"
    return {
        "name": name,
        "about": f"{config.network.num_blocks} × {config.network.width}, trained on {where}",
        "disjoint": shared is not None and shared.training == shared.held_out == 0,
        "shared": shared and asdict(shared),
        "step": directory.steps()[-1],
        "config": described(config),
    }


def judge_remarks(judge: Mapping[str, Any]) -> Iterator[str]:
    """Yields a warning about a judge that may know the systems' text."""
    if judge["disjoint"] == UNKNOWN:
        yield "It is not known whether the judge has seen the systems' text: it may reward memorising."
        return
    if judge["disjoint"]:
        return
    known = "may know the generator's training text"
    if shared := judge["shared"]:
        known = (
            f"trained on {shared['training']:,} of the systems' training documents and "
            f"{shared['held_out']:,} of the held-out ones"
        )
    yield f"The judge {known}: its scores then reward memorising."


def described(config: RunConfig) -> dict[str, Any]:
    """Returns a run's configuration with only the name of its text, since a path is of one machine."""
    return asdict(moved(config, Path(config.data.source).name))
