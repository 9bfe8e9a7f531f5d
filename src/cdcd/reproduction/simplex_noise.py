"""Corruption on the simplex beside that of embeddings (App. B.3): how often the nearest token is wrong.

Tokens are independent and uniform. So the largest component of a vector on the simplex, and the nearest
embedding, are the tokens that are the most probable given the vector: no network can do better, and the
exact posterior is known. Noise levels of the two processes are compared by

- the distance that noise moves a vector, in distances between two tokens (root mean squares);
- the uncertainty that it leaves: the mean entropy of the exact posterior, as a share of ln V.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.embedding import nearest_token, normalise_rows
from cdcd.diffusion.process import add_noise
from cdcd.diffusion.simplex import SimplexProcess, shares
from cdcd.evaluation.plots import new_figure
from cdcd.seeding import generator_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VOCABULARIES = (16, 64, 256, 1024, 4096, 8192)
DIM = 256
"""Dimension of the embeddings, the paper's; they are uniformly distributed on the sphere."""
NUM_POSITIONS, NUM_POSTERIORS = 1000, 100
"""Positions that are corrupted, and those of them whose exact posterior is computed."""
NUM_LEVELS = 10
PROCESSES = ("simplex, a = 1/V", "simplex, a = 1", "Gaussian")
PANELS = (
    ("distance", "distance moved / distance of two tokens", (0, 5), PROCESSES[::2]),
    ("t", "time t of the simplex process", (0, 1), PROCESSES[:2]),
    ("uncertainty", "uncertainty of the exact posterior / ln V", (0, 1), PROCESSES),
)
"""Comparable noise: what the axis is, its label and range, and the processes that are drawn."""
STYLES: dict[str, str] = dict(zip(PROCESSES, ("-", ":", "--"), strict=True))
Curve = list[dict[str, float]]


def measure_noise(vocabularies: Sequence[int] = VOCABULARIES) -> dict[str, dict[str, Curve]]:
    """Returns the measures of corrupted tokens by process, vocabulary and noise level."""
    return {
        process: {str(v): list(_curve(process, v)) for v in vocabularies} for process in PROCESSES
    }


def _curve(process: str, vocab_size: int) -> Iterator[dict[str, float]]:
    for level in range(NUM_LEVELS):
        fraction, generator = level / (NUM_LEVELS - 1), generator_for(process, vocab_size, level)
        tokens = torch.randint(vocab_size, (NUM_POSITIONS,), generator=generator)
        if process == "Gaussian":
            # Around the level at which tokens are lost.
            t = math.sqrt(DIM / (2 * math.log(vocab_size))) * 0.3 * 15**fraction
            yield corrupt_embeddings(tokens, vocab_size, t, generator)
        else:
            a = 1.0 if process == "simplex, a = 1" else 1 / vocab_size
            yield corrupt_shares(tokens, vocab_size, a, 0.03 * 100**fraction, generator)


def corrupt_shares(
    tokens: Int[Tensor, " positions"],
    vocab_size: int,
    concentration: float,
    t: float,
    generator: torch.Generator,
) -> dict[str, float]:
    """Measures the corruption of tokens on the simplex."""
    process = SimplexProcess(concentration)
    levels = torch.full((len(tokens),), t, dtype=torch.float64)
    log_y = process.add_noise(tokens[:, None], vocab_size, levels, generator=generator)
    one_hot = torch.nn.functional.one_hot(tokens, vocab_size)
    moved = (shares(log_y)[:, 0] - one_hot).square().sum(-1).mean()
    few = slice(NUM_POSTERIORS)
    posterior = process.log_likelihood_ratio(log_y[few], levels[few])[:, 0].log_softmax(-1)
    return _measures(t, log_y[:, 0].argmax(-1) != tokens, moved / 2, posterior)


def corrupt_embeddings(
    tokens: Int[Tensor, " positions"], vocab_size: int, t: float, generator: torch.Generator
) -> dict[str, float]:
    """Measures the corruption of embedded tokens by Gaussian noise."""
    table = normalise_rows(torch.randn(vocab_size, DIM, generator=generator))
    x0, levels = table[tokens], torch.full((len(tokens),), t)
    eps = torch.randn(x0.shape, generator=generator)
    x = add_noise(x0[:, None], levels, eps[:, None])[:, 0]
    posterior = (x[:NUM_POSTERIORS] @ table.T / t**2).log_softmax(-1)
    moved = (x - x0).square().sum(-1).mean()
    return _measures(t, nearest_token(x, table) != tokens, moved / (2 * DIM), posterior)


def _measures(
    t: float, is_wrong: Tensor, moved: Tensor, posterior: Float[Tensor, "positions vocab"]
) -> dict[str, float]:
    entropy = -(posterior.exp() * posterior).sum(-1).mean()
    return {
        "t": t,
        "wrong": float(is_wrong.double().mean()),
        "distance": float(moved.sqrt()),
        "uncertainty": float(entropy) / math.log(posterior.shape[-1]),
    }


def draw_noise(curves: Mapping[str, Mapping[str, Curve]]) -> "Figure":
    """Draws the share of positions whose nearest token is wrong against comparable noise."""
    figure, axes = new_figure(1, len(PANELS), (13, 4.6))
    for axis, (measure, label, limits, processes) in zip(axes, PANELS, strict=True):
        for process in processes:
            for number, curve in enumerate(curves[process].values()):
                points = [(point[measure], point["wrong"]) for point in curve]
                axis.plot(*zip(*points, strict=True), STYLES[process], color=f"C{number}")
        axis.set(xlabel=label, xlim=limits, ylim=(0, 1))
    axes[0].set_ylabel("share of positions whose nearest token is wrong")
    for process in PROCESSES:
        axes[0].plot([], [], STYLES[process], color="black", label=process)
    for number, vocab_size in enumerate(curves[PROCESSES[0]]):
        axes[0].plot([], [], color=f"C{number}", label=f"V = {vocab_size}")
    figure.legend(loc="outside lower center", ncols=9, frameon=False)
    return figure
