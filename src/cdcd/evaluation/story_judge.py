"""The model that wrote a corpus of stories, as its judge: its probability of a text is the true one.

Each document is read on its own, since stories were drawn one by one, from its beginning and by its
canonical tokens. The generated part begins at a byte. Where a token of the judge spans that byte, its
first bytes r are given, and its nats are

    −ln p(token | before) + ln Σ_v [v begins with r] p(v | before).

So the nats of a whole story are those of its parts together. A story that does not fit the context
of the model has no probability in the language; what is beyond is judged by what is near before it.
"""

from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS
from cdcd.evaluation.judge import Judge, decode
from cdcd.evaluation.texts import Texts
from cdcd.languages.story_model import CONTEXT, StoryModel, picked_log_probs
from cdcd.languages.story_tokenizer import BEGIN, StoryTokenizer

STRIDE = CONTEXT // 2
"""Tokens by which the context moves on in a document that is longer."""


@dataclass(frozen=True)
class Reading:
    """A document as the judge reads it."""

    tokens: list[int]
    """`BEGIN`, the canonical tokens and, where the document has ended, `BEGIN` again."""
    num_given: int
    """Tokens that are not judged, `BEGIN` among them."""
    begun: bytes = field(default=b"")
    """The given bytes of the first token that is judged."""


class StoryJudge(Judge):
    """Scores the generated parts of documents by the model of stories."""

    def __init__(
        self,
        name: str,
        model: StoryModel,
        story_tokenizer: StoryTokenizer,
        tokenizer: Tokenizer,
        batch_size: int = 32,
    ) -> None:
        self.name, self.model, self.story_tokenizer = name, model, story_tokenizer
        self.tokenizer, self.batch_size = tokenizer, batch_size
        self._beginning_with = cache(self._pieces_beginning_with)

    def nats(self, texts: Texts) -> Float[Tensor, " samples"]:
        rows = [
            (sample, reading)
            for sample, readings in enumerate(self._readings(texts))
            for reading in readings
        ]
        # Documents of one length at a time.
        rows.sort(key=lambda row: len(row[1].tokens))
        sums = torch.zeros(len(texts), dtype=torch.float64)
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            samples = torch.tensor([sample for sample, _ in batch])
            sums.index_add_(0, samples, self._batch_nats([reading for _, reading in batch]))
        return sums

    def num_tokens(self, texts: Texts) -> Int[Tensor, " samples"]:
        counts = [
            sum(len(reading.tokens) - reading.num_given for reading in readings)
            for readings in self._readings(texts)
        ]
        return torch.tensor(counts)

    @torch.no_grad()
    def features(self, texts: Texts) -> Float[Tensor, "samples width"]:
        """Returns the last hidden states, at the end of what counts of the last document."""
        features = []
        whole = Texts(texts.tokens, torch.ones_like(texts.is_generated))
        ends = texts.ends()
        counted = Texts(whole.tokens, torch.arange(texts.tokens.shape[1]) < ends[:, None])
        for readings in self._readings(counted):
            tokens = torch.tensor([readings[-1].tokens[-CONTEXT:]], device=self.model.device)
            features.append(self.model.states(tokens)[0, -1].float())
        return torch.stack(features)

    # Reading

    def _readings(self, texts: Texts) -> list[list[Reading]]:
        """Returns, for each sample, its documents with a generated part."""
        return [
            self._documents(row[:end], generated[:end])
            for row, generated, end in zip(
                texts.tokens.tolist(),
                texts.is_generated.tolist(),
                texts.ends().tolist(),
                strict=True,
            )
        ]

    def _documents(self, row: list[int], is_generated: list[bool]) -> list[Reading]:
        readings, start = [], 0
        ends = [i for i, token in enumerate(row, 1) if token == EOS]
        for end in [*ends, len(row)]:
            generated = is_generated[start:end]
            if any(generated):
                given = start + generated.index(True)
                readings.append(self._reading(row[start:end], given - start))
            start = end
        return readings

    def _reading(self, document: list[int], num_given: int) -> Reading:
        """Encodes a document whose first tokens are given."""
        whole, given = (self._bytes(part) for part in (document, document[:num_given]))
        if not whole.startswith(given):
            whole = given + self._bytes(document[num_given:])
        # The space before a text is given, or generated, with the first of it.
        boundary = len(given) + 1 if given else 0
        encoded = self.story_tokenizer.encode_bytes(b" " + whole) if whole else []
        tokens, counted, begun, end = [BEGIN, *encoded], 1, b"", 0
        for token in encoded:
            start, end = end, end + len(self.story_tokenizer.piece(token))
            if end > boundary:
                begun = self.story_tokenizer.piece(token)[: max(boundary - start, 0)]
                break
            counted += 1
        return Reading([*tokens, BEGIN] if document[-1] == EOS else tokens, counted, begun)

    def _bytes(self, tokens: list[int]) -> bytes:
        kept = tokens[:-1] if tokens and tokens[-1] == EOS else tokens
        text = decode(kept, self.tokenizer, "surrogateescape")
        return text.encode("utf-8", "surrogateescape")

    # Scores

    @torch.no_grad()
    def _batch_nats(self, readings: list[Reading]) -> Float[Tensor, " documents"]:
        longest = max(len(reading.tokens) for reading in readings)
        rows = torch.tensor(
            [[*each.tokens, *[BEGIN] * (longest - len(each.tokens))] for each in readings],
            device=self.model.device,
        )
        sums = torch.zeros(len(readings), dtype=torch.float64)
        for start in range(0, max(longest - 1 - STRIDE, 1), STRIDE):
            logits = self.model.logits(rows[:, start : start + CONTEXT][:, : longest - 1 - start])
            # Later windows judge only what the one before has not.
            first = start + 1 if start == 0 else start - STRIDE + CONTEXT + 1
            sums += self._window_nats(readings, rows, logits, start, first)
        return sums

    def _window_nats(
        self,
        readings: list[Reading],
        rows: Int[Tensor, "documents seq"],
        logits: Float[Tensor, "documents read vocab"],
        start: int,
        first: int,
    ) -> Float[Tensor, " documents"]:
        """Returns the nats of judged tokens that a window predicts, from the token number `first` on."""
        numbers = torch.arange(start + 1, start + 1 + logits.shape[1])
        is_judged = numbers >= first
        is_judged = is_judged & torch.stack(
            [(numbers >= each.num_given) & (numbers < len(each.tokens)) for each in readings]
        )
        log_probs = picked_log_probs(logits, rows[:, numbers.to(rows.device)]).cpu()
        sums = -(log_probs * is_judged).sum(1)
        for row, each in enumerate(readings):
            if each.begun and is_judged[row, each.num_given - start - 1]:
                at = logits[row, each.num_given - start - 1].double().log_softmax(-1)
                sums[row] += at[self._beginning_with(each.begun)].logsumexp(0).cpu()
        return sums

    def _pieces_beginning_with(self, begun: bytes) -> Int[Tensor, " pieces"]:
        """Returns the tokens whose piece begins with these bytes and has more."""
        size, find = self.story_tokenizer.vocab_size, self.story_tokenizer.piece
        return torch.tensor([t for t in range(size) if find(t).startswith(begun)])
