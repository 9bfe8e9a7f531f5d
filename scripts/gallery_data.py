"""Writes the documents of a category of the gallery, one a line, from its published corpus.

    python scripts/gallery_data.py molecules DATA OUT

DATA holds the folders qm9_smiles, chess_uci, jsb_chorales, chinese_quatrains and sgd_dialogues. The published
training, validation and test sets become OUT/train.txt, valid.txt and test.txt. Where no test set is
published, the validation set becomes test.txt, and a share of the training set is to be held out.
"""

import argparse
import lzma
from pathlib import Path

from cdcd.languages.gallery import CATEGORIES

FOLDERS = {
    "molecules": ("qm9_smiles", "txt"),
    "chess": ("chess_uci", "txt"),
    "chorales": ("jsb_chorales", "txt"),
    "quatrains": ("chinese_quatrains", "txt"),
    "dialogues": ("sgd_dialogues", "jsonl"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("category", choices=FOLDERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    folder, suffix = FOLDERS[options.category]
    options.out.mkdir(parents=True, exist_ok=True)
    has_test = (options.data / folder / f"test.{suffix}.xz").exists()
    names = {"train": "train", "valid": "valid", "test": "test"}
    for published, ours in (names if has_test else {"train": "train", "valid": "test"}).items():
        source = options.data / folder / f"{published}.{suffix}.xz"
        count = convert(options.category, source, options.out / f"{ours}.txt")
        print(f"{options.out / ours}.txt: {count:,} documents")


def convert(category: str, source: Path, target: Path) -> int:
    """Writes the documents of a compressed file, and returns their number."""
    with lzma.open(source, "rt", encoding="utf-8") as lines, target.open("w") as file:
        count = 0
        for document in CATEGORIES[category].read(lines):
            file.write(f"{document}\n")
            count += 1
    return count


if __name__ == "__main__":
    main()
