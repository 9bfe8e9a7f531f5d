"""Judges: autoregressive models that say how likely a text is (AR-NLL, §6.2), and describe it (MAUVE).

A judge with the generator's tokenizer reads the very tokens. Any other reads text: the given part and
the generated part are tokenised on their own, so that the boundary stays where it is, and its nats are
also counted per byte, since its tokens are not the generator's.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cdcd.data.tokenizers import Tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.logits import cross_entropies
from cdcd.evaluation.external_judges import HuggingFaceReader
from cdcd.evaluation.texts import Texts
from cdcd.inference.text_model import AutoregressiveTextModel

MARKS = {EOS: "\n", PAD: "\ufffd"}


def num_bytes(texts: Texts, tokenizer: Tokenizer) -> list[int]:
    """Counts the UTF-8 bytes of the generated part of each text."""
    pairs = split_texts(texts, tokenizer, errors="surrogateescape")
    return [len(generated.encode("utf-8", "surrogateescape")) for _, generated in pairs]


def split_texts(
    texts: Texts, tokenizer: Tokenizer, *, errors: str = "replace"
) -> list[tuple[str, str]]:
    """Returns the text before the generated part of each sample, and the generated part.

    Documents end with a line. Padding that counts has a mark of its own: it is not nothing.
    """
    pairs = []
    for row, generated, end in zip(
        texts.tokens.tolist(), texts.is_generated.tolist(), texts.ends().tolist(), strict=True
    ):
        start = generated.index(True) if any(generated) else end
        whole = decode(row[:end], tokenizer, errors)
        before = decode(row[:start], tokenizer, errors)
        # A word tokenizer puts a space between the two: cut the whole instead of decoding the rest.
        cut = len(before) if whole.startswith(before) else 0
        pairs.append((before, whole[cut:] if cut else decode(row[start:end], tokenizer, errors)))
    return pairs


def decode(tokens: Sequence[int], tokenizer: Tokenizer, errors: str) -> str:
    """Returns the text of tokens, with the marks of those that are no text."""
    text, run = "", []
    for token in tokens:
        if token in MARKS:
            text += tokenizer.decode(run, errors=errors) + MARKS[token]
            run = []
        else:
            run.append(token)
    return text + tokenizer.decode(run, errors=errors)


class RunReader:
    """An autoregressive run with its own tokens."""

    def __init__(self, model: AutoregressiveTextModel) -> None:
        self.model, self.length = model, model.length

    def encode(self, text: str) -> list[int]:
        return self.model.tokenizer.encode(text)

    def logits(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab"]:
        """Returns logits of each token given those before it."""
        return self.model.network(tokens.to(self.model.device))

    def states(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch inputs width"]:
        """Returns the last hidden states: before the first token, after it, and so on."""
        with self.model.network.precision():
            return self.model.model.states(tokens.to(self.model.device))


class Judge:
    """Scores texts, and describes them by features.

    `tokenizer` is the generator's, if the reader has another: then it reads the text of the tokens.
    """

    def __init__(
        self,
        name: str,
        reader: RunReader | HuggingFaceReader,
        tokenizer: Tokenizer | None = None,
        batch_size: int = 128,
    ) -> None:
        self.name, self.reader, self.tokenizer = name, reader, tokenizer
        self.batch_size = batch_size

    @torch.no_grad()
    def nats(self, texts: Texts) -> Float[Tensor, " samples"]:
        """Returns −ln p of the generated part of each text given the rest before it."""
        sums = []
        for tokens, is_counted in map(self._read, texts.split(self.batch_size)):
            logits = self.reader.logits(tokens)
            nll = cross_entropies(logits, tokens.to(logits.device))
            sums.append((nll.cpu() * is_counted).sum(1))
        return torch.cat(sums).double()

    def num_tokens(self, texts: Texts) -> Int[Tensor, " samples"]:
        """Counts the judge's own tokens of the generated part of each text."""
        return torch.cat([self._read(each)[1].sum(1) for each in texts.split(self.batch_size)])

    @torch.no_grad()
    def features(self, texts: Texts) -> Float[Tensor, "samples width"]:
        """Returns the last hidden states of whole sequences, at the end of what counts."""
        features = []
        for tokens, lengths in map(self._read_whole, texts.split(self.batch_size)):
            states = self.reader.states(tokens)
            features.append(states[torch.arange(len(tokens)), lengths.to(states.device)].float())
        return torch.cat(features)

    def _read(self, texts: Texts) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
        """Returns the tokens that the judge reads, and True where they are generated."""
        if self.tokenizer is None:
            return texts.tokens, texts.is_generated
        pairs = [self._fitted(*pair) for pair in split_texts(texts, self.tokenizer)]
        tokens, lengths = _padded([[*before, *after] for before, after in pairs])
        starts = torch.tensor([len(before) for before, _ in pairs])
        positions = torch.arange(tokens.shape[1])
        return tokens, (positions >= starts[:, None]) & (positions < lengths[:, None])

    def _read_whole(self, texts: Texts) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, " batch"]]:
        """Returns whole sequences and their lengths; one that is too long for the judge is cut."""
        if self.tokenizer is None:
            return texts.tokens, texts.ends()
        whole = (before + generated for before, generated in split_texts(texts, self.tokenizer))
        return _padded([self.reader.encode(text)[: self.reader.length] for text in whole])

    def _fitted(self, before: str, generated: str) -> tuple[list[int], list[int]]:
        """Encodes both parts as the judge's tokens, with the nearest context that fits."""
        given, counted = self.reader.encode(before), self.reader.encode(generated)
        if len(counted) > self.reader.length:
            raise ValueError(
                f"a generated text has {len(counted)} tokens by the judge {self.name}, which "
                f"reads {self.reader.length}; use a judge of longer sequences"
            )
        return given[max(len(given) + len(counted) - self.reader.length, 0) :], counted


def _padded(
    rows: Sequence[list[int]],
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, " batch"]]:
    """Pads rows to one length, which changes no score of a causal model; returns their lengths too."""
    longest = max(1, *(len(row) for row in rows))
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return padded, torch.tensor([len(row) for row in rows])
