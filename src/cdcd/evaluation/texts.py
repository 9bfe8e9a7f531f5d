"""Texts under evaluation: real or generated sequences, with the positions that are measured.

The paper's protocols (§6.2, §6.5): for AR-NLL and entropy a prefix of half the sequence is given; for
MAUVE (Table 3) a prefix of random length from nothing to half. Nothing is given for the likelihood of
whole sequences.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.data.sequences import Sequences
from cdcd.data.vocabulary import EOS
from cdcd.inference.text_model import TextModel
from cdcd.seeding import generator_for

Protocol = Literal["half", "random", "none"]
ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Texts:
    """Whole sequences, True where they were generated (in real text: where a model would generate)."""

    tokens: Int[Tensor, "samples seq"]
    is_generated: Bool[Tensor, "samples seq"]

    def __len__(self) -> int:
        return len(self.tokens)

    def with_tokens(self, tokens: Int[Tensor, "samples seq"]) -> "Texts":
        """Returns other tokens at the same positions."""
        return replace(self, tokens=tokens)

    def first(self, count: int) -> "Texts":
        return Texts(self.tokens[:count], self.is_generated[:count])

    def split(self, size: int) -> "list[Texts]":
        """Returns the samples in batches of a size."""
        return list(map(Texts, self.tokens.split(size), self.is_generated.split(size)))

    def where(self, chosen: Bool[Tensor, " samples"]) -> "Texts":
        return Texts(self.tokens[chosen], self.is_generated[chosen])

    def ends(self) -> Int[Tensor, " samples"]:
        """Counts the tokens of each sample up to the last that counts.

        If none counts, those up to the given end of the document.
        """
        length = self.tokens.shape[1]
        positions = torch.arange(1, length + 1)
        is_end = self.tokens == EOS
        given = torch.where(is_end.any(1), is_end.long().argmax(1) + 1, length)
        return torch.where(self.is_generated.any(1), (self.is_generated * positions).amax(1), given)

    def counted(self, layout: str) -> "Texts":
        """Lets all of a stream count, and of the layout `documents` each document to its end."""
        return self.until_end() if layout == "documents" else self

    def until_end(self) -> "Texts":
        """Lets nothing count after the end of the document: the layout of one document a sequence."""
        is_end = (self.tokens == EOS) & self.is_generated
        ended_before = is_end.cumsum(1) - is_end.long() > 0
        given = (self.tokens == EOS) & ~self.is_generated
        counted = self.is_generated & ~ended_before & ~given.any(1, keepdim=True)
        return replace(self, is_generated=counted)


def held_out_texts(
    sequences: Sequences, num_samples: int, protocol: Protocol, *, seed: int = 0, skip: int = 0
) -> Texts:
    """Draws held-out sequences, each once, with the part that is to be generated.

    `skip` leaves out as many first, so that another draw is other text.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}, it must be at least 1")
    if skip + num_samples > len(sequences):
        raise ValueError(
            f"{num_samples} samples were asked for, but the held-out text has {len(sequences)} "
            f"sequences of {sequences.length} tokens; lower --num-samples or hold out more text"
        )
    order = torch.randperm(len(sequences), generator=generator_for(seed, "held-out texts"))
    tokens = sequences.rows(order[skip : skip + num_samples])
    return Texts(tokens, _generated(tokens, protocol, seed))


def _generated(tokens: Tensor, protocol: Protocol, seed: int) -> Bool[Tensor, "samples seq"]:
    samples, length = tokens.shape
    given = torch.full((samples, 1), length // 2)
    if protocol == "random":
        generator = generator_for(seed, "prompt lengths")
        given = torch.randint(length // 2 + 1, (samples, 1), generator=generator)
    if protocol == "none":
        given = torch.zeros_like(given)
    return (torch.arange(length) >= given).expand(samples, length)


def sample_texts(
    model: TextModel, prompts: Texts, changes: Mapping[str, Any], seed: int, batch_size: int
) -> Texts:
    """Generates what is to be generated; sample i depends on (seed, i) alone."""
    settings, parts = model.settings(changes), []
    for start in range(0, len(prompts), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(prompts)))
        tokens = model.fill(
            prompts.tokens[rows].to(model.device),
            prompts.is_generated[rows].to(model.device),
            [(seed, int(row)) for row in rows],
            settings,
        )
        parts.append(tokens.cpu())
    return prompts.with_tokens(torch.cat(parts))


def flat_arrays(sequences: Sequences) -> Iterator[np.ndarray]:
    """Yields all tokens of a text in long arrays, each beginning with the last sequence of the one before."""
    for start in range(0, len(sequences), ROWS_AT_ONCE):
        rows = torch.arange(max(start - 1, 0), min(start + ROWS_AT_ONCE, len(sequences)))
        yield sequences.rows(rows).flatten().numpy()
