"""Score interpolation with a network of your own: here a bidirectional GRU on a Markov chain.

`cdcd.diffusion` brings the noise, the masks, the loss, the time warp and the sampler. A network is any
module that maps the stacked inputs of the paper's §4.1 to logits:

    python examples/your_own_network.py    # under a minute on one core
"""

import argparse

import torch
from torch import Tensor, nn

from cdcd import diffusion
from cdcd.languages import markov_chain

STATES, LENGTH, BATCH = 8, 12, 128
EMBEDDING = diffusion.EmbeddingConfig(dim=16)


class Network(nn.Module):
    """A bidirectional GRU over noisy, given and previously predicted embeddings."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = diffusion.Embedding(STATES, EMBEDDING)
        self.gru = nn.GRU(3 * EMBEDDING.dim + 2, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, STATES)

    def forward(
        self, x: Tensor, t: Tensor, *, c: Tensor, x0_prev: Tensor, is_noisy: Tensor
    ) -> Tensor:
        """Returns logits; `x` is noisy and scaled to unit variance, `c` are the given embeddings."""
        time = t.log()[:, None, None].expand(-1, x.shape[1], 1)
        h, _ = self.gru(torch.cat([x, c, x0_prev, is_noisy[..., None], time], dim=-1))
        return self.head(h)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Trains, samples, and returns the exact NLL of samples and of data in nats a token."""
    parser = argparse.ArgumentParser(description="Train a network of your own on a Markov chain.")
    parser.add_argument("--steps", type=int, default=1000, help="training steps")
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    chain = markov_chain(STATES, seed=1, concentration=0.5)

    # From here to the samples: the part that the README shows.
    network = Network()
    process = diffusion.ProcessConfig(t_min=0.3, t_max=30.0)
    warp = diffusion.TimeWarp(diffusion.WarpConfig(bins="log"), process)
    optimiser = torch.optim.Adam([*network.parameters(), *warp.parameters()], lr=3e-3)
    objective = diffusion.ObjectiveConfig()
    for step in range(steps):
        tokens = chain.sample(BATCH, LENGTH, generator=torch.default_generator)
        draws = diffusion.draw_for_step(
            (BATCH, LENGTH, EMBEDDING.dim), objective, warp.training_schedule(), seed=0, step=step
        )
        losses = diffusion.training_loss(
            network,
            network.embedding.table(),
            tokens,
            draws,
            objective=objective,
            embedding=EMBEDDING,
        )
        loss = losses.total / losses.num_noisy + warp.fitting_loss(draws.t, losses.per_sequence)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        warp.update_average()

    table = network.embedding.table().detach()
    given = torch.zeros(1000, LENGTH, dtype=torch.long)  # every sequence begins with token 0
    is_noisy = (torch.arange(LENGTH) > 0).expand(1000, LENGTH)
    estimator = diffusion.NetworkEstimator(
        network=network, table=table, tokens=given, is_noisy=is_noisy
    )
    sampling = diffusion.SamplingConfig(solver="heun", num_steps=20)
    noise = torch.randn(1000, LENGTH, EMBEDDING.dim)
    times = diffusion.time_grid(sampling, process, warp.schedule())
    samples = diffusion.sample(estimator, table, noise, times, sampling)
    tokens = torch.where(is_noisy, samples.tokens, given)

    data = chain.sample(20000, LENGTH, generator=torch.default_generator)
    data = data[data[:, 0] == 0][:1000]
    nlls = [-float(chain.log_prob(each).mean()) / LENGTH for each in (tokens, data)]
    print(f"exact NLL: samples {nlls[0]:.3f}, data {nlls[1]:.3f} nats a token")
    return nlls[0], nlls[1]


if __name__ == "__main__":
    main()
