"""The rows of the paper's tables, and the findings that they decide."""

import math

import pytest
import torch

from cdcd.inference.decoder_settings import decoder_settings
from cdcd.presets import preset
from cdcd.reproduction.findings import (
    FINDINGS,
    FRONTIER,
    PAPER,
    Claim,
    Finding,
    at_equal_entropy,
    matching,
)
from cdcd.reproduction.rows import BASE, ROWS, rows_of
from cdcd.reproduction.scales import SCALES
from cdcd.settings import override
from cdcd.training.build import build_model

# Rows


def test_the_tables_are_the_papers():
    counts = {table: len(rows_of([table])) for table in ("table1", "table2", "table3", "table4")}
    assert counts == {"table1": 57, "table2": 75, "table3": 36, "table4": 42}
    assert ROWS["table1/warp-beta/a=2.0,b=0.5"].paper["nll"] == 4.544
    assert ROWS["table2/heun-steps/N=5"].paper["entropy"] == 6.955
    assert ROWS["table3/cdcd/T=0.9,guidance=2.0"].paper["mauve"] == 0.939
    assert ROWS["table4/big-n=10/zh-en"].paper["bleu"] == 25.0
    assert sum("bleu" in row.paper for row in rows_of(["table4"])) == 24


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_row_is_a_model_at_every_scale(scale):
    built = set()
    for row in ROWS.values():
        if scale.has(row) and row.system != "data":
            config, sampling = scale.config(row, 0), row.sampling
            num_samples = int(sampling.pop("num_samples", 1))
            assert decoder_settings(config, sampling, num_samples) is not None
            part = config.seq2seq if row.is_translation else config.network
            shape = (config.model, part, config.embedding, config.data.length)
            if shape not in built:
                built.add(shape)
                with torch.device("meta"):
                    build_model(config, scale.vocab_size_of(config))


def test_at_the_papers_scale_a_row_is_the_papers_model_with_its_changes():
    config = SCALES["paper"].config(ROWS["table1/warp-temperature/T=0.5"], 2)
    assert config == override(preset("base"), {"warp.temperature": 0.5, "training.seed": 2})
    assert SCALES["paper"].config(ROWS["table3/cdcd/T=0.9,guidance=2.0"], 0) == preset("large")
    assert SCALES["paper"].judge().network == preset("large").network


def test_at_the_papers_scale_the_prompts_are_the_papers():
    """All rows of a table have the same, though the baseline and the judge read longer sequences."""
    scale = SCALES["paper"]
    for row in rows_of(["table1", "table2"]):
        wanted = {"samples": 5000, "length": 64, "protocol": "half", "whole_documents": False}
        assert scale.prompts(row) == wanted
    for row in rows_of(["table3"]):
        wanted = {"samples": 5000, "length": 256, "protocol": "random", "whole_documents": True}
        assert scale.prompts(row) == wanted
    assert scale.config(ROWS["table3/autoregressive/p=0.9"], 0).decoding.suppress_eos


def test_manipulations_of_the_warp_reach_sampling():
    """The paper's numbers fit nothing else: at T = 100 both tables have the same AR-NLL."""
    for row in rows_of(["table1/warp-temperature", "table1/warp-uniformity"]):
        name, value = next(iter(row.sampling.items()))
        assert row.training == {f"warp.{name.removeprefix('warp_')}": value}


def test_without_warping_noise_levels_are_uniform_in_t():
    config = SCALES["small"].config(ROWS["table1/warping/neither"], 0)
    assert SCALES["small"].base().warp.bins == "log"
    assert (config.warp.train, config.warp.bins) == (False, "linear")


# Findings


def test_the_papers_own_numbers_satisfy_every_claim():
    known = 0
    for finding in FINDINGS:
        for claim in finding.claims:
            effect = claim.result(PAPER)["ours"]
            if effect is not None:
                known += 1
                assert claim.band[0] < effect < claim.band[1], claim
    assert known == 66


