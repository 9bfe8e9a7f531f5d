"""Exact likelihoods where the language is known: what a judge says beside what is true."""

from dataclasses import dataclass

import torch

from cdcd.config import DataConfig
from cdcd.data.corpus import BUILT_IN
from cdcd.data.tokenizers import Tokenizer, WordTokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.judge import Judge
from cdcd.evaluation.texts import Texts
from cdcd.languages import markov_chain, tales


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
    """Exact scores of whole sequences of a built-in corpus; None where they are not known.

    They are known of whole documents, each in a sequence of its own, in words.
    """
    is_whole = data.layout == "documents" or data.source == "markov"
    if data.source not in BUILT_IN or not is_whole or not isinstance(tokenizer, WordTokenizer):
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
        # Decoding drops padding, which no story has.
        ended = bool(tokens) and tokens[-1] == EOS and PAD not in tokens
        found.append(tales.check(tokenizer.decode(tokens)).log_prob if ended else None)
    return found


def _markov(texts: Texts, data: DataConfig, tokenizer: Tokenizer) -> list[float | None]:
    """A document of the chain fills the sequence but for its end, which costs nothing."""
    chain = markov_chain(data.num_states)
    words = {word: state for state, word in enumerate(chain.words)}
    # A vocabulary that was learnt has an order of its own.
    of_token = [words.get(tokenizer.piece(token), -1) for token in range(tokenizer.vocab_size)]
    states = torch.tensor(of_token)[texts.tokens[:, :-1]]
    possible = (states >= 0).all(1) & (texts.tokens[:, -1] == EOS)
    log_probs = chain.log_prob(states.clamp(min=0)).tolist()
    return [p if ok else None for p, ok in zip(log_probs, possible.tolist(), strict=True)]
