"""What a run takes on many GPUs: memory, communication, floating-point operations and days.

    python -m cdcd.benchmarks.memory --preset large

Parameters are counted on a model on the meta device, which needs no memory. The rest is arithmetic,
written out below, and an estimate: it says which strategy fits, not to the gigabyte what is used.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from cdcd.benchmarks.flops import step_flops
from cdcd.config import RunConfig
from cdcd.presets import TEXT, preset
from cdcd.training.build import build_model

PEAK = 790e12
"""bfloat16 operations a second that a large matrix product reaches on an H200."""
ROOM = 141e9
"""Bytes of an H200."""
FLOAT, HALF = 4, 2
"""Bytes of a number in float32, in which weights and optimiser are kept, and in bfloat16."""
GPUS = (8, 64, 256)
EFFICIENCIES = (0.3, 0.4, 0.54)
"""Shares of that peak; the last is what the base model reached on one GPU (`docs/benchmarks.md`, C)."""


@dataclass(frozen=True)
class Parameters:
    """How many weights a model has, and where."""

    blocks: int
    """In all Transformer blocks."""
    largest_block: int
    embedding: int
    """Table of token embeddings, a look-up without multiplications."""
    other: int
    """Input and output layer, timestep."""

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.other


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def count_parameters(config: RunConfig) -> Parameters:
    """Count the weights of a configuration's model; nothing is allocated."""
    with torch.device("meta"):
        model = build_model(config, config.data.vocab_size)
    blocks = [count(block) for block in model.blocks]
    embedding = count(model.embedding)
    other = count(model) - sum(blocks) - embedding
    return Parameters(sum(blocks), max(blocks), embedding, other)


@dataclass(frozen=True)
class Memory:
    """Bytes on each GPU."""

    parameters: float
    gradients: float
    moments: float
    average: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))


def memory(config: RunConfig, strategy: Literal["ddp", "fsdp"], ranks: int) -> Memory:
    """The peak of a training step, by what it is made of.

    Autocast's bfloat16 copies of the weights live from the forward to the backward pass, under both
    strategies. DDP keeps everything else on every rank. FSDP2 keeps a share of parameters, gradients, moments and
    average, and holds whole: what is outside of the blocks, two blocks (one used, one on its way),
    and, while the parts of a batch are accumulated, all gradients.
    """
    training, counted = config.training, count_parameters(config)
    share = 1 if strategy == "ddp" else ranks
    kept = FLOAT * counted.total / share
    gathered = gradients_gathered = 0.0
    if strategy == "fsdp":
        root = counted.embedding + counted.other
        gathered = FLOAT * (root + 2 * counted.largest_block)
        whole = counted.total if training.accumulate > 1 else root + 2 * counted.largest_block
        gradients_gathered = FLOAT * whole
    moments = 2 if training.optimiser == "adam" else 1
    sequences = training.batch_size / ranks / training.accumulate
    tokens = sequences * config.data.length
    return Memory(
        parameters=kept + gathered + HALF * (counted.blocks + counted.other),
        gradients=kept + gradients_gathered,
        moments=moments * kept,
        average=kept if training.average_decay else 0.0,
        activations=tokens * activation_bytes(config),
        # In bfloat16, of the noisy half of the positions, and their gradient.
        logits=tokens / 2 * config.data.vocab_size * 2 * HALF,
    )


def activation_bytes(config: RunConfig) -> float:
    """Bytes that the backward pass needs of each token, in all blocks, without recomputing any.

    In a block, in multiples of the width: the float32 residual stream at both LayerNorms (2 × 2 in
    bfloat16's size), their outputs (2), queries, keys and values (3), the same rotated (2), the
    attention's output (1), and the MLP's hidden layer before and after GELU (2 × ratio).
    """
    network = config.network
    widths = 4 + 2 + 3 + 2 + 1 + 2 * network.mlp_ratio
    inputs = FLOAT * 6 * config.embedding.dim
    return HALF * widths * network.width * network.num_blocks + inputs


