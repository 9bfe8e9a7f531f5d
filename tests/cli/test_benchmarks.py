"""Benchmarks: what is counted and timed, and the reports of `cdcd bench`."""

import json

import pytest
import torch
from tiny import cdcd_main, tiny_config

from cdcd.benchmarks import measure, sample, shapes, train
from cdcd.presets import large
from cdcd.training.build import build_model
from cdcd.training.trainer import Trainer

SMALL = {"data.vocab_size": 60, "data.length": 12, "network.num_blocks": 2}


@pytest.fixture
def small_matrix(monkeypatch):
    """A matrix product that takes no time."""
    monkeypatch.setitem(measure.MATRIX_SIZE, "cpu", 64)
    monkeypatch.setitem(measure.MATRIX_SIZE, "cuda", 64)


# Operations


def test_a_training_step_is_counted_as_on_paper():
    """Counts an autoregressive model by hand: a token takes 6 operations a weight, 12 n w a block to attend."""
    config = tiny_config(SMALL | {"model": "autoregressive"})
    positions, width, blocks = 8 * 12, 32, 2
    weights = blocks * (4 + 2 * config.network.mlp_ratio) * width**2 + width * 60
    expected = 6 * positions * weights + 12 * positions * 12 * width * blocks
    assert train.step_flops(config) == expected


COUNTED = {
    "diffusion": {},
    "muon": {"training.optimiser": "muon"},
    "three quarters": {"objective.self_conditioned_share": 0.75},
    "parts": {"training.accumulate": 4},
}


@pytest.mark.parametrize("changes", COUNTED.values(), ids=COUNTED)
def test_a_large_batch_is_counted_from_two_small_ones(changes, tmp_path):
    config = tiny_config(SMALL | changes | {"training.batch_size": 32})
    trainer = train.new_trainer(config, str(tmp_path))
    assert train.step_flops(config) == measure.count_flops(trainer.train_step)


def test_samples_are_counted_one_by_one():
    model = sample.load_random(tiny_config(SMALL), compile="off")

    def counted(batch, **changes):
        work = sample.fill_work(model, 3, batch, model.settings(changes))
        return measure.count_flops(work)

    euler = counted(2, num_steps=4)
    assert counted(6, num_steps=4) == 3 * euler
    assert counted(2, num_steps=4, guidance_scale=2.0) == 2 * euler
    assert counted(2, num_steps=9) == 2 * euler


# What is measured


def test_the_shapes_are_those_of_the_documents():
    sizes = {}
    for name, c in shapes.SHAPES.items():
        network = (c.network.num_blocks, c.network.width, c.network.num_heads, c.embedding.dim)
        sizes[name] = (*network, c.data.vocab_size, c.data.length, c.training.batch_size)
    assert sizes["A"] == (8, 512, 8, 128, 4096, 32, 512)
    assert sizes["B"] == (8, 512, 8, 256, 8192, 64, 1024)
    assert sizes["C"] == (8, 1024, 16, 256, 32000, 64, 1024)
    assert sizes["demo"][:4] == (3, 96, 4, 32)


def test_the_large_preset_is_the_papers_model():
    """Counts 1.3 billion parameters (§6.5)."""
    with torch.device("meta"):
        model = build_model(large(), large().data.vocab_size)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1.3e9, rel=0.02)


def test_the_timed_steps_are_those_of_the_trainer(monkeypatch):
    """Runs the warm-up and the timed steps and no others."""
    steps, step = [], Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda t: steps.append(t.step) or step(t))
    bench = train.TrainBenchConfig(steps=6, warmup=2, repeats=3)
    measured = train.time_steps(tiny_config(SMALL), bench)
    assert steps == list(range(8))
    assert len(measured["seconds_per_step"]["all"]) == 3
    assert measured["build_to_first_step_s"] > 0


def test_a_repeat_is_divided_by_its_parts(monkeypatch):
    clock = iter([0.0, 6.0, 8.0, 12.0])
    monkeypatch.setattr(measure, "now", lambda _: next(clock))
    timing = measure.timed(lambda: None, torch.device("cpu"), repeats=3, parts=2)
    assert timing == {"median": 2.0, "spread": 1.0, "all": [3.0, 1.0, 2.0]}


