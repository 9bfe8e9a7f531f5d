"""Presets: the paper's numbers, and models that can be built of every one."""

import pytest
import torch

from cdcd.config import RunConfig
from cdcd.diffusion.warping import TimeWarp
from cdcd.presets import PRESETS, TRANSLATION, preset
from cdcd.settings import flatten
from cdcd.training.build import build_model
from cdcd.training.tasks import AnyNetwork

MODELS = ("diffusion", "autoregressive", "masked")


def on_meta(config: RunConfig) -> AnyNetwork:
    with torch.device("meta"):
        return build_model(config, config.data.vocab_size)


def test_masked_presets_are_of_texts():
    for name in TRANSLATION:
        with pytest.raises(
            ValueError, match="model masked is of texts alone: for task translation"
        ):
            preset(name, "masked")


@pytest.mark.parametrize(
    ("name", "model"),
    [(n, m) for n in PRESETS for m in MODELS if m != "masked" or n not in TRANSLATION],
)
def test_presets_build_on_the_meta_device(name, model):
    config = preset(name, model)
    assert config.model == model
    assert (config.task == "translation") == (name in TRANSLATION)
    built = on_meta(config)
    assert all(parameter.is_meta for parameter in built.parameters())
    size = config.network.num_blocks if config.task == "text" else config.seq2seq.num_decoder_blocks
    assert len(built.blocks) == size
    TimeWarp(config.warp, config.process)


BASE = {"network.num_blocks": 8, "network.width": 1024, "training.steps": 1_000_000}
LARGE = {
    "network.num_blocks": 24,
    "network.width": 2048,
    "network.num_heads": 16,
    "training.steps": 600_000,
}
TEXT = {
    "data.vocab_size": 32_000,
    "embedding.dim": 256,
    "process.t_min": 1.0,
    "process.t_max": 300.0,
    "warp.bins": "linear",
    "warp.num_bins": 100,
    "training.optimiser": "adam",
    "training.learning_rate": 1e-4,
    "training.beta1": 0.9,
    "training.beta2": 0.99,
    "objective.self_conditioning": True,
    "objective.conditioning_dropout": 0.1,
}
WMT = {"data.vocab_size": 32_768, "data.length": 160, "beam.beam_size": 4}
WMT |= {"sampling.score_temperature": 0.8, "sampling.guidance_scale": 4.0}
VASWANI = {
    "training.warmup_steps": 4_000,
    "training.beta2": 0.98,
    "training.label_smoothing": 0.1,
    "training.schedule": "inverse_sqrt",
}
SIZES = {
    "wmt-base": {"seq2seq.width": 512, "seq2seq.hidden": 2048, "seq2seq.dropout": 0.1},
    "wmt-big": {"seq2seq.width": 1024, "seq2seq.hidden": 4096, "seq2seq.dropout": 0.3},
}
BATCH, STEPS, LENGTH = "training.batch_size", "training.steps", "data.length"
PAPER = {
    ("base", "diffusion"): TEXT | BASE | {BATCH: 1024, LENGTH: 64},
    ("large", "diffusion"): TEXT | LARGE | {BATCH: 2048, LENGTH: 256},
    ("large", "autoregressive"): LARGE | {BATCH: 256, LENGTH: 2048},
    ("wmt-base", "diffusion"): WMT | SIZES["wmt-base"] | {STEPS: 2_000_000, BATCH: 512},
    ("wmt-big", "diffusion"): WMT | SIZES["wmt-big"] | {STEPS: 2_000_000, BATCH: 1024},
    ("wmt-base", "autoregressive"): WMT | SIZES["wmt-base"] | VASWANI | {STEPS: 100_000},
    ("wmt-big", "autoregressive"): WMT | SIZES["wmt-big"] | VASWANI | {STEPS: 300_000},
}


@pytest.mark.parametrize(("name", "model"), PAPER)
def test_the_papers_numbers(name, model):
    config, numbers = flatten(preset(name, model)), PAPER[name, model]
    assert {setting: config[setting] for setting in numbers} == numbers


def test_the_large_model_has_1_3_billion_parameters_and_524_288_tokens_a_batch():
    assert 1.2e9 < sum(p.numel() for p in on_meta(preset("large")).parameters()) < 1.4e9
    for model in MODELS:
        config = preset("large", model)
        assert config.training.batch_size * config.data.length == 524_288
