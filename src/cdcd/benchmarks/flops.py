"""Floating-point operations of a training step and of sampling: the matrix products, counted exactly.

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
noisy positions, M of the N (their number is fixed: N/2 + b/2 for random masks), which takes
2·(N − M)·(w² + 2·r·w²) off and leaves 2·M·w·V of the head. An autoregressive model has no input, time and
modulation; its embedding is a lookup. Causal scores are counted in full, although half of them are masked.
Then

    step = forward + backward + self-conditioning + interpolation + Newton–Schulz

where backward is twice the forward pass (less the gradient of the noise level, which nobody needs),
self-conditioning is one more forward pass of its share of the rows, interpolation is softmax·E of these
rows' noisy positions (2·V·d each), and Newton–Schulz is Muon's. A sampler's evaluation is a forward pass
and an interpolation.

Not counted: what is not a matrix product (softmax, LayerNorm, GELU, rotary positions, cross-entropy,
noise, clipping, Adam, moving average, warp, lookups of embeddings), and the scores that a fused attention
computes once more in its backward pass.
"""

from cdcd.config import RunConfig
from cdcd.diffusion.objective import self_conditioned_rows
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.training.tasks import room_for

Flops = dict[str, int]

NEWTON_SCHULZ_STEPS = 5
"""Iterations of `orthogonalise`; a test compares the count with what is executed."""


def product(rows: int, inner: int, columns: int) -> int:
    """Operations of one matrix product."""
    return 2 * rows * inner * columns


def input_flops(config: RunConfig, rows: int) -> int:
    """The layer over the stacked input sequences (§4.1)."""
    if config.model == "autoregressive":
        return 0
    return product(rows * config.data.length, 3 * config.embedding.dim + 1, config.network.width)


def time_flops(config: RunConfig, rows: int) -> int:
    """The timestep embedding's MLP."""
    if config.model == "autoregressive":
        return 0
    return _first_time_layer(config, rows) + product(rows, *[config.network.time_units] * 2)


