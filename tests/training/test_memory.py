"""The estimates of what a run takes agree with real models, counts by hand and the paper."""

import pytest
from paths import ROOT
from tiny import tiny_config

from cdcd.benchmarks.memory import (
    communication,
    count_parameters,
    days,
    memory,
    table,
    with_ranks,
)
from cdcd.presets import TEXT, large, preset
from cdcd.training.build import build_model


@pytest.mark.parametrize("model", ["diffusion", "autoregressive"])
def test_parameters_are_those_of_the_real_model(model):
    config = tiny_config({"model": model, "network.num_blocks": 3})
    counted = count_parameters(config)
    real = build_model(config, config.data.vocab_size)
    assert counted.total == sum(p.numel() for p in real.parameters())
    assert counted.blocks == sum(p.numel() for p in real.blocks.parameters())
    assert counted.largest_block * 3 == counted.blocks
    assert counted.embedding == real.embedding.weight.numel()


def test_large_is_the_papers_model():
    assert count_parameters(large()).total == pytest.approx(1.3e9, rel=0.02)


def test_shards_are_smaller_and_days_are_shared():
    config = large()
    alone = memory(config, "ddp", 1)
    assert alone.moments == 8 * count_parameters(config).total
    for ranks in (8, 64):
        spread = with_ranks(config, ranks, at_once=32)
        replicated, sharded = (memory(spread, strategy, ranks) for strategy in ("ddp", "fsdp"))
        assert sharded.moments == pytest.approx(replicated.moments / ranks)
        assert sharded.activations == replicated.activations
        assert sharded.total < replicated.total
        assert communication(spread, "ddp", ranks) < communication(spread, "fsdp", ranks)
    assert days(config, 64, 0.4) == pytest.approx(days(config, 8, 0.4) / 8)
    assert days(config, 8, 0.8) == pytest.approx(days(config, 8, 0.4) / 2)


@pytest.mark.parametrize("name", TEXT)
def test_every_preset_has_a_table(name):
    assert "| 256 | fsdp |" in table(preset(name), at_once=32)


def test_the_document_holds_the_table():

    document = ROOT / "docs" / "scaling.md"
    assert table(large(), at_once=32) in document.read_text(encoding="utf-8")
