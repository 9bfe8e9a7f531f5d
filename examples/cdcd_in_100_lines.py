"""Continuous diffusion for categorical data (arXiv:2211.15089) in 100 lines of PyTorch.

The language is a Markov chain, whose best possible predictions are known exactly (`MarkovOracle`). The
network learns the chain together with its own embeddings. Then it is compared with the oracle, and
its samples with the chain:

    python examples/cdcd_in_100_lines.py    # half a minute on one core
"""

import argparse
import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.languages import MarkovChain, MarkovOracle, markov_chain

STATES, LENGTH, DIM = 8, 12, 16  # size of the vocabulary, of a sequence and of an embedding
T_MIN, T_MAX = 0.3, 30.0  # noise levels; the paper has 1 and 300 for embeddings of 256
WIDTH, BATCH, BINS = 64, 128, 30


class Denoiser(nn.Module):
    """A bidirectional Transformer that predicts all tokens of a noisy sequence (§4)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(STATES, DIM))
        self.positions = nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        self.stack = nn.Linear(3 * DIM + 1 + 16, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), False)
        self.head = nn.Linear(WIDTH, STATES)

    def table(self) -> Tensor:
        """Returns the embeddings of all tokens, on a sphere of radius sqrt(d) (§3.2)."""
        return math.sqrt(DIM) * F.normalize(self.weight, dim=-1)

    def forward(self, x: Tensor, t: Tensor, c: Tensor, is_noisy: Tensor, x0_prev: Tensor) -> Tensor:
        """Returns logits from the stacked inputs of §4.1 and §4.3."""
        noisy = is_noisy[..., None].float()
        x = x / (t[:, None, None] ** 2 + 1).sqrt()  # unit variance at every noise level (§6.1)
        phase = t.log()[:, None] * torch.linspace(0.25, 2, 8)
        time = torch.cat([phase.sin(), phase.cos()], -1)[:, None].expand(-1, LENGTH, -1)
        stacked = torch.cat([noisy * x, (1 - noisy) * c, noisy * x0_prev, noisy, time], -1)
        return self.head(self.blocks(self.stack(stacked) + self.positions))


def interpolate(at: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Returns the values of the piecewise-linear function through the points (xs, ys)."""
    n = torch.searchsorted(xs.detach(), at.contiguous()).clamp(1, len(xs) - 1)
    return torch.lerp(ys[n - 1], ys[n], (at - xs[n - 1]) / (xs[n] - xs[n - 1]))


class TimeWarp(nn.Module):
    """The loss as a function F̃ of the noise level: monotone, piecewise linear, learnt (§3.3, App. A)."""

    def __init__(self) -> None:
        super().__init__()
        self.l_t = nn.Parameter(torch.full((BINS,), -math.log(BINS)))
        self.l_u = nn.Parameter(torch.full((BINS,), -math.log(BINS)))

    def edges(self) -> tuple[Tensor, Tensor]:
        """Returns the points of F̃; the first coordinate is ln t, scaled to [0, 1]."""
        widths_t, widths_u = self.l_t.softmax(0) + 1e-5, self.l_u.exp() + 1e-5
        edges_t = (widths_t / widths_t.sum()).cumsum(0)
        return F.pad(edges_t, (1, 0)), F.pad(widths_u.cumsum(0), (1, 0))

    def noise_levels(self, u: Tensor) -> Tensor:
        """Returns t = F⁻¹(u), where F is F̃ normalised: the loss is linear in u."""
        edges_t, edges_u = (edges.detach() for edges in self.edges())
        return T_MIN * (T_MAX / T_MIN) ** interpolate(u, edges_u / edges_u[-1], edges_t).clamp(0, 1)

    def fitting_loss(self, t: Tensor, losses: Tensor) -> Tensor:
        """Returns the squared error of F̃, weighted by 1 / density of the drawn noise levels."""
        edges_t, edges_u = self.edges()
        r = (t / T_MIN).log() / math.log(T_MAX / T_MIN)
        n = torch.searchsorted(edges_t.detach(), r).clamp(1, BINS)
        weights = ((edges_t[n] - edges_t[n - 1]) / (edges_u[n] - edges_u[n - 1])).detach()
        weights = (weights / weights.mean()).clamp(max=10)
        return (weights * (interpolate(r, edges_t, edges_u) - losses) ** 2).mean()


def draw_masks(count: int) -> Tensor:
    """Returns masks of the noisy tokens: behind a prefix or at random positions (§4.1)."""
    num_given = torch.randint(LENGTH, (count, 1))
    scattered = torch.rand(count, LENGTH).argsort(1)
    return torch.where(torch.rand(count, 1) < 0.5, torch.arange(LENGTH), scattered) >= num_given


def mean_cross_entropies(logits: Tensor, tokens: Tensor, is_noisy: Tensor) -> Tensor:
    """Returns the mean over the noisy tokens of each sequence."""
    nll = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    return (nll * is_noisy).sum(1) / is_noisy.sum(1)


def predict(model: Denoiser, x0: Tensor, t: Tensor, eps: Tensor, is_noisy: Tensor) -> Tensor:
    """Returns logits at noise levels t, with self-conditioning in every second row (§4.3)."""
    x, x0_prev, half = x0 + t[:, None, None] * eps, torch.zeros_like(x0), slice(None, None, 2)
    with torch.no_grad():
        logits = model(x[half], t[half], x0[half], is_noisy[half], x0_prev[half])
        x0_prev[half] = logits.softmax(-1) @ model.table()
    return model(x, t, x0, is_noisy, x0_prev)


