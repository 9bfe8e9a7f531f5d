"""Floating-point operations of training steps and of sampling: exact counts of the matrix products.

A product of an (m × k) and a (k × p) matrix is 2·m·k·p operations. With b sequences of n tokens, N = b·n,
embedding dimension d, width w, L blocks, MLP ratio r, time units u and vocabulary V, one forward pass is

    input          2·N·(3d + 1)·w           the stacked x, c, x0_prev and mask
    time           4·b·u²                   the two layers of the timestep embedding
    modulation     2·b·u·2w·(2L + 1)        shift and scale of every conditional LayerNorm
    projections    8·N·w²·L                 queries, keys, values, output
    scores         4·N·n·w·L                q·k and the weighted sum of the values
    mlp            4·N·r·w²·L
    head           2·N·w·V

The last block's output and MLP and the head are computed only where logits are read: in training at the
noisy positions, M of the N (their number is fixed: N/2 + b/2 for random masks). This saves
2·(N − M)·(w² + 2·r·w²) and leaves 2·M·w·V of the head. An autoregressive model has no input, time and
modulation: its embedding is a lookup. Causal scores are counted in full, although half of them are masked.
Then

    step = forward + backward + self-conditioning + interpolation + Newton–Schulz

where backward is twice the forward pass (less the gradient of the noise level, which is not computed),
self-conditioning is one more forward pass of its share of the rows, interpolation is softmax·E of these
rows' noisy positions (2·V·d each), and Newton–Schulz is the iteration of Muon. An evaluation in sampling
is a forward pass and an interpolation.

Everything else is left out: softmax, LayerNorm, GELU, rotary positions, cross-entropy, noise, clipping,
Adam, moving average, warp and lookups of embeddings, as well as the scores that a fused attention computes
once more in its backward pass.
"""

from cdcd.config import RunConfig
from cdcd.diffusion.objective import self_conditioned_rows
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.training.tasks import room_for

Flops = dict[str, int]

NEWTON_SCHULZ_STEPS = 5
"""Iterations of `orthogonalise`; a test compares the count with what is executed."""


def product(rows: int, inner: int, columns: int) -> int:
    """Returns the operations of one matrix product."""
    return 2 * rows * inner * columns


def forward_flops(config: RunConfig, vocab_size: int, rows: int, read: int | None = None) -> Flops:
    """Counts one pass of the network over `rows` sequences, part by part.

    Logits are read at `read` positions, by default at all. Causal scores are counted in full.
    """
    network, length = config.network, config.data.length
    width, blocks, units = network.width, network.num_blocks, network.time_units
    positions = rows * length
    read = positions if read is None else read
    parts = {"input": 0, "time": 0, "modulation": 0}
    if config.model == "diffusion":
        parts = {
            "input": product(positions, 3 * config.embedding.dim + 1, width),
            "time": _first_time_layer(config, rows) + product(rows, units, units),
            "modulation": product(rows, units, 2 * width) * (2 * blocks + 1),
        }
    in_mlps = (blocks - 1) * positions + read
    return parts | {
        "projections": blocks * product(positions, width, 4 * width)
        - product(positions - read, width, width),
        "scores": blocks * rows * 2 * product(length, width, length),
        "mlp": 2 * product(in_mlps, width, network.mlp_ratio * width),
        "head": product(read, width, vocab_size),
    }


