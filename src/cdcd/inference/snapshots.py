"""Snapshots of a sample while it is generated: the text so far, how certain each token is, and its rivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import PAD
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.changes import ResolvedChange
from cdcd.inference.decoding import DecodingStep
from cdcd.inference.text_model import Canvas
from cdcd.inference.unmasking import UnmaskingStep

AnyStep = StepInfo | UnmaskingStep | DecodingStep
NUM_BEST = 5
REPLACED = "\ufffd"
"""The character that stands for bytes that are none."""


@dataclass(frozen=True)
class Snapshot:
    """One sample at one step."""

    index: int
    num_steps: int
    tokens: list[int]
    """The most probable token at each position; those that are given or drawn already."""
    confidence: list[float]
    """The probability of each; 1 where a token is given."""
    is_given: list[bool]
    best: Mapping[int, list[tuple[int, float]]]
    """The most probable tokens with their probabilities, for positions that were predicted at this step."""
    entropy: float
    """The mean entropy of the predictions, in nats."""
    t: float = 0.0
    """The noise level; of masked diffusion, the share of the tokens that are masked."""


class Snapshots:
    """Takes snapshots of the first sample of a batch, whose canvas may change from a step on."""

    def __init__(self, canvas: Canvas, changes: Sequence[ResolvedChange] = ()) -> None:
        self.canvas, self.changes = canvas, changes
        self.filled: dict[int, float] = {}
        """Positions that an autoregressive model has filled, with their probabilities."""

    def take(self, info: AnyStep) -> Snapshot:
        """Returns the snapshot of a step, as a callback gets it."""
        if isinstance(info, DecodingStep):
            return self._of_decoding(info)
        canvas = self.canvas.after([each for each in self.changes if each.step <= info.index])
        probs = info.probabilities[0]
        is_masked = info.is_masked[0].tolist() if isinstance(info, UnmaskingStep) else None
        is_open = canvas.is_noisy if is_masked is None else is_masked
        open_positions = [i for i, is_one in enumerate(is_open) if is_one]
        predicted = probs[open_positions]
        best = dict(zip(open_positions, _best(predicted), strict=True))
        tokens, confidence = list(canvas.tokens), [1.0] * len(canvas.tokens)
        if isinstance(info, UnmaskingStep):
            tokens = info.tokens[0].tolist()
        for position, ranked in best.items():
            tokens[position], confidence[position] = ranked[0]
        known = [PAD if token is None else int(token) for token in tokens]
        is_given = [not noisy for noisy in canvas.is_noisy]
        entropy = _entropy(predicted)
        return Snapshot(
            info.index, info.num_steps, known, confidence, is_given, best, entropy, info.t
        )

    def _of_decoding(self, info: DecodingStep) -> Snapshot:
        """Returns the snapshot of a sequence that grows by a token at each step."""
        probs = torch.softmax(info.logits[:1].float(), dim=-1)
        tokens, is_noisy = info.tokens[0, : info.index + 1].tolist(), self.canvas.is_noisy
        if is_noisy[info.index]:
            self.filled[info.index] = float(probs[0, tokens[-1]])
        confidence = [self.filled.get(i, 1.0) for i in range(len(tokens))]
        is_given = [not noisy for noisy in is_noisy[: len(tokens)]]
        best = {info.index: _best(probs)[0]}
        entropy = _entropy(probs)
        return Snapshot(info.index, info.num_steps, tokens, confidence, is_given, best, entropy)


def _best(probs: Float[Tensor, "positions vocab"]) -> list[list[tuple[int, float]]]:
    """Returns the most probable tokens of each position, with their probabilities."""
    values, tokens = probs.topk(min(NUM_BEST, probs.shape[-1]), dim=-1)
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def _entropy(probs: Float[Tensor, "positions vocab"]) -> float:
    """Returns the mean entropy of some distributions, 0 of none."""
    return float(torch.special.entr(probs.float()).sum(-1).mean()) if len(probs) else 0.0


def parts_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Returns the text of each token with the space before it; joined, they are the decoded text.

    A character of several tokens is the last one's.
    """
    parts, done = [], ""
    for end in range(1, len(tokens) + 1):
        whole = tokenizer.decode(tokens[:end])
        if not whole.startswith(done) or (whole.endswith(REPLACED) and end < len(tokens)):
            parts.append("")
            continue
        parts.append(whole[len(done) :])
        done = whole
    return parts