def train(model: Denoiser, warp: TimeWarp, chain: MarkovChain, steps: int) -> None:
    """Trains the network and its embeddings by cross-entropy (§3.1), and fits the warp beside them."""
    adam = torch.optim.Adam(model.parameters(), fused=True)
    warp_adam = torch.optim.Adam(warp.parameters(), lr=0.02)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 5e-3 * min(1.0, 3 * (1 - step / steps))
        tokens = chain.sample(BATCH, LENGTH, generator=torch.default_generator)
        is_noisy, eps = draw_masks(BATCH), torch.randn(BATCH, LENGTH, DIM)
        u = (torch.randperm(BATCH) + torch.rand(1)) / BATCH  # spread evenly (§6.1)
        t = warp.noise_levels(u)
        logits = predict(model, model.table()[tokens], t, eps, is_noisy)
        losses = mean_cross_entropies(logits, tokens, is_noisy)
        (losses.mean() + warp.fitting_loss(t, losses.detach())).backward()
        for optimiser in (adam, warp_adam):
            optimiser.step()
            optimiser.zero_grad()


@torch.no_grad()
def sample(model: Denoiser, warp: TimeWarp, count: int, num_steps: int) -> Tensor:
    """Returns tokens at the end of the probability flow ODE: Euler steps, even in u (§2.1, App. A.5)."""
    c, is_noisy = torch.zeros(count, LENGTH, DIM), torch.ones(count, LENGTH, dtype=torch.bool)
    x, x0_hat = T_MAX * torch.randn(count, LENGTH, DIM), torch.zeros(count, LENGTH, DIM)
    times = warp.noise_levels(torch.linspace(1, 0, num_steps + 1))
    for t, t_next in pairwise(times):
        logits = model(x, t.expand(count), c, is_noisy, x0_hat)
        x0_hat = logits.softmax(-1) @ model.table()
        score = (x0_hat - x) / t**2  # score interpolation (§3.1)
        x = x + (t_next - t) * -t * score  # dx/dt = −t · score
    return model(x, times[-1:].expand(count), c, is_noisy, x0_hat).argmax(-1)


# That was the paper. What follows measures how close the network comes to what is possible.


@torch.no_grad()
def distances_from_oracle(model: Denoiser, chain: MarkovChain, count: int = 1000) -> list[float]:
    """Prints the cross-entropies at some noise levels and returns by how much the network's is larger."""
    table, distances = model.table(), []
    tokens = chain.sample(count, LENGTH, generator=torch.default_generator)
    is_noisy, eps = draw_masks(count), torch.randn(count, LENGTH, DIM)
    oracle = MarkovOracle(chain, table, tokens, is_noisy)
    print("noise level    oracle   network   (cross-entropy of the noisy tokens, nats)")
    for level in (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0):
        t = torch.full((count,), level)
        logits = [
            oracle(table[tokens] + level * eps, t).logits,
            predict(model, table[tokens], t, eps, is_noisy),
        ]
        best, ours = (float(mean_cross_entropies(each, tokens, is_noisy).mean()) for each in logits)
        print(f"{level:11} {best:9.3f} {ours:9.3f}")
        distances.append(ours - best)
    return distances


def transition_frequencies(tokens: Tensor) -> Tensor:
    """Returns how often each token follows each other, as shares of all pairs."""
    pairs = tokens[:, :-1] * STATES + tokens[:, 1:]
    return torch.bincount(pairs.flatten(), minlength=STATES**2) / pairs.numel()


def compare_samples(samples: Tensor, chain: MarkovChain) -> tuple[float, float]:
    """Prints and returns the excess NLL of samples and their largest error of a transition frequency."""
    data = [chain.sample(len(samples), LENGTH, generator=torch.default_generator) for _ in "ab"]
    nlls = [-float(chain.log_prob(tokens).mean()) / LENGTH for tokens in (samples, data[0])]
    exact, other, ours = map(transition_frequencies, (*data, samples))
    errors = [float((each - exact).abs().max()) for each in (ours, other)]
    print(f"\nexact NLL: samples {nlls[0]:.3f}, data {nlls[1]:.3f} nats a token")
    print(f"transitions: samples differ by at most {errors[0]:.4f}, other data by {errors[1]:.4f}")
    return nlls[0] - nlls[1], errors[0]


def main(arguments: list[str] | None = None) -> tuple[list[float], float, float]:
    """Trains, compares, and returns the distances."""
    parser = argparse.ArgumentParser(description="Train CDCD on a Markov chain.")
    parser.add_argument("--steps", type=int, default=900, help="training steps")
    parser.add_argument("--sampling-steps", type=int, default=100, help="Euler steps")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    chain = markov_chain(STATES, seed=1, concentration=0.5)
    model, warp = Denoiser(), TimeWarp()
    train(model, warp, chain, options.steps)
    distances = distances_from_oracle(model, chain)
    return distances, *compare_samples(sample(model, warp, 1000, options.sampling_steps), chain)


if __name__ == "__main__":
    main()
