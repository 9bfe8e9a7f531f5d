"""Exact likelihoods of texts in a known language, beside those of a judge."""

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
    """The judge's nats a token of the same sequences."""

    @property
    def judge_error(self) -> float | None:
        """Nats a token by which the judge is off; positive: it finds them less likely than they are."""
        if self.nll is None or self.judge_nll is None:
            return None
        return self.judge_nll - self.nll


def exact_scores(
    texts: Texts, data: DataConfig, tokenizer: Tokenizer, judge: Judge
) -> ExactScores | None:
    """Returns exact scores of whole sequences of a built-in corpus; None if they are not known."""
    whole = Texts(texts.tokens, torch.ones_like(texts.is_generated)).until_end()
    log_probs = exact_log_probs(whole, data, tokenizer)
    if log_probs is None:
        return None
    possible = torch.tensor([p is not None for p in log_probs])
    if not bool(possible.any()):
        return ExactScores(0.0, None, None)
    right = whole.where(possible)
    count = int(right.is_generated.sum())
    return ExactScores(
        possible_share=float(possible.float().mean()),
        nll=-sum(p for p in log_probs if p is not None) / count,
        judge_nll=float(judge.nats(right).sum()) / count,
    )


def exact_log_probs(
    whole: Texts, data: DataConfig, tokenizer: Tokenizer
) -> list[float | None] | None:
    """Returns the log-probabilities of whole sequences in a built-in language; None if they are not known.

    They are known for whole documents in words, each in a sequence of its own. A sequence that is none of
    the language has none.
    """
    is_whole = data.layout == "documents" or data.source == "markov"
    if data.source not in BUILT_IN or not is_whole or not isinstance(tokenizer, WordTokenizer):
        return None
    find = _tales if data.source == "tales" else _markov
    return find(whole, data, tokenizer)


def _tales(texts: Texts, data: DataConfig, tokenizer: Tokenizer) -> list[float | None]:
    """Returns the log-probabilities of stories; a story ends where its grammar says, at no cost."""
    log_probs = []
    for row, counted in zip(texts.tokens, texts.is_generated, strict=True):
        tokens = row[counted].tolist()
        # Decoding drops padding, which no story has.
        ended = bool(tokens) and tokens[-1] == EOS and PAD not in tokens
        log_probs.append(tales.check(tokenizer.decode(tokens)).log_prob if ended else None)
    return log_probs


def _markov(texts: Texts, data: DataConfig, tokenizer: Tokenizer) -> list[float | None]:
    """Returns the log-probabilities of documents that fill the sequence but for the end, which costs nothing."""
    chain = markov_chain(data.num_states)
    words = {word: state for state, word in enumerate(chain.words)}
    # A vocabulary that was learnt has an order of its own.
    of_token = [words.get(tokenizer.piece(token), -1) for token in range(tokenizer.vocab_size)]
    states = torch.tensor(of_token)[texts.tokens[:, :-1]]
    possible = (states >= 0).all(1) & (texts.tokens[:, -1] == EOS)
    log_probs = chain.log_prob(states.clamp(min=0)).tolist()
    return [p if ok else None for p, ok in zip(log_probs, possible.tolist(), strict=True)]
