"""Documents to tokens in several processes, in order: the result does not depend on their number.

Nothing here imports torch, so that a process is ready in a moment.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt

from cdcd.data.prepare.reading import Row
from cdcd.data.tokenizers import Tokenizer, load_tokenizer, token_dtype
from cdcd.data.vocabulary import EOS, UNKNOWN

CHUNK_CHARACTERS = 1 << 20
CHUNK_DOCUMENTS = 1 << 15


@dataclass(frozen=True)
class Encoded:
    """The tokens of documents one after another, each ended by EOS, and counts for each document."""

    tokens: UInt[np.ndarray, " tokens"]
    counts: Int64[np.ndarray, "documents 4"]
    """Tokens (the EOS included; 0 for an empty document), bytes, unknown tokens, undecodable bytes."""

    @property
    def lengths(self) -> Int64[np.ndarray, " documents"]:
        """The tokens of each document."""
        return self.counts[:, 0]


def chunked(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields rows in lists of about `CHUNK_CHARACTERS`."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row))
        if size >= CHUNK_CHARACTERS or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoded:
    """Returns the tokens of documents; those of white space alone have none."""
    dtype = token_dtype(tokenizer.vocab_size)
    arrays = [np.empty(0, dtype)]
    counts = []
    for text in texts:
        is_empty = not text or text.isspace()
        tokens = [] if is_empty else [*tokenizer.encode(text), EOS]
        arrays.append(np.array(tokens, dtype))
        num_bytes = len(text.encode("utf-8", "surrogateescape"))
        num_undecodable = num_bytes - len(text.encode("utf-8", "ignore"))
        counts.append((len(tokens), num_bytes, tokens.count(UNKNOWN), num_undecodable))
    return Encoded(np.concatenate(arrays), np.array(counts, np.int64).reshape(-1, 4))


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encode_in_order(
    chunks: Iterable[list[Row]], tokenizer_folder: Path, workers: int
) -> Iterator[list[Encoded]]:
    """Yields the tokens of each chunk, side by side, in their order; several are encoded at a time."""
    if workers == 1:
        tokenizer = load_tokenizer(tokenizer_folder)
        yield from (_encode_sides(tokenizer, chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (tokenizer_folder,))
    try:
        yield from _results_in_order(pool, chunks, 2 * workers)
    except BrokenProcessPool:
        raise ValueError(
            f"one of {workers} processes died, perhaps for want of memory; run the same command again "
            f"with fewer workers to go on. A script must call this below `if __name__ == "
            f"'__main__':`, or with one worker"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _results_in_order(
    pool: ProcessPoolExecutor, chunks: Iterable[list[Row]], most: int
) -> Iterator[list[Encoded]]:
    """Yields the results with never more than `most` chunks in the pool, which bounds the memory."""
    pending: deque[Future[list[Encoded]]] = deque()
    for chunk in chunks:
        pending.append(pool.submit(_encode_chunk, chunk))
        if len(pending) >= most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _encode_sides(tokenizer: Tokenizer, rows: list[Row]) -> list[Encoded]:
    return [encode_documents(tokenizer, texts) for texts in zip(*rows, strict=True)]


_worker: dict[str, Tokenizer] = {}


def _start_worker(tokenizer_folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker["tokenizer"] = load_tokenizer(tokenizer_folder)


def _end_with_parent() -> None:
    """Ends this process with its parent, which cannot tell its workers to stop when it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_chunk(rows: list[Row]) -> list[Encoded]:
    return _encode_sides(_worker["tokenizer"], rows)
