"""A small corpus of texts, prepared into data sets."""

from pathlib import Path
from typing import Any

from tiny import silent

from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.sequences import TokenDataset

TEXTS = [f"document {n} " + "la " * (n * 7919 % 13) for n in range(600)]


def write_corpus(folder: Path) -> Path:
    """Writes the corpus into a file, a document a line."""
    file = folder / "corpus.txt"
    file.write_text("\n".join(TEXTS))
    return file


def config_for(corpus: Path, **changes: Any) -> PrepareConfig:
    """Returns settings that prepare a corpus fast."""
    defaults = {"tokenizer": "bytes", "workers": 1, "valid_share": 0.1, "test_share": 0.1}
    return PrepareConfig(**({"source": str(corpus)} | defaults | changes))


def prepared(corpus: Path, out: Path, **changes: Any) -> TokenDataset:
    """Prepares a corpus, or goes on with a preparation."""
    prepare(config_for(corpus, **changes), out, console=silent())
    return TokenDataset(out)


def texts_of(dataset: TokenDataset, split: str) -> list[str]:
    """Returns the documents of a split as texts."""
    return [
        dataset.tokenizer.decode(document.tolist(), errors="surrogateescape")
        for document in dataset.documents(split)
    ]
