"""All networks keep their residual streams in one dtype under autocast."""

import pytest
import torch
from tiny import tiny_config
from torch import Tensor, nn

from cdcd.networks import precision
from cdcd.networks.encoder_decoder import DecoderBlock, EncoderBlock
from cdcd.networks.layers import Block
from cdcd.training.build import make_task

VOCAB = 20


def dtypes_between_blocks(task: str, model: str, dtype: torch.dtype) -> set[torch.dtype]:
    """Returns the dtypes of the streams into and out of every block in a training loss."""
    sizes = {"data.source_length": 6, "data.length": 6, "network.num_blocks": 2}
    config = tiny_config({"task": task, "model": model, "training.batch_size": 2, **sizes})
    trained = make_task(config, VOCAB, device=torch.device("cpu"), dtype=dtype)
    kinds = (Block, EncoderBlock, DecoderBlock)
    seen: set[torch.dtype] = set()

    def see(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.update((inputs[0].dtype, output.dtype))

    blocks = [m for m in trained.model.modules() if isinstance(m, kinds)]
    for block in blocks:
        block.register_forward_hook(see)
    width = 12 if task == "translation" else 6
    tokens = torch.randint(3, VOCAB, (2, width), generator=torch.Generator().manual_seed(0))
    total, _ = trained.loss(tokens, trained.draw(0)[0])
    total.backward()
    assert len(blocks) > 1
    return seen


@pytest.mark.parametrize("task", ["text", "translation"])
@pytest.mark.parametrize("model", ["diffusion", "autoregressive"])
def test_streams_have_the_dtype_of_the_rule(monkeypatch, task, model):
    assert dtypes_between_blocks(task, model, torch.float32) == {torch.float32}
    assert dtypes_between_blocks(task, model, torch.bfloat16) == {torch.bfloat16}
    monkeypatch.setattr(precision, "residual_dtype", torch.float32)
    assert dtypes_between_blocks(task, model, torch.bfloat16) == {torch.float32}
