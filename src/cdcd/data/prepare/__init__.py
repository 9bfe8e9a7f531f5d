"""Preparation of a corpus: documents, or pairs to translate, to memory-mapped shards of tokens."""

from cdcd.data.prepare.config import PrepareConfig
from cdcd.data.prepare.preparation import prepare

__all__ = ["PrepareConfig", "prepare"]
