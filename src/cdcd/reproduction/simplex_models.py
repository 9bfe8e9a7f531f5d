"""Small models of diffusion on the simplex and on embeddings (App. B.3), judged by an exact likelihood.

Both are the same network with the same embedding table, steps and time warp, without given tokens and
self-conditioning. On the simplex the network sees the expected embedding of the shares, and interpolates
the scores of the simplex; else it is the paper's model.

The language is a Markov chain of 16 words, each with V/16 synonyms that are chosen uniformly. So what is to
be learnt of the context is the same at every V, and V is that of the corruption.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.config import RunConfig
from cdcd.diffusion.draws import uniform_times
from cdcd.diffusion.interpolation import expected_embedding
from cdcd.diffusion.process import ProcessConfig, add_noise, scale_input
from cdcd.diffusion.sampling import time_grid
from cdcd.diffusion.simplex import SimplexProcess, shares
from cdcd.diffusion.warping import TimeWarp
from cdcd.languages import MarkovChain, markov_chain
from cdcd.metrics.entropy import entropy
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.presets import preset
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.build import build_model
from cdcd.training.optimiser import MovingAverage, learning_rate_at, make_optimiser

NUM_WORDS = 16
"""Words of the chain; fewer where there are fewer tokens."""
LENGTH = 8
NUM_SAMPLES = 128
NUM_SEQUENCES = 20_000
"""Sequences of the chain that its own likelihood is taken from."""


class Diffusion(Protocol):
    """A process with its states, bound to an embedding table."""

    def __init__(self, table: Float[Tensor, "vocab embed"]) -> None: ...

    def corrupt(
        self,
        tokens: Int[Tensor, "batch seq"],
        t: Float[Tensor, " batch"],
        generator: torch.Generator,
    ) -> Float[Tensor, "batch seq state"]:
        """Draws the state at time t, given the tokens."""
        ...

    def start(
        self, count: int, length: int, t: Float[Tensor, ""], generator: torch.Generator
    ) -> Float[Tensor, "count length state"]:
        """Draws the state at the highest noise level."""
        ...

    def network_input(
        self, state: Float[Tensor, "batch seq state"], t: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch seq embed"]:
        """Returns what the network sees of a state."""
        ...

    def step(
        self,
        state: Float[Tensor, "batch seq state"],
        t: Float[Tensor, " batch"],
        t_next: Float[Tensor, " batch"],
        logits: Float[Tensor, "batch seq vocab"],
    ) -> Float[Tensor, "batch seq state"]:
        """Follows the probability flow ODE to a lower noise level."""
        ...


@dataclass(frozen=True)
class OnEmbeddings:
    """Gaussian noise on embeddings, solved by Euler's method."""

    table: Float[Tensor, "vocab embed"]

    def corrupt(self, tokens: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        x0 = F.embedding(tokens, self.table)
        return add_noise(x0, t, torch.randn(x0.shape, generator=generator, device=x0.device))

    def start(self, count: int, length: int, t: Tensor, generator: torch.Generator) -> Tensor:
        shape = (count, length, self.table.shape[1])
        return t * torch.randn(shape, generator=generator, device=t.device)

    def network_input(self, state: Tensor, t: Tensor) -> Tensor:
        return scale_input(state, t)

    def step(self, state: Tensor, t: Tensor, t_next: Tensor, logits: Tensor) -> Tensor:
        slope = (state - expected_embedding(logits, self.table)) / t[:, None, None]
        return state + (t_next - t)[:, None, None] * slope


@dataclass(frozen=True)
class OnSimplex:
    """The Cox–Ingersoll–Ross process on the simplex, whose components sum to 1 in expectation."""

    table: Float[Tensor, "vocab embed"]

    @property
    def process(self) -> SimplexProcess:
        return SimplexProcess(1 / len(self.table))

    def corrupt(self, tokens: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        return self.process.add_noise(tokens, len(self.table), t, generator=generator)

    def start(self, count: int, length: int, t: Tensor, generator: torch.Generator) -> Tensor:
        return self.process.final_noise((count, length, len(self.table)), generator=generator)

    def network_input(self, state: Tensor, t: Tensor) -> Tensor:
        return shares(state) @ self.table

    def step(self, state: Tensor, t: Tensor, t_next: Tensor, logits: Tensor) -> Tensor:
        return self.process.step(state, t, t_next, logits.softmax(-1))


DIFFUSIONS: dict[str, tuple[Callable[[Tensor], Diffusion], ProcessConfig]] = {
    "Gaussian": (OnEmbeddings, ProcessConfig(t_min=0.5, t_max=20.0)),
    "simplex": (OnSimplex, ProcessConfig(t_min=0.05, t_max=5.0)),
}
"""The two processes with their ranges of t: from hardly a wrong token to hardly a right one."""


def language(vocab_size: int) -> MarkovChain:
    """Returns the chain of all tokens; token i is a synonym of the word i modulo the number of words."""
    chain = markov_chain(min(NUM_WORDS, vocab_size))
    word = torch.arange(vocab_size) % chain.num_states
    num_synonyms = word.bincount()[word]
    return MarkovChain(
        chain.initial[word] / num_synonyms, chain.transitions[word][:, word] / num_synonyms
    )


def config_of(name: str, vocab_size: int, steps: int, seed: int) -> RunConfig:
    """Returns the configuration of a model by its process."""
    levels = DIFFUSIONS[name][1]
    changes = {
        "process.t_min": levels.t_min,
        "process.t_max": levels.t_max,
        "data.source": "markov",
        "data.num_states": vocab_size,
        "data.length": LENGTH,
        "network.num_blocks": 2,
        "network.width": 64,
        "network.num_heads": 2,
        "objective.masking": "none",
        "objective.self_conditioning": False,
        "objective.conditioning_dropout": 0.0,
        "warp.uniformity": 0.0,
        "training.steps": steps,
        "training.decay_steps": steps // 2,
        "training.seed": seed,
        "sampling.self_conditioning": False,
        "sampling.score_temperature": 1.0,
    }
    return override(preset("demo"), changes)


class Model:
    """A network of one of the two processes, with its time warp."""

    def __init__(self, name: str, config: RunConfig, device: torch.device) -> None:
        self.bind, self.config, self.device = DIFFUSIONS[name][0], config, device
        network = build_model(config, config.data.num_states)
        assert isinstance(network, DiffusionTextNetwork)
        self.network = network.to(device)
        self.warp = TimeWarp(config.warp, config.process).to(device)

    @property
    def diffusion(self) -> Diffusion:
        """The process on the network's embedding table."""
        return self.bind(self.network.embedding.table())

    def logits(
        self,
        diffusion: Diffusion,
        state: Float[Tensor, "batch seq state"],
        t: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch seq vocab"]:
        """Predicts the tokens from a state; nothing is given."""
        x = diffusion.network_input(state, t)
        is_noisy = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        nothing = torch.zeros_like(x)
        return self.network(x, t, c=nothing, x0_prev=nothing, is_noisy=is_noisy)

    def train(self, chain: MarkovChain) -> None:
        """Trains the network and the warp, and leaves the average weights in the network."""
        training, network = self.config.training, self.network
        betas = (training.beta1, training.beta2)
        optimiser = make_optimiser(network, betas, training.momentum)
        warp_optimiser = make_optimiser(self.warp, (0.9, 0.99))
        warp_optimiser.set_rate(self.config.warp.learning_rate)
        average = MovingAverage(network, training.average_decay)
        for step in range(training.steps):
            optimiser.set_rate(learning_rate_at(step, training))
            t, losses = self._losses(chain, step)
            losses.mean().backward()
            nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
            optimiser.step()
            self.warp.fitting_loss(t, losses.detach()).backward()
            warp_optimiser.step()
            self.warp.update_average()
            average.update(step)
        average.swap()

    def _losses(
        self, chain: MarkovChain, step: int
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Returns the noise levels of a batch, and the mean cross-entropy of each of its sequences."""
        training, diffusion = self.config.training, self.diffusion
        generator = generator_for(training.seed, "simplex", step)
        tokens = chain.sample(training.batch_size, self.config.data.length, generator=generator)
        u = uniform_times(training.batch_size, low_discrepancy=True, generator=generator)
        tokens, u = tokens.to(self.device), u.to(self.device)
        t = self.warp.training_schedule().noise_levels(u)
        noise = generator_for(training.seed, "simplex noise", step, device=self.device)
        state = diffusion.corrupt(tokens, t, noise)
        logits = self.logits(diffusion, state, t)
        return t, F.cross_entropy(logits.mT, tokens, reduction="none").mean(1)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> Int[Tensor, "count length"]:
        """Follows the ODE from the highest noise level to the lowest, and predicts the tokens there."""
        config, diffusion = self.config, self.diffusion
        times = time_grid(config.sampling, config.process, self.warp.schedule())
        state = diffusion.start(count, config.data.length, times[0], generator)
        times = times[:, None].expand(-1, count)
        for t, t_next in pairwise(times):
            state = diffusion.step(state, t, t_next, self.logits(diffusion, state, t))
        return self.logits(diffusion, state, times[-1]).argmax(-1)


def train_and_judge(
    name: str, vocab_size: int, steps: int, seed: int, device: torch.device
) -> dict[str, Any]:
    """Trains a model on the language of V tokens, and compares its samples with those of the language."""
    chain = language(vocab_size)
    model = Model(name, config_of(name, vocab_size, steps, seed), device)
    model.train(chain)
    samples = model.sample(NUM_SAMPLES, generator_for(seed, "simplex samples", device=device)).cpu()
    length, real = model.config.data.length, _real(chain, model.config.data.length)
    return {
        "nll": float(chain.log_prob(samples).mean()) / -length,
        "real_nll": float(chain.log_prob(real).mean()) / -length,
        "entropy": _entropy(samples, vocab_size),
        "real_entropy": _entropy(real[:NUM_SAMPLES], vocab_size),
    }


def shuffled_excess(vocab_size: int) -> float:
    """Returns the NLL a token of a language in random order, less that in its own order."""
    chain = language(vocab_size)
    real = _real(chain, LENGTH)
    order = torch.randperm(real.numel(), generator=generator_for("simplex", "order"))
    shuffled = real.flatten()[order].view_as(real)
    return float(chain.log_prob(real).mean() - chain.log_prob(shuffled).mean()) / LENGTH


def _real(chain: MarkovChain, length: int) -> Int[Tensor, "sequences length"]:
    return chain.sample(NUM_SEQUENCES, length, generator=generator_for("simplex", "real"))


def _entropy(tokens: Tensor, vocab_size: int) -> float:
    """Returns the unigram entropy of all tokens together."""
    return entropy(tokens.flatten().bincount(minlength=vocab_size))
