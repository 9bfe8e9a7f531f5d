"""The files of a prepared data set, as they are written and checked.

DIR/dataset.json            describes the data set; written last, so that it means a whole data set
DIR/tokenizer/              the tokenizer of all of its tokens
DIR/train-00000.tokens      documents one after another, each ended by EOS: raw uint16 or uint32
DIR/train-00000.ends        the end of each document, in tokens from the shard's start: uint64
DIR/.progress.json          while it is being prepared: what a killed process goes on from

A data set of pairs has two of them, with as many documents in the same order:

DIR/dataset.json            the outcomes of the pairs, and the SHA-256 of the descriptions of both sides
DIR/tokenizer/              the tokenizer of both sides
DIR/source/, DIR/target/    each a data set as above
"""

from dataclasses import dataclass

FORMAT = 1
DESCRIPTION = "dataset.json"
PROGRESS = ".progress.json"
SPLITS = ("train", "valid", "test", "judge")
SIDES = ("source", "target")


@dataclass(frozen=True)
class SplitSummary:
    """The contents of a split, in numbers."""

    documents: int = 0
    tokens: int = 0
    """Tokens, the ends of documents included."""
    bytes: int = 0
    """Bytes of text."""
    unknown: int = 0
    """Unknown tokens."""
    undecodable: int = 0
    """Bytes that are not UTF-8."""
