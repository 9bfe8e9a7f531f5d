"""Translations for people to read: files of all of them, and examples side by side."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cdcd.evaluation.finished_rows import FinishedRow
from cdcd.metrics.bleu import Corpus

NUM_EXAMPLES = 20


def write_hypotheses(
    rows: Sequence[FinishedRow], corpus: Corpus, folder: Path
) -> dict[str, Sequence[str]]:
    """One file for each row and its decoding, sentence n in line n; returns the texts by label."""
    texts: dict[str, Sequence[str]] = {"source": corpus.sources, "reference": corpus.references}
    for each in rows:
        texts[each.row.label] = each.first
        if each.decoded is not None:
            texts[each.row.decoded_label] = each.decoded
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(_file_names(texts), texts.values(), strict=True):
        content = "".join(f"{_one_line(line)}\n" for line in lines)
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    return texts


def _file_names(labels: Iterable[str]) -> Iterator[str]:
    """Labels as names of files, each another."""
    taken: Counter[str] = Counter()
    for label in labels:
        name = re.sub(r"[^\w.=-]+", "-", label).strip("-.")
        taken[name] += 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}"


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def write_examples(texts: Mapping[str, Sequence[str]], path: Path, *, seed: int = 0) -> None:
    """Some sentences under all labels, drawn by a seed and not chosen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_example_lines(texts, seed)) + "\n", encoding="utf-8")


def _example_lines(texts: Mapping[str, Sequence[str]], seed: int) -> Iterator[str]:
    count = len(next(iter(texts.values())))
    drawn = sorted(random.Random(seed).sample(range(count), min(NUM_EXAMPLES, count)))
    yield f"# {len(drawn)} of {count} sentences, drawn by seed {seed}"
    for number in drawn:
        yield f"\n## Sentence {number + 1}\n"
        for label, lines in texts.items():
            yield f"- {label}: {_one_line(lines[number]) or '(nothing)'}"
