"""Exact likelihoods where the language is known: what a judge says beside what is true."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cdcd.data import tales
from cdcd.data.markov import markov_chain
from cdcd.data.tokenizer import EOS, SPECIALS, Tokenizer
from cdcd.evaluation.judge import Judge
from cdcd.evaluation.texts import Texts
from cdcd.training.config import DataConfig


@dataclass(frozen=True)
class ExactScores:
    """Whole sequences under the language itself; only what is possible in it has a likelihood."""

    possible_share: float
    """Sequences that are sequences of the language."""
    nll: float | None
    """Their exact nats a token."""
    judge_nll: float | None
    """What the judge says of the same sequences."""

    @property
    def judge_error(self) -> float | None:
        """Nats a token by which the judge is off; positive: it finds them less likely than they are."""
        if self.nll is None or self.judge_nll is None:
            return None
        return self.judge_nll - self.nll


def exact_scores(
    texts: Texts, data: DataConfig, tokenizer: Tokenizer, judge: Judge
) -> ExactScores | None:
    """Exact scores of whole sequences of a built-in corpus; None for real text."""
    if data.source not in ("markov", "tales"):
        return None
    whole = Texts(texts.tokens, torch.ones_like(texts.is_generated)).until_end()
    find = _tales if data.source == "tales" else _markov
    log_probs = find(whole, data, tokenizer)
    possible = torch.tensor([p is not None for p in log_probs])
    if not bool(possible.any()):
        return ExactScores(0.0, None, None)
    right = Texts(whole.tokens[possible], whole.is_generated[possible])
    count = int(right.is_generated.sum())
    return ExactScores(
        possible_share=float(possible.float().mean()),
        nll=-sum(p for p in log_probs if p is not None) / count,
        judge_nll=float(judge.nats(right).sum()) / count,
    )


def _tales(texts: Texts, data: DataConfig, tokenizer: Tokenizer) -> list[float | None]:
    """A story ends where its grammar says; its end costs nothing."""
    found = []
    for row, counted in zip(texts.tokens, texts.is_generated, strict=True):
        tokens = row[counted].tolist()
        ended = bool(tokens) and tokens[-1] == EOS
        found.append(tales.check(tokenizer.decode(tokens)).log_prob if ended else None)
    return found


def _markov(texts: Texts, data: DataConfig, tokenizer: Tokenizer) -> list[float | None]:
    """A document of the chain fills the sequence but for its end, which costs nothing."""
    chain = markov_chain(data.num_states)
    states = texts.tokens[:, :-1] - len(SPECIALS)
    possible = _is_chain(texts.tokens, chain.num_states)
    log_probs = chain.log_prob(states.clamp(0, chain.num_states - 1)).tolist()
    return [p if ok else None for p, ok in zip(log_probs, possible.tolist(), strict=True)]


def _is_chain(tokens: Int[Tensor, "samples seq"], num_states: int) -> Bool[Tensor, " samples"]:
    inside = (tokens[:, :-1] >= len(SPECIALS)) & (tokens[:, :-1] < len(SPECIALS) + num_states)
    return inside.all(1) & (tokens[:, -1] == EOS)
