"""The embedding table (§3.2): free parameters, L2-normalised and scaled by sqrt(d) wherever they are used.

Noising, conditioning, self-conditioning, interpolation, clamping and the nearest token all use the one
tensor that `Embedding.table` returns. Mixing raw and normalised rows gives a model that trains well
and samples garbage.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.settings import Bounds, Length, Settings, Weight


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Settings, section="embedding"):
    """The embedding table, and the projection of predictions back to it."""

    dim: Length = 256
    """Dimension d of the embedding space in which the noise is added."""
    init_scale: Annotated[float, Bounds(1e-9, 1_000)] = 0.001
    """Standard deviation of the initial parameters (§6.3: large values hurt)."""
    normalise: bool = True
    """L2-normalise every row. Without it the rows are used as they are: set a penalty (App. B.1)."""
    l2_penalty: Weight = 0.0
    """Weight of the mean squared component of the table in the loss (App. B.1, a negative result)."""
    l2_adapted: bool = False
    """Adapt the weight of the L2 penalty, `l2_penalty` at the start, until components have unit variance."""
    margin_penalty: Weight = 0.0
    """Weight of the mean of max(|component| − 1, 0)² in the loss (App. B.1)."""
    renormalise: bool = False
    """Bring predictions x0_hat back to the sphere, in training and sampling (§3.2)."""
    clamp: bool = False
    """Replace predictions x0_hat by the nearest embedding, in training and sampling (§3.2)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l2_adapted and not self.l2_penalty:
            raise ValueError(
                "embedding.l2_adapted starts from embedding.l2_penalty, which is 0.0: set it above 0"
            )

    @property
    def is_penalised(self) -> bool:
        """Adds a penalty to the loss."""
        return bool(self.l2_penalty or self.margin_penalty)


class Embedding(nn.Module):
    """The learnt table of token embeddings."""

    log_l2_weight: nn.Parameter | None
    """Logarithm of the L2 penalty's weight, where it is adapted."""

    def __init__(self, vocab_size: int, config: EmbeddingConfig) -> None:
        super().__init__()
        self.normalise = config.normalise
        self.weight = nn.Parameter(torch.randn(vocab_size, config.dim) * config.init_scale)
        self.register_parameter("log_l2_weight", None)
        if config.l2_adapted:
            self.log_l2_weight = nn.Parameter(torch.tensor([math.log(config.l2_penalty)]))

    def table(self) -> Float[Tensor, "vocab embed"]:
        """Returns all embeddings as they are used everywhere; gradients flow through the normalisation."""
        return normalise_rows(self.weight) if self.normalise else self.weight


def normalise_rows(x: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch embed"]:
    """Scales each vector to length sqrt(d), so that its components have unit variance (§6.1)."""
    return math.sqrt(x.shape[-1]) * F.normalize(x, dim=-1)


def penalty(
    table: Float[Tensor, "vocab embed"],
    config: EmbeddingConfig,
    log_l2_weight: Float[Tensor, " 1"] | None = None,
) -> Float[Tensor, ""]:
    """Returns the penalties on a table that is not normalised (App. B.1): L2, and beyond the margin.

    An adapted weight λ is a Lagrange multiplier (Rezende & Viola 2018): its gradient, d/d ln λ = 1 − mean
    square, lets λ grow where the components vary by more than 1; the penalty's value is λ·mean square.

    NOTE(paper): the margin of 1 is that of Donahue et al. (2019), and the constraint is on the mean of all
    components; the paper does not give either.
    """
    mean_square = table.square().mean()
    total = config.l2_penalty * mean_square
    if log_l2_weight is not None:
        excess = mean_square.detach() - 1
        ascent = (log_l2_weight.detach() - log_l2_weight).sum() * excess
        total = log_l2_weight.detach().exp().sum() * mean_square + ascent
    if config.margin_penalty:
        total = total + config.margin_penalty * (table.abs() - 1).relu().square().mean()
    return total


def nearest_token(
    x: Float[Tensor, "*batch embed"], table: Float[Tensor, "vocab embed"]
) -> Int[Tensor, "*batch"]:
    """Returns the token whose embedding is nearest in the Euclidean sense."""
    # |x - e|² = |x|² - 2 x·e + |e|², and |x|² is the same for all tokens.
    return (x @ table.T - table.square().sum(-1) / 2).argmax(-1)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The change of a prediction x0_hat before the score is taken from it (§3.2)."""

    renormalise: bool = False
    clamp: bool = False

    def __call__(
        self, x0_hat: Float[Tensor, "*batch embed"], table: Float[Tensor, "vocab embed"]
    ) -> Float[Tensor, "*batch embed"]:
        if self.renormalise:
            x0_hat = normalise_rows(x0_hat)
        if self.clamp:
            x0_hat = F.embedding(nearest_token(x0_hat, table), table)
        return x0_hat
