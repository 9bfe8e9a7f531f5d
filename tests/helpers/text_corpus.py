"""A small corpus of texts, prepared into data sets."""

from pathlib import Path
from typing import Any

import pytest
from tiny import silent

from cdcd.data.prepare import PrepareConfig, encoding, prepare
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


def interrupted(corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts a preparation at its end, after it has saved its progress several times."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 300)
    monkeypatch.setattr("cdcd.data.prepare.preparation.SAVE_EVERY", 1000)
    with monkeypatch.context() as context:
        context.setattr("cdcd.data.prepare.preparation._Preparation._finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepared(corpus, out)


def texts_of(dataset: TokenDataset, split: str) -> list[str]:
    """Returns the documents of a split as texts."""
    return [
        dataset.tokenizer.decode(document.tolist(), errors="surrogateescape")
        for document in dataset.documents(split)
    ]
