"""Documents to tokens in several processes, in order: the result does not depend on their number.

Nothing here imports torch, so that a process is ready in a moment.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int64, UInt

from cdcd.data.tokenizers import UNDECODABLE, Tokenizer, is_utf8, load_tokenizer, token_dtype
from cdcd.data.vocabulary import EOS, UNKNOWN

T = TypeVar("T")
CHUNK = 1 << 20
MOST_DOCUMENTS = 1 << 15


@dataclass(frozen=True)
class Encoded:
    """The tokens of documents one after another, each ended by EOS, and counts for each document."""

    tokens: UInt[np.ndarray, " tokens"]
    lengths: Int64[np.ndarray, " documents"]
    """Tokens, the EOS included; 0 for an empty document, which is left out."""
    bytes: Int64[np.ndarray, " documents"]
    unknown: Int64[np.ndarray, " documents"]
    undecodable: Int64[np.ndarray, " documents"]

    def sides(self, count: int) -> "list[Encoded]":
        """The documents of each side, where they lie one side behind the other."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        size = len(self.lengths) // count
        return [
            Encoded(
                self.tokens[ends[first] : ends[first + size]],
                *(
                    each[first : first + size]
                    for each in (self.lengths, self.bytes, self.unknown, self.undecodable)
                ),
            )
            for first in range(0, count * size, size)
        ]


def chunks(documents: Iterable[T], characters: Callable[[T], int] = len) -> Iterator[list[T]]:  # pyright: ignore[reportArgumentType]
    """Documents in lists of about `CHUNK` characters."""
    held: list[T] = []
    size = 0
    for text in documents:
        held.append(text)
        size += characters(text)
        if size >= CHUNK or len(held) >= MOST_DOCUMENTS:
            yield held
            held, size = [], 0
    if held:
        yield held


def one_side_behind_the_other(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """All sources, then all targets; of single texts, the texts."""
    return [text for side in zip(*rows, strict=True) for text in side]


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoded:
    """Tokenise documents; those of white space alone are left out."""
    dtype = token_dtype(tokenizer.vocab_size)
    end = np.array([EOS], dtype=dtype)
    arrays, lengths = [np.empty(0, dtype)], np.zeros(len(texts), np.int64)
    for place, text in enumerate(texts):
        if text and not text.isspace():
            arrays += [tokenizer.encode_array(text), end]
            lengths[place] = len(arrays[-2]) + 1
    tokens = np.concatenate(arrays)
    return Encoded(
        tokens,
        lengths,
        bytes=np.array([len(text.encode("utf-8", "surrogateescape")) for text in texts], np.int64),
        unknown=_count_in(tokens == UNKNOWN, lengths),
        undecodable=np.array([_num_undecodable(text) for text in texts], np.int64),
    )


def _count_in(
    found: np.ndarray, lengths: Int64[np.ndarray, " documents"]
) -> Int64[np.ndarray, " documents"]:
    """How often something is found in each document."""
    before = np.concatenate([[0], np.cumsum(found)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]


def _num_undecodable(text: str) -> int:
    return 0 if is_utf8(text) else len(UNDECODABLE.findall(text))


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encode_in_order(
    texts: Iterable[list[str]], tokenizer_folder: Path, workers: int
) -> Iterator[Encoded]:
    """Tokenise chunks of documents, several at a time, each in its turn."""
    if workers == 1:
        tokenizer = load_tokenizer(tokenizer_folder)
        yield from (encode_documents(tokenizer, chunk) for chunk in texts)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (tokenizer_folder,))
    try:
        yield from _in_turn(pool, texts, 2 * workers)
    except BrokenProcessPool:
        raise ValueError(
            f"one of {workers} processes died, perhaps for want of memory; run the same command again "
            f"with fewer workers to go on"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _in_turn(pool: ProcessPoolExecutor, texts: Iterable[list[str]], most: int) -> Iterator[Encoded]:
    """Never more than `most` chunks under way, so that memory stays bounded."""
    pending: deque[Future[Encoded]] = deque()
    for chunk in texts:
        pending.append(pool.submit(_encode_chunk, chunk))
        if len(pending) >= most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


_worker: dict[str, Tokenizer] = {}


def _start_worker(tokenizer_folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker["tokenizer"] = load_tokenizer(tokenizer_folder)


def _end_with_parent() -> None:
    """A killed parent cannot tell its workers to stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_chunk(chunk: list[str]) -> Encoded:
    return encode_documents(_worker["tokenizer"], chunk)