def test_matrix_rate_is_its_operations_over_its_time(small_matrix):
    rate = measure.matrix_rate(torch.device("cpu"))
    assert rate["tflops"] == pytest.approx(2 * 64**3 / rate["timing"]["median"] / 1e12)


# The command line

TINY = ["--data.vocab-size", 60, "--data.length", 12, "--training.batch-size", 8]
TINY += ["--network.num-blocks", 1, "--network.width", 32, "--network.num-heads", 2]
TINY += ["--shape", "demo"]


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_bench_train(tmp_path, capsys, small_matrix):
    out = tmp_path / "results" / "train.json"
    options = ["--steps", 4, "--warmup", 1, "--repeats", 2, "--out", out]
    assert cdcd_main("bench", "train", *TINY, *options) == 0
    result = last_line(capsys)
    assert result == json.loads(out.read_text())
    seconds = result["seconds_per_step"]["median"]
    assert result["tokens_per_step"] == 8 * 12
    assert result["tokens_per_s"] == pytest.approx(96 / seconds)
    assert result["steps_per_s"] == pytest.approx(1 / seconds)
    assert result["tflops"] == pytest.approx(result["flops_per_step"] / seconds / 1e12)
    assert result["ratio"] == pytest.approx(result["tflops"] / result["matrix"]["tflops"])
    assert result["matrix"]["size"] == 64
    assert result["peak_memory"] > 50e6
    assert result["environment"]["torch"] == torch.__version__
    assert result["config"]["data"]["vocab_size"] == 60


def test_bench_sample(capsys, small_matrix):
    options = ["--sampling.num-steps", 4, "--batch", 3, "--repeats", 2]
    assert cdcd_main("bench", "sample", *TINY, *options) == 0
    result = last_line(capsys)
    rows = result["rows"]
    assert {name: row["network_calls"] for name, row in rows.items()} == {
        "euler": 5,
        "guided": 10,
        "heun": 5,
        "batch 1": 5,
        "autoregressive": 9,
        "autoregressive batch 1": 9,
    }
    for row in rows.values():
        assert row["tokens"] == row["batch"] * 9
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"]["median"])
        assert row["ratio"] == pytest.approx(row["tflops"] / result["matrix"]["tflops"])
        assert row["first_call_s"] > 0
    assert result["compile"] == ("graphs" if torch.cuda.is_available() else "off")
    assert rows["guided"]["flops"] == 2 * rows["euler"]["flops"] == 6 * rows["batch 1"]["flops"]
    assert rows["heun"]["flops"] == rows["euler"]["flops"]


def test_bench_sample_of_one_row(capsys, small_matrix):
    options = ["--sampling.num-steps", 2, "--batch", 2, "--repeats", 1, "--rows", "heun", "--json"]
    assert cdcd_main("bench", "sample", *TINY, *options, "--compile", "off") == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert set(json.loads(printed)["rows"]) == {"heun"}


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train", "--shape", "D"], "unknown shape D"),
        (["train", "--preset", "smal"], "did you mean small"),
        (["sample", "--rows", "hoin"], "unknown row hoin; did you mean heun?"),
        (["train", "--steps", "7"], "must be a multiple of repeats"),
        (["train", "--warmup", "0"], "warmup is 0, it must be at least 1"),
        (["train", "--threads", "0"], "at least 1"),
        (["train", "--data.vocab-size", "3"], "above 3"),
        (["sample", "--model", "autoregressive"], "leave out --model"),
        (["train", "--stesp", "3"], "did you mean --steps"),
    ],
)
def test_mistakes_are_one_line(options, message, capsys):
    assert cdcd_main("bench", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys):
    assert cdcd_main("bench", "train", "--training.device", "cuda") == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_too_little_memory_names_the_shape(capsys):
    """Asks for a batch of some hundred terabytes."""
    options = ["--training.batch-size", 1 << 20, "--data.length", 1 << 16]
    assert cdcd_main("bench", "train", *TINY, *options) == 2
    error = capsys.readouterr().err
    assert "not enough memory for" in error
    assert "batch 1048576 × 65536" in error
