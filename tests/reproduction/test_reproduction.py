"""The paper's tables as data, the findings that they decide, and the command that runs them."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tiny import TINY, cdcd_main

from cdcd.data.vocabulary import PAD
from cdcd.evaluation.judge import load_judge
from cdcd.inference.load import load
from cdcd.presets import preset
from cdcd.reproduction import measuring, pictures, report, work
from cdcd.reproduction.findings import FINDINGS, PAPER, Claim, Finding, matching
from cdcd.reproduction.plan import JUDGE, Plan
from cdcd.reproduction.rows import BASE, ROWS, Row, rows_of
from cdcd.reproduction.scales import SCALES
from cdcd.settings import override
from cdcd.training.build import build_model

CHANGES = {n: v for n, v in TINY.items() if n not in ("sampling.num_steps", "data.length")}
MICRO = replace(
    SCALES["tiny"],
    diffusion=CHANGES | {"sampling.num_steps": 3},
    autoregressive={n: v for n, v in CHANGES.items() if n.split(".")[0] in ("data", "training")}
    | {"network.width": 32, "network.num_blocks": 1, "network.num_heads": 2},
    num_samples=4,
    sweep_samples=4,
    batch_size=4,
    seeds=1,
    other_seeds=1,
)
QUIET = Console(quiet=True)


def plan_of(names, out):
    return Plan(MICRO, [ROWS[name] for name in names], "tales", out)


# Rows


def test_the_tables_are_the_papers():
    counts = {table: len(rows_of([table])) for table in ("table1", "table2", "table3", "table4")}
    assert counts == {"table1": 57, "table2": 75, "table3": 36, "table4": 8}
    assert ROWS["table1/warp-beta/a=2.0,b=0.5"].paper["nll"] == 4.544
    assert ROWS["table2/heun-steps/N=5"].paper["entropy"] == 6.955
    assert ROWS["table3/cdcd/T=0.9,guidance=2.0"].paper["mauve"] == 0.939


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_row_is_a_model_at_every_scale(scale):
    built = set()
    for row in ROWS.values():
        if row.table != "table4" and row.system != "data":
            config = scale.config(row, 0)
            assert override(config, row.changes | scale._adapted(row.training, config)) is not None
            shape = (config.model, config.network, config.embedding, config.data.length)
            if shape not in built:
                built.add(shape)
                with torch.device("meta"):
                    build_model(config, scale.vocab_size)


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
    assert known == 45


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


# Plans


def test_rows_that_differ_in_sampling_share_a_training(tmp_path):
    plan = plan_of(
        [BASE, "table1/self-conditioning/training-only", "table2/nucleus/p=0.9"], tmp_path
    )
    jobs = plan.jobs()
    assert [job.name for job in jobs] == [JUDGE, "base.0", "base.0+0"]
    assert [row.name for row, _ in jobs[2].rows] == [row.name for row in plan.rows]


def test_rows_that_are_the_same_are_measured_once(tmp_path):
    names = [
        "table1/warping/both",
        BASE,
        "table1/masking/mixed-50",
    ]
    plan = plan_of(names, tmp_path)
    _, _, samples = plan.jobs()
    assert [row.name for row, _ in samples.rows] == [BASE]
    (tmp_path / "rows").mkdir()
    work.write_json(plan.path(ROWS[BASE], 0), {"nll": 1.0})
    assert set(report.read_values(plan)) == set(names)


def test_rows_that_carry_a_claim_come_first_and_have_more_seeds(tmp_path):
    plan = Plan(SCALES["small"], rows_of(["table1"]), "tales", tmp_path)
    names = [row.name for row, _ in plan.results]
    assert names[:3] == [BASE] * 3
    assert names.count("table1/warping/neither") == 3
    assert names.count("table1/warp-beta/a=0.5,b=1.0") == 1
    assert names.count("table1/warp-beta/a=1.0,b=1.0") == 3, "the base model, measured already"
    assert names.index("table1/warping/neither") < names.index("table1/masking/random")


# The command


ROWS_RUN = [BASE, "table1/self-conditioning/neither", "table2/nucleus/p=0.9", "table1/data/data"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two rows of training and two of sampling, run once."""
    plan = plan_of(ROWS_RUN, tmp_path_factory.mktemp("reproduction"))
    plan.check_protocol()
    assert work.perform(plan, workers=1, console=QUIET) == []
    return plan


