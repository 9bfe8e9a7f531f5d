"""Small languages with exact answers, shared by the tests."""

import itertools

import torch
from torch import Tensor

from cdcd.diffusion.embedding import normalise_rows
from cdcd.diffusion.process import ProcessConfig
from cdcd.languages import MarkovChain, MarkovOracle, markov_chain
from cdcd.seeding import generator_for

STATES, DIM, LENGTH = 6, 16, 12
PROCESS = ProcessConfig(t_min=0.2, t_max=50.0)


def chain(num_states: int = STATES, seed: int = 3) -> MarkovChain:
    small = markov_chain(num_states, seed=seed, concentration=0.7)
    return MarkovChain(small.initial.double(), small.transitions.double())


def table(num_states: int = STATES, dim: int = DIM, seed: int = 0) -> Tensor:
    """Embeddings of length sqrt(dim), in float64."""
    weight = torch.randn(num_states, dim, generator=generator_for(seed, "table"))
    return normalise_rows(weight.double())


def noise(count: int, length: int = LENGTH, dim: int = DIM, seed: int = 0) -> Tensor:
    return torch.randn(count, length, dim, generator=generator_for(seed, "noise")).double()


def oracle(count: int, length: int = LENGTH, given: dict[int, int] | None = None) -> MarkovOracle:
    """The oracle for `count` sequences with {position: token} given."""
    tokens = torch.zeros(count, length, dtype=torch.long)
    is_noisy = torch.ones(count, length, dtype=torch.bool)
    for position, token in (given or {}).items():
        tokens[:, position], is_noisy[:, position] = token, False
    return MarkovOracle(chain(), table(), tokens, is_noisy)


def all_sequences(num_states: int, length: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(num_states), repeat=length)))


def exact_marginals(model: MarkovChain, length: int, given: dict[int, int]) -> Tensor:
    """p(token at each position | given tokens), by enumeration of every sequence."""
    sequences = all_sequences(model.num_states, length)
    fits = torch.ones(len(sequences), dtype=torch.bool)
    for position, token in given.items():
        fits &= sequences[:, position] == token
    weights = torch.where(fits, model.log_prob(sequences).exp(), 0.0)
    weights = weights / weights.sum()
    one_hot = torch.nn.functional.one_hot(sequences, model.num_states).double()
    return torch.einsum("n,nlv->lv", weights, one_hot)


def independent_logits(x: Tensor, t: Tensor, table: Tensor, prior: Tensor) -> Tensor:
    """The posterior of independent tokens with embeddings of equal length: x·e/t² + ln prior."""
    return x @ table.T / t[:, None, None] ** 2 + prior.log()
