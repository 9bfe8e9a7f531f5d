"""The language `markov`: its likelihood is exact, and so is its posterior in noise (`oracle.py`)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.seeding import generator_for


@dataclass(frozen=True)
class MarkovChain:
    """A Markov chain of order 1: the probabilities of the first token, and of each token after another."""

    initial: Float[Tensor, " states"]
    transitions: Float[Tensor, "states states"]

    @property
    def num_states(self) -> int:
        return len(self.initial)

    @property
    def words(self) -> list[str]:
        return [f"w{state}" for state in range(self.num_states)]

    def sample(
        self, count: int, length: int, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "count length"]:
        """Draws independent sequences."""
        first = torch.multinomial(self.initial, count, replacement=True, generator=generator)
        columns = [first]
        for _ in range(length - 1):
            rows = self.transitions[columns[-1]]
            columns.append(torch.multinomial(rows, 1, generator=generator)[:, 0])
        return torch.stack(columns, dim=1)

    def log_prob(self, states: Int[Tensor, "batch length"]) -> Float[Tensor, " batch"]:
        """Returns the exact log-likelihood of sequences, in nats."""
        steps = self.transitions.log()[states[:, :-1], states[:, 1:]].sum(1)
        return self.initial.log()[states[:, 0]] + steps

    def documents(self, count: int, length: int, *, seed: int) -> list[str]:
        """Draws sequences and writes them as texts."""
        words = self.words
        states = self.sample(count, length, generator=generator_for(seed, "markov documents"))
        return [" ".join(words[state] for state in row) for row in states.tolist()]


def markov_chain(num_states: int, *, seed: int = 0, concentration: float = 0.3) -> MarkovChain:
    """Draws a chain: its rows have a symmetric Dirichlet distribution.

    The smaller the concentration, the more certain is the next token.
    """
    generator = generator_for(seed, "markov chain")
    alpha = torch.full((num_states + 1, num_states), concentration, dtype=torch.float64)
    gamma = torch._standard_gamma(alpha, generator=generator) + 1e-4  # pyright: ignore[reportPrivateImportUsage]
    rows = (gamma / gamma.sum(1, keepdim=True)).float()
    return MarkovChain(rows[0], rows[1:])
