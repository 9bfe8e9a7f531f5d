"""An estimate of the memory that training needs, from below, made before anything is allocated."""

import torch

from cdcd.config import RunConfig
from cdcd.memory import available_memory, refuse_beyond
from cdcd.networks.precision import choose_dtype
from cdcd.training.build import build_model
from cdcd.training.distributed import World

BYTES_PER_WEIGHT = {"adam": 16, "muon": 12}
"""A weight, its gradient, and Adam's two moments or Muon's one, in float32."""


def refuse_what_cannot_fit(config: RunConfig, vocab_size: int, world: World) -> None:
    """Raises an error where the weights and the logits of a step need more memory than there is."""
    training, device = config.training, world.device(config.training.device)
    with torch.device("meta"):
        num_weights = sum(p.numel() for p in build_model(config, vocab_size).parameters())
    # About half of the positions are noisy; their logits have gradients of the same size.
    num_tokens = training.batch_size // (world.size * training.accumulate) * config.data.length
    num_bytes = num_tokens * vocab_size * choose_dtype(training.dtype, device).itemsize
    ranks = world.size if training.strategy == "fsdp" else 1
    refuse_beyond(
        memory_of(device, world),
        num_weights * BYTES_PER_WEIGHT[training.optimiser] / ranks + num_bytes,
        f"training {num_weights:,} weights on {num_tokens:,} tokens at once, of a vocabulary of "
        f"{vocab_size:,},",
        "choose a smaller model, lower training.batch_size or raise training.accumulate",
    )


def memory_of(device: torch.device, world: World) -> int:
    """Returns the bytes of memory that a rank has on its device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return available_memory() // world.local_size