def test_every_row_has_its_numbers(finished):
    values = report.read_values(finished)
    assert set(values) == set(ROWS_RUN)
    for numbers in values.values():
        assert numbers[0]["nll"] > 0
        assert numbers[0]["entropy"] >= 0
    assert values[BASE] != values["table2/nucleus/p=0.9"] != values["table1/data/data"]
    record = json.loads((finished.run("base.0") / "record.json").read_text())
    assert len(record["warp"]["average_out"]) == MICRO.base().warp.num_bins
    assert record["validation"]["step"] == MICRO.base().training.steps


@pytest.mark.parametrize(("name", "length"), [("data/data", 44), ("autoregressive/p=0.9", 36)])
def test_completions_are_compared_by_what_counts_of_them(finished, monkeypatch, name, length):
    """Real text has MAUVE 1; a baseline of longer sequences completes prompts of the table's length."""
    model = load(finished.run(JUDGE))
    judge = load_judge(str(finished.run(JUDGE)), model.tokenizer, model.length)
    seen, features = [], judge.features
    monkeypatch.setattr(judge, "features", lambda texts: seen.append(texts) or features(texts))
    row = ROWS[f"table3/{name}"]
    prompts = MICRO.prompts(row) | {"samples": 16, "length": length}
    numbers = measuring.measure(row, model, judge, 16, prompts)
    assert (numbers["mauve"] == pytest.approx(1.0)) == (row.system == "data")
    for texts in seen:
        assert texts.tokens.shape[1] == length
        assert torch.equal(texts.is_generated, texts.until_end().is_generated)


@pytest.mark.parametrize("whole_documents", [False, True])
def test_whole_documents_have_no_padding(finished, whole_documents):
    model = load(finished.run(JUDGE))
    texts = measuring._held_out(model, 16, 26, "random", whole_documents)
    assert texts.tokens.shape[1] == 26
    assert bool((texts.tokens == PAD).any()) != whole_documents


def test_a_finished_plan_has_nothing_to_do(finished):
    assert finished.jobs() == []
    assert {finished.state(row, seed) for row, seed in finished.results} == {"done"}


def test_only_what_is_missing_is_done_again(finished):
    row = ROWS["table2/nucleus/p=0.9"]
    before = finished.result(row, 0)
    finished.path(row, 0).unlink()
    (job,) = finished.jobs()
    assert [row for row, _ in job.rows] == [row]
    assert work.perform(finished, workers=1, console=QUIET) == []
    after = finished.result(row, 0)
    assert {**after, "seconds": 0} == {**before, "seconds": 0}


def test_tables_hold_the_paper_beside_ours(finished):
    written = {path.name: path.read_text() for path in report.write(finished)}
    assert set(written) == {"table1.md", "table2.md", "verdicts.md"}
    line = next(x for x in written["table1.md"].splitlines() if "self-conditioning/neither" in x)
    ours = report.read_values(finished)
    less = ours["table1/self-conditioning/neither"][0]["nll"] - ours[BASE][0]["nll"]
    assert "4.781 ± 0.010" in line
    assert f"{less:+.3f}" in line


def test_figures_are_drawn_from_what_there_is(finished):
    names = {path.name for path in pictures.draw(finished)}
    assert names == {"figure2.png", "figure4.png", "figure5.png", "figure8.png"}
    values = report.read_values(finished)
    rows = rows_of(["table2/nucleus"])
    ours = {row.name: {0: values["table2/nucleus/p=0.9"][0]} for row in rows}
    points = list(pictures._points(rows, ours))
    assert points == [tuple(ours[rows[0].name][0][m] for m in ("entropy", "nll"))] * 7


def test_a_row_that_fails_leaves_the_others(finished, tmp_path, monkeypatch):
    """Nothing may clamp in sampling what was trained with self-conditioning."""
    bad = Row("table2/nucleus/p=0.5", {"sampling.clamp": "true"}, {})
    monkeypatch.setitem(ROWS, bad.name, bad)
    good = ROWS["table2/nucleus/p=0.8"]
    plan = replace(finished, rows=[bad, good])
    assert work.perform(plan, workers=1, console=QUIET) == ["base.0+0"]
    assert [plan.state(row, 0) for row in (bad, good)] == ["failed", "done"]
    assert "clamp" in plan.result(bad, 0)["error"]
    assert [row for row, _ in plan.jobs()[0].rows] == [bad]


