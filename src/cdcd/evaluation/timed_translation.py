"""Translating a test set, with the speed: sentences that are too long in pieces, and a first batch untimed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcd.data.sentences import pack_sentences
from cdcd.inference.translator import Done, Samples, Translator


@dataclass(frozen=True)
class Drawn:
    """Translations of some texts."""

    samples: Samples
    per_second: float | None
    """Translations finished in a second."""
    is_warmed_up: bool
    num_too_long: int
    num_unread: int
    """Texts of these with a sentence that is too long by itself."""


def draw_timed(
    translator: Translator,
    texts: Sequence[str],
    *,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 64,
    settings: Mapping[str, Any] | None = None,
    done: Done | None = None,
) -> Drawn:
    """Translates texts and measures the speed.

    The time leaves out the first batch, and a last one that is not full, if full ones are left. A text
    that is too long is translated sentence by sentence; a sentence that is too long, by nothing.
    """
    limit = translator.config.data.source_length

    def fits(text: str) -> bool:
        return translator.num_tokens(text) <= limit

    pieces = [[text] if fits(text) else pack_sentences(text, fits) or [""] for text in texts]
    flat = [piece if fits(piece) else "" for each in pieces for piece in each]
    untimed, timed = _warm_up([i for i, t in enumerate(flat) if t.strip()], num_samples, batch_size)
    translations = [[""] * num_samples for _ in flat]
    confidences = [[0.0] * num_samples for _ in flat]
    seconds = 0.0
    for chosen, before in ((untimed, 0), (timed, len(untimed))):
        if not chosen:
            continue
        kept = set(chosen)
        started = time.perf_counter()
        drawn = translator.scored_samples(
            # Texts keep their indices, and with them their noise; empty ones take no time.
            [text if i in kept else "" for i, text in enumerate(flat)],
            num_samples=num_samples,
            seed=seed,
            batch_size=batch_size,
            callback=_scaled(done, before, len(chosen), len(untimed) + len(timed)),
            **(settings or {}),
        )
        seconds = time.perf_counter() - started
        for i in chosen:
            translations[i], confidences[i] = drawn.texts[i], drawn.confidence[i]
    return Drawn(
        Samples(
            _by_text(pieces, translations, lambda texts: " ".join(filter(None, texts))),
            _by_text(pieces, confidences, lambda values: sum(values) / len(values)),
        ),
        per_second=len(timed) * num_samples / seconds if timed else None,
        is_warmed_up=bool(untimed),
        num_too_long=sum(not fits(text) for text in texts),
        num_unread=sum(not all(map(fits, each)) for each in pieces),
    )


def _warm_up(indices: list[int], num_samples: int, batch_size: int) -> tuple[list[int], list[int]]:
    """Splits indices of texts into those translated before the time is taken, and full batches."""
    at_once = max(1, batch_size // num_samples)
    full = len(indices) // at_once * at_once
    if full <= at_once:
        return [], indices
    return indices[:at_once] + indices[full:], indices[at_once:full]


def _scaled(done: Done | None, before: int, count: int, total: int) -> Done | None:
    if done is None:
        return None
    return lambda share: done((before + share * count) / max(total, 1))


def _by_text(
    pieces: Sequence[Sequence[str]],
    values: Sequence[Sequence[Any]],
    join: Callable[[tuple[Any, ...]], Any],
) -> list[list[Any]]:
    """Joins the values of each text's pieces, sample by sample."""
    rest = iter(values)
    return [
        [join(sample) for sample in zip(*[next(rest) for _ in each], strict=True)]
        for each in pieces
    ]