def _first_time_layer(config: RunConfig, rows: int) -> int:
    units = config.network.time_units
    return product(rows, 2 * (units // 2), units)


def modulation_flops(config: RunConfig, rows: int) -> int:
    """Shift and scale of every conditional LayerNorm (§4.2)."""
    if config.model == "autoregressive":
        return 0
    network = config.network
    each = product(rows, network.time_units, 2 * network.width)
    return each * (2 * network.num_blocks + 1)


def projection_flops(config: RunConfig, rows: int, read: int) -> int:
    """Queries, keys, values and output of every attention; the last output where it is read."""
    width, positions = config.network.width, rows * config.data.length
    every = config.network.num_blocks * product(positions, width, 4 * width)
    return every - product(positions - read, width, width)


def score_flops(config: RunConfig, rows: int) -> int:
    """Every query with every key, and the weighted sum of the values; causal ones in full."""
    length, network = config.data.length, config.network
    return network.num_blocks * rows * 2 * product(length, network.width, length)


def mlp_flops(config: RunConfig, rows: int, read: int) -> int:
    """Both layers of every MLP; of the last one where it is read."""
    network = config.network
    positions = (network.num_blocks - 1) * rows * config.data.length + read
    return 2 * product(positions, network.width, network.mlp_ratio * network.width)


def head_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """Logits at the positions that are read."""
    return product(read, config.network.width, vocab_size)


def interpolation_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """softmax·E: the expected embedding at so many positions (§3.1)."""
    return product(read, vocab_size, config.embedding.dim)


def clamping_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """The nearest embedding of each prediction, where predictions are clamped (§3.2)."""
    return interpolation_flops(config, vocab_size, read) if config.embedding.clamp else 0


def forward_flops(config: RunConfig, vocab_size: int, rows: int, read: int | None = None) -> Flops:
    """One pass of the network over `rows` sequences, part by part; logits are read at `read` positions."""
    read = rows * config.data.length if read is None else read
    return {
        "input": input_flops(config, rows),
        "time": time_flops(config, rows),
        "modulation": modulation_flops(config, rows),
        "projections": projection_flops(config, rows, read),
        "scores": score_flops(config, rows),
        "mlp": mlp_flops(config, rows, read),
        "head": head_flops(config, vocab_size, read),
    }


def backward_flops(config: RunConfig, vocab_size: int, rows: int, read: int) -> int:
    """Twice the forward pass: gradients of inputs and of weights; none of the noise level."""
    if _scores_are_matched(config) and config.embedding.clamp:
        # No gradient comes through the choice of the nearest embedding.
        return 0
    forward = forward_flops(config, vocab_size, rows, read)
    saved = 0
    if config.model == "diffusion" and config.network.time_input:
        saved = _first_time_layer(config, rows)
    elif config.model == "diffusion":
        # The time is replaced by ones: no gradient reaches its MLP, nor the input of a modulation.
        saved = 2 * forward["time"] + forward["modulation"]
    return 2 * sum(forward.values()) - saved


def loss_flops(config: RunConfig, vocab_size: int, read: int) -> int:
    """Score matching interpolates in the loss too, with gradients unless predictions are clamped."""
    if not _scores_are_matched(config):
        return 0
    passes = 2 if config.embedding.clamp else 3
    return passes * interpolation_flops(config, vocab_size, read)


def _scores_are_matched(config: RunConfig) -> bool:
    return config.model == "diffusion" and config.objective.loss == "score_matching"


def num_self_conditioned(config: RunConfig) -> int:
    """Rows of a batch that get a first prediction."""
    if config.model == "autoregressive" or not config.objective.self_conditioning:
        return 0
    share = config.objective.self_conditioned_share
    return len(self_conditioned_rows(config.training.batch_size, share))


def newton_schulz_flops(config: RunConfig) -> int:
    """Muon's iterations over the blocks' matrices: X'X, its square, and X times their sum."""
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
    """Everything executed in one training step; `total` is the sum of the other lines."""
    rows, again = config.training.batch_size, num_self_conditioned(config)
    read, read_again = num_read(config)
    lines = {
        "forward": sum(forward_flops(config, vocab_size, rows, read).values()),
        "backward": backward_flops(config, vocab_size, rows, read),
        "self_conditioning": sum(forward_flops(config, vocab_size, again, read_again).values()),
        "interpolation": interpolation_flops(config, vocab_size, read_again)
        + clamping_flops(config, vocab_size, read_again)
        + loss_flops(config, vocab_size, read),
        "newton_schulz": newton_schulz_flops(config),
    }
    return lines | {"total": sum(lines.values())}


def num_read(config: RunConfig) -> tuple[int, int]:
    """Positions of a batch at which logits are computed: in training, and in the first predictions."""
    rows, length = config.training.batch_size, config.data.length
    if config.model == "autoregressive":
        return rows * length, 0
    each = rows // config.training.accumulate
    parts = [room_for(config.objective, each, length, first) for first in range(0, rows, each)]
    read, again = (sum(column) for column in zip(*parts, strict=True))
    return read, again if num_self_conditioned(config) else 0


def evaluation_flops(
    config: RunConfig, vocab_size: int, rows: int, settings: SamplingConfig
) -> int:
    """One call of the sampler's estimator: a pass of the network and its interpolation."""
    read = rows * config.data.length
    interpolation = interpolation_flops(config, vocab_size, read)
    clamping = clamping_flops(config, vocab_size, read)
    total = sum(forward_flops(config, vocab_size, rows).values()) + interpolation + clamping
    projected = settings.renormalise > config.embedding.renormalise or (
        settings.clamp > config.embedding.clamp
    )
    if settings.softmax_temperature != 1.0 or settings.nucleus < 1.0 or projected:
        # The shaped prediction is interpolated beside the plain one, which is fed back.
        total += interpolation * (1 + (settings.clamp or config.embedding.clamp))
    return total


def sampling_flops(
    config: RunConfig, vocab_size: int, rows: int, settings: SamplingConfig, *, guided: bool
) -> int:
    """A whole batch of samples; guidance calls the network twice at each evaluation."""
    each = evaluation_flops(config, vocab_size, rows, settings)
    total = each * settings.num_evaluations * (2 if guided else 1)
    if settings.final_prediction == "nearest":
        total += interpolation_flops(config, vocab_size, rows * config.data.length)
    return total


def decoding_flops(config: RunConfig, vocab_size: int, rows: int, num_given: int = 0) -> int:
    """A batch decoded token by token with a cache, whose whole room every query sees: one pass in all.

    Logits are computed only where a token is drawn.
    """
    forward = forward_flops(config, vocab_size, rows)
    length = config.data.length
    drawn = forward["head"] * (length - num_given) // length
    return sum(forward.values()) - forward["head"] + drawn