def _first_time_layer(config: RunConfig, rows: int) -> int:
    units = config.network.time_units
    return product(rows, 2 * (units // 2), units)


def interpolation_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """Counts softmax·E at `read` positions: the expected embedding (§3.1)."""
    return product(read, vocab_size, config.embedding.dim)


def clamping_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """Counts the search for the nearest embedding where predictions are clamped (§3.2)."""
    return interpolation_flops(config, vocab_size, read) if config.embedding.clamp else 0


def backward_flops(config: RunConfig, vocab_size: int, rows: int, read: int) -> int:
    """Counts the gradients of inputs and of weights: twice the forward pass, less the noise level's."""
    if _matches_scores(config) and config.embedding.clamp:
        # No gradient passes the choice of the nearest embedding.
        return 0
    forward = forward_flops(config, vocab_size, rows, read)
    saved = 0
    if config.model == "diffusion" and config.network.time_input:
        saved = _first_time_layer(config, rows)
    elif config.model == "diffusion":
        # Ones replace the time: no gradient reaches its MLP, nor the input of a modulation.
        saved = 2 * forward["time"] + forward["modulation"]
    return 2 * sum(forward.values()) - saved


def _loss_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """Counts the interpolation in the loss of score matching, with gradients unless clamped."""
    if not _matches_scores(config):
        return 0
    passes = 2 if config.embedding.clamp else 3
    return passes * interpolation_flops(config, vocab_size, read)


def _matches_scores(config: RunConfig) -> bool:
    return config.model == "diffusion" and config.objective.loss == "score_matching"


def num_self_conditioned(config: RunConfig) -> int:
    """Counts the rows of a batch that get a first prediction."""
    if config.model == "autoregressive" or not config.objective.self_conditioning:
        return 0
    share = config.objective.self_conditioned_share
    return len(self_conditioned_rows(config.training.batch_size, share))


def _newton_schulz_flops(config: RunConfig) -> int:
    """Counts Muon's iterations over the blocks' matrices: X'X, its square, and X times their sum."""
    if config.training.optimiser != "muon":
        return 0
    network = config.network
    width, hidden = network.width, network.mlp_ratio * network.width
    shapes = [(3 * width, width), (width, width), (hidden, width), (width, hidden)]
    if config.model == "diffusion":
        shapes += [(2 * width, network.time_units)] * 2
    each = (
        2 * product(min(shape), max(shape), min(shape)) + product(*[min(shape)] * 3)
        for shape in shapes
    )
    return NEWTON_SCHULZ_STEPS * network.num_blocks * sum(each)


def step_flops(config: RunConfig, vocab_size: int) -> Flops:
    """Counts everything that a training step executes; `total` is the sum of the other lines."""
    rows, again = config.training.batch_size, num_self_conditioned(config)
    read, read_again = num_read(config)
    lines = {
        "forward": sum(forward_flops(config, vocab_size, rows, read).values()),
        "backward": backward_flops(config, vocab_size, rows, read),
        "self_conditioning": sum(forward_flops(config, vocab_size, again, read_again).values()),
        "interpolation": interpolation_flops(config, vocab_size, read_again)
        + clamping_flops(config, vocab_size, read_again)
        + _loss_flops(config, vocab_size, read),
        "newton_schulz": _newton_schulz_flops(config),
    }
    return lines | {"total": sum(lines.values())}


def num_read(config: RunConfig) -> tuple[int, int]:
    """Counts the positions of a batch that get logits: in training, and in the first predictions."""
    rows, length = config.training.batch_size, config.data.length
    if config.model == "autoregressive":
        return rows * length, 0
    each = rows // config.training.accumulate
    parts = [room_for(config.objective, each, length, first) for first in range(0, rows, each)]
    read, again = (sum(column) for column in zip(*parts, strict=True))
    return read, again if num_self_conditioned(config) else 0


def sampling_flops(
    config: RunConfig, vocab_size: int, rows: int, settings: SamplingConfig, *, guided: bool
) -> int:
    """Counts a whole batch of samples; guidance calls the network twice at each evaluation."""
    read = rows * config.data.length
    interpolation = interpolation_flops(config, vocab_size, read)
    evaluation = sum(forward_flops(config, vocab_size, rows).values()) + interpolation
    evaluation += clamping_flops(config, vocab_size, read)
    projected = settings.renormalise > config.embedding.renormalise or (
        settings.clamp > config.embedding.clamp
    )
    if settings.softmax_temperature != 1.0 or settings.nucleus < 1.0 or projected:
        # The shaped prediction is interpolated beside the plain one, which is fed back.
        evaluation += interpolation * (1 + (settings.clamp or config.embedding.clamp))
    total = evaluation * settings.num_evaluations * (2 if guided else 1)
    return total + (interpolation if settings.final_prediction == "nearest" else 0)


def decoding_flops(config: RunConfig, vocab_size: int, rows: int, num_given: int = 0) -> int:
    """Counts a batch decoded token by token with a cache: one pass in all, logits where one is drawn.

    Every query sees the whole cache, as in a causal pass that is counted in full.
    """
    num_drawn = rows * (config.data.length - num_given)
    parts = forward_flops(config, vocab_size, rows)
    return (
        sum(parts.values()) - parts["head"] + product(num_drawn, config.network.width, vocab_size)
    )