def test_a_training_that_fails_fails_its_rows_alone(tmp_path, monkeypatch):
    rows = [BASE, "table1/self-conditioning/neither", "table2/nucleus/p=0.9"]
    plan = plan_of(rows, tmp_path)

    def train(job):
        if not job["config"]["objective"]["self_conditioning"]:
            raise ValueError("the loss is not finite at step 3")

    def sample(job):
        for each in job["rows"]:
            work.write_json(work.Path(each["file"]), {"nll": 1.0})

    (tmp_path / "rows").mkdir()
    monkeypatch.setattr(work, "train", train)
    monkeypatch.setattr(work, "sample", sample)
    failed = work.perform(plan, workers=1, console=QUIET)
    assert failed == ["self_conditioning=False.0", "self_conditioning=False.0+0"]
    assert "not finite" in plan.result(ROWS[rows[1]], 0)["error"]
    assert plan.state(ROWS[rows[2]], 0) == "done"


def test_side_by_side_every_job_waits_for_what_it_needs(tmp_path, monkeypatch):
    """The judge and the training come before samples; a second training of a shape waits for the first."""
    names = [BASE, "table1/warping/neither", "table1/self-conditioning/neither"]
    plan = replace(plan_of(names, tmp_path), scale=replace(MICRO, seeds=2))
    (tmp_path / "rows").mkdir()
    running, seen, together = {}, [], 0

    def process(plan, job):
        nonlocal together
        assert not any(
            other.shape == job.shape
            for other in list(running.values())
            if not (job.rows or other.rows)
        )
        if job.rows:
            assert {job.training, JUDGE} <= set(seen)
        running[job.name] = job
        together = max(together, len(running))
        work.time.sleep(0.2 if job.name == JUDGE else 0.02)
        del running[job.name]
        seen.append(job.name)

    monkeypatch.setattr(work, "_do_in_process", process)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.005)
    assert work.perform(plan, workers=3, console=QUIET) == []
    assert len(seen) == len(plan.jobs()) == 13
    assert together > 1


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tabel1",), "unknown table, figure or row tabel1; did you mean table1?"),
        (("--only", "table2/nucleus/p=0.91"), "did you mean table2/nucleus/p=0.9?"),
        (("--scale", "smal"), "unknown scale smal; did you mean small?"),
        (("--scale", "small"), "scale small needs --data: .*captions_train.en.txt.xz"),
        (
            ("--scale", "small", "--data", "{out}"),
            "captions_val.en.txt.xz; looked for in .*/out and .*/out/multi30k",
        ),
        (("table4",), "table4 is not run by this command"),
        (("--seeds", 0), "--seeds is 0, it must be at least 1"),
    ],
)
def test_mistakes_are_named(tmp_path, capfd, options, message):
    out = tmp_path / "out"
    arguments = [str(option).format(out=out) for option in options]
    assert cdcd_main("reproduce", *arguments, "--out", out) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not out.exists()


def test_a_folder_of_another_protocol_is_refused(finished, capfd):
    assert cdcd_main("reproduce", "--scale", "tiny", "--out", finished.out, "table1") == 2
    assert "holds results of another protocol: samples is 4, not 256" in capfd.readouterr().err


def test_chosen_rows_come_with_what_they_are_compared_with(capfd):
    """At the small scale the base row of Table 2 has other samples than that of Table 1."""
    only = "table3/cdcd/T=0.9,guidance=2.0,table2/nucleus/p=0.9,table1/warp-beta/a=0.5,b=1.0"
    assert cdcd_main("reproduce", "--only", only, "--scale", "small", "--list") == 0
    listed = {line.split()[-3] for line in capfd.readouterr().out.splitlines()}
    assert listed == {
        *(BASE, "table1/data/data", "table2/base/base", "table2/nucleus/p=0.9"),
        *("table1/warp-beta/a=0.5,b=1.0", "table3/cdcd/T=0.9,guidance=2.0"),
    }


def test_rows_and_costs_are_listed_without_a_folder(capfd):
    assert cdcd_main("reproduce", "table1", "--list") == 0
    assert "to do    table1/warping/neither seed 2" in capfd.readouterr().out
    assert cdcd_main("reproduce", "table1/base", "--scale", "paper", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert "base.0: 1,000,000 steps" in shown
    assert "days" in shown
