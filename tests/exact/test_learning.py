"""A small network learns what the oracle knows, and nothing that it does not know."""

from dataclasses import replace

import pytest
import torch
from learning import CPU, LENGTH, PROCESS, train
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig, training_loss
from cdcd.diffusion.process import add_noise
from cdcd.diffusion.warping import TimeWarp, WarpConfig
from cdcd.languages import MarkovOracle
from cdcd.seeding import generator_for


def cross_entropies(logits: Tensor, tokens: Tensor, is_noisy: Tensor) -> Tensor:
    """Per-sequence means over noisy positions."""
    each = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return (each.view_as(tokens) * is_noisy).sum(1) / is_noisy.sum(1)


@pytest.mark.slow
def test_network_comes_near_the_oracle_and_never_beats_it():
    """At every noise level: within 0.06 nats of the exact cross-entropy, and not below it."""
    embedding = EmbeddingConfig(dim=16, init_scale=0.1)
    objective = ObjectiveConfig()
    model, chain = train(600, embedding=embedding, objective=objective)
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