ROW, OTHER = "table1/masking/random", "table1/masking/prefix"


def values_of(left, right):
    return {
        ROW: {seed: {"nll": nll} for seed, nll in enumerate(left)},
        OTHER: {seed: {"nll": nll} for seed, nll in enumerate(right)},
    }


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((2.0, 3.0, 4.0), (1.0, 2.1, 3.1), "reproduced"),
        ((2.0, 3.0, 4.0), (3.0, 4.1, 4.9), "not reproduced"),
        ((2.0, 3.0, 4.0), (1.0, 4.0, 3.9), "undecided"),
        ((2.0, 3.1, 4.3), (1.0, 3.0, 4.0), "undecided"),
        ((2.0, 3.0), (1.0, 2.1), "undecided"),
        ((), (1.0,), "not run"),
    ],
)
def test_a_verdict_needs_two_standard_errors_over_three_seeds(left, right, expected):
    finding = Finding("", "", [Claim(ROW, ">", OTHER)])
    assert finding.verdict(values_of(left, right)) == expected


def test_alike_needs_the_whole_interval_in_the_margin():
    finding = Finding("", "", [Claim(ROW, "~", OTHER)])
    near, far = (1.0, 2.0, 3.0), (1.01, 2.02, 3.0)
    assert finding.verdict(values_of(far, near)) == "reproduced"
    assert finding.verdict(values_of((1.01, 2.2, 2.9), near)) == "undecided"
    assert finding.verdict(values_of((1.3, 2.31, 3.29), near)) == "not reproduced"


def test_one_claim_that_fails_decides():
    both = Finding("", "", [Claim(ROW, ">", OTHER), Claim(OTHER, ">", ROW)])
    assert both.verdict(values_of((2.0, 3.0, 4.0), (1.0, 2.1, 3.1))) == "not reproduced"


def test_frontiers_are_compared_at_one_entropy():
    """Lines of slope 2 and 1 in (entropy, AR-NLL), at the middle of the range that both reach."""
    steep, flat = "table2/nucleus/*", "table2/softmax-temperature/*"
    values = {}
    for number, name in enumerate(matching(steep)):
        values[name] = {0: {"entropy": 5 + 0.1 * number, "nll": 2 * (5 + 0.1 * number)}}
    for number, name in enumerate(matching(flat)):
        values[name] = {0: {"entropy": 5.2 + 0.1 * number, "nll": 5.2 + 0.1 * number}}
    middle = (5.2 + 5.6) / 2
    (difference,) = Claim(steep, "<", flat).differences(values)
    assert math.isclose(difference, middle)


def test_a_row_is_compared_with_the_base_model_at_its_own_entropy():
    """The frontier falls by 2 nats for each nat of entropy, and both tables have base rows of their own."""
    temperatures = matching(FRONTIER)
    values = {BASE: {0: {"entropy": 5.0, "nll": 4.0}}, ROW: {0: {"entropy": 4.5, "nll": 3.8}}}
    for lower, name in enumerate(["table2/base/base", *temperatures]):
        numbers = {"entropy": 7.0 - 0.2 * lower, "nll": 6.0 - 0.4 * lower}
        values[name] = {0: numbers, 1: numbers}
    assert at_equal_entropy(ROW, values) == [pytest.approx(-0.2 + 1.0)]
    for entropy in (3.0, 5.1):
        values[ROW][0]["entropy"] = entropy
        assert at_equal_entropy(ROW, values) == []
    values[ROW][0]["entropy"] = 4.9
    del values[temperatures[3]][0]
    assert at_equal_entropy(ROW, values) == []


def test_renormalising_loses_at_equal_entropy_by_the_papers_own_numbers():
    """A score temperature between 0.5 and 0.8 has its entropy and a lower AR-NLL."""
    (renormalised,) = at_equal_entropy("table1/renormalise-clamp/renormalise", PAPER)
    assert renormalised == pytest.approx(-0.630 + 1.013 + 0.549 * 0.064 / 0.452, abs=1e-3)
