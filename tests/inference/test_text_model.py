"""The loaded model samples with the table it was trained with, and follows a language it has learnt."""

import math

import torch

from cdcd.data.tokenizers import WordTokenizer
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.text_model import DiffusionTextModel
from cdcd.presets import demo
from cdcd.settings import override
from cdcd.training.build import build_model


def test_one_table_for_everything():
    """A model that interpolates other rows than it was noised with samples garbage."""
    config = override(
        demo(), {"network.width": 32, "network.num_heads": 2, "network.num_blocks": 1}
    )
    tokenizer = WordTokenizer(["a", "b", "c"])
    model = build_model(config, tokenizer.vocab_size)
    warp = TimeWarp(config.warp, config.process)
    loaded = DiffusionTextModel(config, tokenizer, model, warp)
    lengths = loaded.sampler.table.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, math.sqrt(config.embedding.dim)))
    torch.testing.assert_close(loaded.sampler.table, model.embedding.table())
