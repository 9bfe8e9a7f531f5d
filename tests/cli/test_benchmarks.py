"""Benchmarks: operations against torch's own counter, and the reports of `cdcd bench`."""

import json

import pytest
import torch
from tiny import cdcd_main, silent, tiny_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cdcd.benchmarks import flops, measure, shapes
from cdcd.benchmarks.sample import new_text_model
from cdcd.benchmarks.train import TrainBenchConfig, measure_training
from cdcd.presets import large
from cdcd.training.build import build_model
from cdcd.training.trainer import Trainer

SMALL = {"data.vocab_size": 60, "data.length": 12, "network.num_blocks": 2}


def new_trainer(config, folder):
    run, (train, valid) = shapes.synthetic_run(config, folder)
    return Trainer(run, train, valid, console=silent())


def counted(work):
    """Counts the operations that torch executes; attention is taken apart into its products."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    return counter.get_total_flops()


# FLOPs

STEPS = {
    "adam": {},
    "muon": {"training.optimiser": "muon"},
    "three quarters": {"objective.self_conditioned_share": 0.75, "training.batch_size": 7},
    "no self-conditioning": {"objective.self_conditioning": False},
    "parts": {"training.accumulate": 4},
    "no time": {"network.time_input": False},
    "odd time units": {"network.time_units": 17},
    "clamp": {"embedding.clamp": True},
    "score matching": {"objective.loss": "score_matching"},
    "score matching, clamped": {"objective.loss": "score_matching", "embedding.clamp": True},
    "autoregressive": {"model": "autoregressive"},
    "autoregressive, tied, muon": {
        "model": "autoregressive",
        "network.tied_head": True,
        "training.optimiser": "muon",
    },
}


@pytest.mark.parametrize("changes", STEPS.values(), ids=STEPS)
def test_a_training_step_is_counted_exactly(changes, tmp_path):
    """Counts the second step of the Trainer: the first has no optimiser state yet."""
    trainer = new_trainer(tiny_config(SMALL | changes), tmp_path)
    trainer.train_step()
    assert counted(trainer.train_step) == flops.step_flops(trainer.config, 60)["total"]


def test_the_counter_would_notice_a_missing_part(tmp_path):
    """Shows the power of the test above: without any one of its lines the formula is wrong."""
    trainer = new_trainer(tiny_config(SMALL | {"training.optimiser": "muon"}), tmp_path)
    expected = counted(trainer.train_step)
    lines = flops.step_flops(trainer.config, 60)
    total = lines.pop("total")
    assert expected == total == sum(lines.values())
    assert all(expected != total - line for line in lines.values())
    # Three quarters of the rows; some of them without their partner, so room is left for more.
    assert 0.75 < lines["self_conditioning"] / lines["forward"] < 0.85


def test_the_parts_of_a_forward_pass():
    """Compares each part with the products of its own modules."""
    config = tiny_config(SMALL)
    model = new_text_model(config).network.network
    rows, parts = 3, flops.forward_flops(config, 60, 3)
    x = torch.randn(rows, 12, config.embedding.dim)
    inputs = {"c": x, "x0_prev": x, "is_noisy": torch.ones(rows, 12, dtype=torch.bool)}
    with FlopCounterMode(display=False, depth=4) as counter, sdpa_kernel(SDPBackend.MATH):
        model(x, torch.ones(rows), **inputs)
    seen = {
        name.partition(".")[2]: sum(counts.values())
        for name, counts in counter.get_flop_counts().items()
    }
    blocks = [f"blocks.{i}" for i in range(2)]
    assert parts["input"] == seen["stack"]
    assert parts["time"] == seen["time"]
    assert parts["head"] == seen["head"]
    norms = ["norm", *(f"{b}.{n}_norm" for b in blocks for n in ("attention", "mlp"))]
    assert parts["modulation"] == sum(seen[name] for name in norms)
    assert parts["mlp"] == sum(seen[f"{b}.mlp_{n}"] for b in blocks for n in ("in", "out"))
    attention = sum(seen[f"{b}.attention"] for b in blocks)
    assert parts["projections"] + parts["scores"] == attention
    assert parts["projections"] == sum(
        seen[f"{b}.attention.{n}"] for b in blocks for n in ("qkv", "out")
    )


SAMPLERS = {
    "euler": {"num_steps": 3},
    "heun": {"num_steps": 2, "solver": "heun"},
    "guided": {"num_steps": 3, "guidance_scale": 2.0},
    "nearest": {"num_steps": 3, "final_prediction": "nearest"},
    "nucleus": {"num_steps": 3, "nucleus": 0.9},
}


@pytest.mark.parametrize("settings", SAMPLERS.values(), ids=SAMPLERS)
def test_sampling_is_counted_exactly(settings):
    config = tiny_config(SMALL)
    model = new_text_model(config)
    chosen = model.settings(settings)
    guided = chosen.guidance_scale != 1
    expected = flops.sampling_flops(config, 60, 2, chosen, guided=guided)
    assert counted(lambda: fill(model, 2, 3, chosen)) == expected


@pytest.mark.parametrize("given", [1, 5])
def test_decoding_is_counted_exactly(given):
    config = tiny_config(SMALL | {"model": "autoregressive"})
    model = new_text_model(config)
    executed = counted(lambda: fill(model, 2, given, model.settings({})))
    assert executed == flops.decoding_flops(config, 60, 2, given)


def fill(model, batch, given, settings):
    tokens = shapes.random_tokens(model.config, batch)
    is_noisy = (torch.arange(tokens.shape[1]) >= given).expand(batch, -1)
    return model.fill(tokens, is_noisy, [(0, i) for i in range(batch)], settings)


# What is measured


def test_the_shapes_are_those_of_the_documents():
    sizes = {}
    for name, make in shapes.SHAPES.items():
        c = make()
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


def test_the_timed_steps_are_those_of_the_trainer(tmp_path, monkeypatch):
    """Runs the warm-up and the timed steps and no others, each with its line of metrics."""
    config = tiny_config(SMALL | {"training.log_every": 2})
    rows, steps = [], []
    from cdcd.training import logging, trainer

    monkeypatch.setattr(logging.MetricsLog, "write", lambda _, row: rows.append(row["step"]))
    step = trainer.Trainer.train_step
    monkeypatch.setattr(trainer.Trainer, "train_step", lambda t: steps.append(t.step) or step(t))
    measured = measure_training(config, TrainBenchConfig(steps=6, warmup=2, repeats=3))
    assert steps == list(range(8))
    assert rows == [2, 4, 6, 8]
    assert len(measured.timing.all) == 3
    assert measured.build_to_first_step > 0


def test_matrix_rate_is_its_operations_over_its_time():
    rate = measure.matrix_rate(torch.device("cpu"), 64, repeats=3)
    assert rate.tflops == pytest.approx(2 * 64**3 / rate.timing.median / 1e12)


# The command line

TINY = ["--data.vocab-size", 60, "--data.length", 12, "--training.batch-size", 8]
TINY += ["--network.num-blocks", 1, "--network.width", 32, "--network.num-heads", 2]
TINY += ["--shape", "demo", "--matrix-size", 64]


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_bench_train(tmp_path, capsys):
    options = ["--steps", 4, "--warmup", 1, "--repeats", 2, "--compare-self-conditioning"]
    out = tmp_path / "results" / "train.json"
    assert cdcd_main("bench", "train", *TINY, *options, "--out", out) == 0
    result = last_line(capsys)
    assert result == json.loads(out.read_text())
    seconds = result["seconds_per_step"]["median"]
    assert result["tokens_per_step"] == 8 * 12
    assert result["tokens_per_s"] == pytest.approx(96 / seconds)
    assert result["steps_per_s"] == pytest.approx(1 / seconds)
    assert result["tflops"] == pytest.approx(result["flops_per_step"]["total"] / seconds / 1e12)
    assert result["ratio"] == pytest.approx(result["tflops"] / result["matrix_tflops"])
    assert result["matrix"]["size"] == 64
    assert result["peak_memory"]["rss"] > 50e6
    assert result["build_to_first_step_s"] > 0
    compared = result["self_conditioning"]
    off = compared["seconds_per_step_off"]["median"]
    assert compared["share_of_step"] == pytest.approx(1 - off / seconds)
    lines = result["flops_per_step"]
    extra = lines["self_conditioning"] + lines["interpolation"]
    assert compared["share_of_flops"] == pytest.approx(extra / lines["total"])
    assert result["environment"]["torch"] == torch.__version__
    assert result["config"]["data"]["vocab_size"] == 60


def test_bench_train_of_an_autoregressive_model(capsys):
    options = ["--steps", 2, "--warmup", 1, "--repeats", 1, "--model", "autoregressive"]
    assert cdcd_main("bench", "train", *TINY, *options, "--json") == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed)["flops_per_step"]["self_conditioning"] == 0


def test_bench_sample(capsys):
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
        assert row["ratio"] == pytest.approx(row["tflops"] / result["matrix_tflops"])
        assert row["first_call_s"] > 0
    assert result["compile"] == ("graphs" if torch.cuda.is_available() else "off")
    assert rows["guided"]["flops"] == 2 * rows["euler"]["flops"]
    assert rows["heun"]["flops"] == rows["euler"]["flops"]
    times = [rows[name]["seconds"]["median"] for name in ("guided", "euler")]
    assert result["guidance_ratio"] == pytest.approx(times[0] / times[1])


def test_bench_sample_of_some_rows(capsys):
    options = ["--sampling.num-steps", 2, "--batch", 2, "--repeats", 1, "--rows", "batch 1,heun"]
    options += ["--compile", "off"]
    assert cdcd_main("bench", "sample", *TINY, *options) == 0
    result = last_line(capsys)
    assert set(result["rows"]) == {"batch 1", "heun"}
    assert result["batch_1_latency_s"] > 0
    assert result["guidance_ratio"] is None
    assert cdcd_main("bench", "sample", *TINY, "--rows", "hoin") == 2
    assert "unknown row hoin; did you mean heun?" in capsys.readouterr().err


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train", "--shape", "D"], "unknown shape D"),
        (["train", "--preset", "smal"], "did you mean small"),
        (["train", "--shape", "A", "--preset", "small"], "not both"),
        (["train", "--steps", "7"], "must be a multiple of repeats"),
        (["train", "--warmup", "0"], "the first step compiles"),
        (["train", "--threads", "0"], "at least 1"),
        (["train", "--data.vocab-size", "3"], "above 3"),
        (["sample", "--guidance", "1"], "choose another scale"),
        (["sample", "--warmup", "0"], "at least 1"),
        (["sample", "--model", "autoregressive"], "leave out --model"),
        (
            ["train", "--compare-self-conditioning", "--objective.self-conditioning", "false"],
            "it is off in this shape",
        ),
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
    options = ["--training.batch-size", 10**9, "--data.length", 10**5]
    assert cdcd_main("bench", "train", *TINY, *options) == 2
    error = capsys.readouterr().err
    assert "not enough memory for" in error
    assert "batch 1000000000 × 100000" in error
