"""Score interpolation (§3.1): predicted probabilities interpolate the embeddings into a score estimate.

x0_hat = Σ_i p(token i | x, t) e_i,        score = (x0_hat − x) / t²
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cdcd.diffusion.logits import in_parts, take

HALF_SCALE = 256.0
"""Probabilities times this are in float16's range, and so are their products with embeddings."""


def probabilities(
    logits: Float[Tensor, "*batch vocab"], *, softmax_temperature: float = 1.0, nucleus: float = 1.0
) -> Float[Tensor, "*batch vocab"]:
    """Returns token probabilities, optionally sharpened and cut to the nucleus (§6.4), in `logits`' dtype."""
    if softmax_temperature != 1.0:
        logits = logits / softmax_temperature
    probs = torch.softmax(logits, dim=-1)
    return truncate_to_nucleus(probs, nucleus) if nucleus < 1.0 else probs


def truncate_to_nucleus(
    probs: Float[Tensor, "*batch vocab"], nucleus: float
) -> Float[Tensor, "*batch vocab"]:
    """Keeps the smallest set of most likely tokens whose mass reaches `nucleus`, and renormalises."""
    ordered, order = probs.sort(dim=-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    kept = torch.where(mass_before < nucleus, ordered, 0.0)
    kept = torch.zeros_like(probs).scatter(-1, order, kept)
    return kept / kept.sum(-1, keepdim=True)


def interpolate(
    probs: Float[Tensor, "*batch vocab"], table: Float[Tensor, "vocab embed"]
) -> Float[Tensor, "*batch embed"]:
    """Returns the expected embedding x0_hat under the predicted probabilities."""
    return probs @ table


def product_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype in which probabilities of bfloat16 logits are multiplied; CPUs multiply float16 slowly."""
    return torch.float32 if device.type == "cpu" else torch.float16


def expected_embedding(
    logits: Float[Tensor, "*batch vocab"],
    table: Float[Tensor, "vocab embed"],
    *,
    softmax_temperature: float = 1.0,
    nucleus: float = 1.0,
) -> Float[Tensor, "*batch embed"]:
    """Returns probabilities(logits)·E in the table's dtype, at half precision's speed for bfloat16 logits.

    Their probabilities are shaped in float32, some positions at a time. Where float16 is fast they are
    rounded to it, eight times as fine as bfloat16, after a factor that keeps small ones in its range.
    """
    shaped = partial(probabilities, softmax_temperature=softmax_temperature, nucleus=nucleus)
    if logits.dtype != torch.bfloat16:
        return interpolate(shaped(logits), table)
    rows = logits.reshape(-1, logits.shape[-1])
    factors = table.to(product_dtype(table.device))

    def scaled(part: Tensor) -> Tensor:
        return (HALF_SCALE * shaped(part.float())).to(factors.dtype) @ factors

    # Sorting for the nucleus needs much memory, compiled or not.
    x0_hat = in_parts(scaled, rows, even_compiled=nucleus < 1.0).to(table.dtype) / HALF_SCALE
    return x0_hat.view(*logits.shape[:-1], table.shape[-1])


def invert(
    probs: Float[Tensor, "positions vocab"], u: Float[Tensor, " positions"]
) -> Int[Tensor, " positions"]:
    """Returns the first token at which the distribution function exceeds `u`, a uniform number.

    Tokens without probability are left out of the sums, so that rounding cannot draw one.
    """
    cdf = torch.where(probs > 0, probs.double().cumsum(-1), 0.0)
    level = u.double()[:, None] * cdf.amax(-1, keepdim=True)
    # Where there are several largest values, argmax returns the first.
    return (cdf > level).to(torch.uint8).argmax(-1)


def drawn_embeddings(
    logits: Float[Tensor, "batch seq vocab"],
    u: Float[Tensor, "batch seq"],
    *,
    table: Float[Tensor, "vocab embed"],
    softmax_temperature: float = 1.0,
    nucleus: float = 1.0,
) -> Float[Tensor, "batch seq embed"]:
    """Returns the embedding of a token drawn at each position, some positions at a time."""

    def drawn(part: Tensor, level: Tensor) -> Tensor:
        part = part.to(torch.promote_types(part.dtype, torch.float32))
        shaped = probabilities(part, softmax_temperature=softmax_temperature, nucleus=nucleus)
        return table[invert(shaped, level)]

    rows = in_parts(drawn, logits.flatten(0, 1), u.flatten(), even_compiled=True)
    return rows.unflatten(0, u.shape)


def token_likelihoods(
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    table: Float[Tensor, "vocab embed"],
    positions: Int[Tensor, " predicted"] | None = None,
    *,
    most: float,
) -> Float[Tensor, "*positions vocab"]:
    """Returns ln N(x; e, t²) of each token's embedding e, up to a constant: x·e/t².

    At some positions of the flattened batch, or at all.
    All embeddings have the same norm. Where |e|²/t² would exceed `most`, so much takes its place: the
    likelihood is then that of a higher noise level, and its order of the tokens is kept.
    """
    precision = (1 / t**2).clamp(max=most / table.shape[1])
    scaled = x * precision[:, None, None]
    return (scaled if positions is None else take(scaled, positions)) @ table.T


def score(
    x0_hat: Float[Tensor, "batch seq embed"],
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
) -> Float[Tensor, "batch seq embed"]:
    """Returns the score of p_t at `x` that belongs to the prediction `x0_hat`."""
    return (x0_hat - x) / t[:, None, None] ** 2
