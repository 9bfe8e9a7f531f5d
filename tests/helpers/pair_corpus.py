"""A small corpus of pairs in two files, prepared into data sets."""

import lzma
from pathlib import Path
from typing import Any

from rich.console import Console
from tiny import silent

from cdcd.data.pairs import PreparedPairs
from cdcd.data.prepare import PrepareConfig, prepare

ENGLISH = [f"house {n} " + "la " * (n * 7919 % 13) for n in range(400)]
GERMAN = [f"Haus {n} " + "so " * (n * 104729 % 11) for n in range(400)]


def write_corpus(folder: Path) -> Path:
    """Writes both sides of the corpus into files of a folder."""
    (folder / "a.en").write_text("\n".join(ENGLISH))
    (folder / "a.de.xz").write_bytes(lzma.compress("\n".join(GERMAN).encode()))
    return folder


def config_for(corpus: Path, **changes: Any) -> PrepareConfig:
    """Returns settings that prepare a corpus fast."""
    defaults = {
        "source": str(corpus / "a.en"),
        "target_source": str(corpus / "a.de.xz"),
        "tokenizer": "bytes",
        "workers": 1,
        "valid_share": 0.1,
        "test_share": 0.1,
    }
    return PrepareConfig(**(defaults | changes))


def prepared(
    corpus: Path, name: str = "set", console: Console | None = None, **changes: Any
) -> PreparedPairs:
    """Prepares a corpus beside its files, or goes on with a preparation."""
    prepare(config_for(corpus, **changes), corpus / name, console=console or silent())
    return PreparedPairs(corpus / name)


def texts_of(pairs: PreparedPairs, split: str) -> list[tuple[str, str]]:
    """Returns the pairs of a split as texts."""
    return [pairs.texts(split, n) for n in range(pairs.num_pairs(split))]
