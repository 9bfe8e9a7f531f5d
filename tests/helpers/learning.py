"""The Trainer's step in its plainest form, on a Markov chain."""

import torch

from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig, training_loss
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.warping import TimeWarp, WarpConfig
from cdcd.languages import MarkovChain, markov_chain
from cdcd.networks.diffusion_text import DiffusionTextNetwork, NetworkConfig
from cdcd.seeding import generator_for
from cdcd.training.optimiser import make_optimiser

LENGTH, STATES = 12, 8
PROCESS = ProcessConfig(t_min=0.3, t_max=30.0)
CPU = torch.device("cpu")


def train(
    steps: int,
    *,
    embedding: EmbeddingConfig,
    objective: ObjectiveConfig,
    process: ProcessConfig = PROCESS,
    batch: int = 128,
    num_blocks: int = 2,
) -> tuple[DiffusionTextNetwork, MarkovChain]:
    """The Trainer's step in its plainest form."""
    chain = markov_chain(STATES, seed=1, concentration=0.5)
    torch.manual_seed(0)
    size = NetworkConfig(num_blocks=num_blocks, width=32, num_heads=2, time_units=32)
    model = DiffusionTextNetwork(size, embedding, process, vocab_size=STATES, length=LENGTH)
    warp = TimeWarp(WarpConfig(bins="log", num_bins=30, average_decay=0.9), process)
    optimiser = make_optimiser(model, (0.9, 0.999), momentum=0.9)
    warp_adam = torch.optim.Adam(warp.parameters(), lr=0.02)
    for step in range(steps):
        optimiser.set_rate(1e-2 * min(1.0, 3 * (1 - step / steps)))
        generator = generator_for("learning", step)
        tokens = chain.sample(batch, LENGTH, generator=generator)
        shape = (batch, LENGTH, embedding.dim)
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
        optimiser.step()
        warp.fitting_loss(draws.t, losses.per_sequence).backward()
        warp_adam.step()
        warp_adam.zero_grad()
        warp.update_average()
    return model, chain