def communication(config: RunConfig, strategy: Literal["ddp", "fsdp"], ranks: int) -> float:
    """Bytes that each GPU sends in a step.

    All-reducing n bytes sends 2n(ranks − 1)/ranks, gathering or scattering half of it. DDP reduces
    the gradients once. FSDP2 gathers the blocks in every pass of every part (the extra pass of
    self-conditioning, forward, backward), the rest once a part, and scatters the gradients once.
    """
    counted, training = count_parameters(config), config.training
    once = FLOAT * (ranks - 1) / ranks
    if strategy == "ddp":
        return 2 * once * counted.total
    extra = config.model == "diffusion" and config.objective.self_conditioning
    gathered = (3 if extra else 2) * counted.blocks + counted.embedding + counted.other
    return once * (training.accumulate * gathered + counted.total)


def flops_per_token(config: RunConfig) -> float:
    """Operations for a token of training."""
    tokens = config.training.batch_size * config.data.length
    return step_flops(config, config.data.vocab_size)["total"] / tokens


def days(config: RunConfig, gpus: int, efficiency: float) -> float:
    """How long a run takes where the GPUs reach a share of their peak."""
    training = config.training
    tokens = training.steps * training.batch_size * config.data.length
    return tokens * flops_per_token(config) / (gpus * PEAK * efficiency) / 86_400


def with_ranks(config: RunConfig, ranks: int, *, at_once: int) -> RunConfig:
    """The configuration with as many parts as keep at most `at_once` sequences on a GPU."""
    accumulate = max(1, config.training.batch_size // ranks // at_once)
    training = dataclasses.replace(config.training, accumulate=accumulate)
    return dataclasses.replace(config, training=training)


def table(config: RunConfig, *, at_once: int) -> str:
    """Memory, communication and days in Markdown."""
    counted = count_parameters(config)
    training = config.training
    lines = [
        f"{counted.total / 1e9:.3f}B parameters (blocks {counted.blocks / 1e9:.3f}B, embedding table "
        f"{counted.embedding / 1e6:.1f}M, other {counted.other / 1e6:.1f}M); "
        f"{training.batch_size * config.data.length:,} tokens a step; "
        f"{flops_per_token(config) / 1e9:.2f} GFLOP a token; "
        f"at most {at_once} sequences on a GPU at once.",
        "",
        "| GPUs | strategy | accumulate | parameters | gradients | moments | average | activations | "
        "logits | sum, GB | sent a step, GB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for gpus in GPUS:
        spread = with_ranks(config, gpus, at_once=at_once)
        for strategy in ("ddp", "fsdp"):
            used = memory(spread, strategy, gpus)
            parts = (*dataclasses.astuple(used), used.total, communication(spread, strategy, gpus))
            cells = " | ".join(f"{part / 1e9:.1f}" for part in parts)
            lines.append(f"| {gpus} | {strategy} | {spread.training.accumulate} | {cells} |")
    shares = [f"{share:.0%}" for share in EFFICIENCIES]
    lines += [
        "",
        f"| GPUs | days at {' | days at '.join(shares)} | seconds a step at {shares[1]} |",
    ]
    lines.append("| --- " * (len(shares) + 2) + "|")
    for gpus in GPUS:
        found = [days(config, gpus, share) for share in EFFICIENCIES]
        seconds = found[1] * 86_400 / training.steps
        lines.append(f"| {gpus} | {' | '.join(f'{d:.1f}' for d in found)} | {seconds:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run takes on many GPUs.")
    parser.add_argument("--preset", choices=TEXT, default="large")
    parser.add_argument("--at-once", type=int, default=32, help="sequences on a GPU at once")
    options = parser.parse_args()
    print(table(preset(options.preset), at_once=options.at_once))


if __name__ == "__main__":
    main()
