"""A small network learns what the oracle knows, and embeddings collapse where the paper says so."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig, training_loss
from cdcd.diffusion.process import ProcessConfig, add_noise
from cdcd.diffusion.warping import TimeWarp, WarpConfig
from cdcd.languages import MarkovChain, MarkovOracle, markov_chain
from cdcd.networks.diffusion_text import DiffusionTextNetwork, NetworkConfig
from cdcd.seeding import generator_for

LENGTH, STATES, BATCH = 12, 8, 128
PROCESS = ProcessConfig(t_min=0.3, t_max=30.0)
CPU = torch.device("cpu")


def train(
    steps: int,
    *,
    embedding: EmbeddingConfig,
    objective: ObjectiveConfig,
    learning_rate: float = 3e-3,
    process: ProcessConfig = PROCESS,
) -> tuple[DiffusionTextNetwork, MarkovChain]:
    """The Trainer's step in its plainest form."""
    chain = markov_chain(STATES, seed=1, concentration=0.5)
    torch.manual_seed(0)
    size = NetworkConfig(num_blocks=2, width=64, num_heads=4, time_units=32)
    model = DiffusionTextNetwork(size, embedding, process, vocab_size=STATES, length=LENGTH)
    warp = TimeWarp(WarpConfig(bins="log", num_bins=30, average_decay=0.9), process)
    adam = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    warp_adam = torch.optim.Adam(warp.parameters(), lr=0.02)
    for step in range(steps):
        adam.param_groups[0]["lr"] = learning_rate * min(1.0, 3 * (1 - step / steps))
        generator = generator_for("learning", step)
        tokens = chain.sample(BATCH, LENGTH, generator=generator)
        shape = (BATCH, LENGTH, embedding.dim)
        draws = draw_for_step(
            shape, objective, warp.training_schedule(), seed=0, step=step, device=CPU
        )
        losses = training_loss(
            model,
            model.embedding.table(),
            tokens,
            draws,
            objective=objective,
            embedding=embedding,
            log_l2_weight=model.embedding.log_l2_weight,
        )
        (losses.total / losses.num_noisy).backward()
        adam.step()
        adam.zero_grad()
        warp.fitting_loss(draws.t, losses.per_sequence).backward()
        warp_adam.step()
        warp_adam.zero_grad()
        warp.update_average()
    return model, chain


def cross_entropies(logits: Tensor, tokens: Tensor, is_noisy: Tensor) -> Tensor:
    """Per-sequence means over noisy positions."""
    each = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return (each.view_as(tokens) * is_noisy).sum(1) / is_noisy.sum(1)


@pytest.mark.slow
def test_network_comes_near_the_oracle_and_never_beats_it():
    """At every noise level: within 0.06 nats of the exact cross-entropy, and not below it."""
    embedding = EmbeddingConfig(dim=16, init_scale=0.1)
    objective = ObjectiveConfig()
    model, chain = train(900, embedding=embedding, objective=objective)
    table = model.embedding.table().detach()
    generator = generator_for("judge")
    tokens = chain.sample(2000, LENGTH, generator=generator)
    masks = draw_for_step(
        (2000, LENGTH, 16),
        objective,
        TimeWarp(WarpConfig(), PROCESS).schedule(),
        seed=1,
        step=0,
        device=CPU,
    )
    for level in (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0):
        t = torch.full((2000,), level)
        x = add_noise(table[tokens], t, masks.eps)
        exact = MarkovOracle(chain, table, tokens, masks.is_noisy)(x, t).logits
        best = cross_entropies(exact, tokens, masks.is_noisy)
        draws = replace(masks, t=t, is_dropped=torch.zeros(2000, dtype=torch.bool))
        with torch.no_grad():
            found = training_loss(
                model, table, tokens, draws, objective=objective, embedding=embedding
            )
        gap = found.per_sequence - best
        error = float(gap.std() / 2000**0.5)
        assert float(gap.mean()) < 0.06, f"far from the oracle at t = {level}"
        assert float(gap.mean()) > -4 * error, (
            f"better than possible at t = {level}: the answer leaks"
        )


def mean_cosine(model: DiffusionTextNetwork) -> float:
    """Mean cosine of the angle between two different embeddings."""
    table = model.embedding.table().detach()
    cosines = F.normalize(table, dim=-1) @ F.normalize(table, dim=-1).T
    return float((cosines.sum() - STATES) / (STATES * (STATES - 1)))


def test_score_matching_collapses_the_embeddings_and_cross_entropy_spreads_them():
    """§3.2: with score matching the task is easiest when all embeddings are the same vector.

    At noise levels where tokens cannot be told, only a collapse lowers the score-matching loss.
    """

    def cosine(loss: str) -> float:
        model, _ = train(
            250,
            embedding=EmbeddingConfig(dim=8, init_scale=0.1),
            objective=ObjectiveConfig(loss=loss),  # pyright: ignore[reportArgumentType]
            learning_rate=1e-2,
            process=ProcessConfig(t_min=3.0, t_max=30.0),
        )
        return mean_cosine(model)

    assert cosine("score_matching") > 0.95
    assert cosine("cross_entropy") < 0.1


def test_embeddings_grow_without_normalisation_unless_penalised():
    """§3.2 and App. B.1: cross-entropy pushes free embeddings apart without end."""

    def size(**settings: float) -> float:
        config = EmbeddingConfig(dim=8, init_scale=1.0, normalise=False, **settings)  # pyright: ignore[reportArgumentType]
        model, _ = train(150, embedding=config, objective=ObjectiveConfig(), learning_rate=1e-2)
        return float(model.embedding.weight.detach().square().mean())

    free = size()
    assert free > 1.5
    assert size(margin_penalty=1.0) < 0.7 * free
    # A weight of 1 is too large; adapted, it falls until the variance is near 1.
    assert size(l2_penalty=1.0) < 0.6
    assert abs(size(l2_penalty=1.0, l2_adapted=True) - 1) < 0.3
