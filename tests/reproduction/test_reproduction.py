"""Plans of trainings and samples, and the command that does and reports them."""

import json
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tiny import TINY, cdcd_main

from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.judge import MARKS, split_texts
from cdcd.evaluation.judges import load_judge
from cdcd.inference.load import load
from cdcd.reproduction import measuring, pictures, report, samples, work
from cdcd.reproduction.plan import JUDGE, Plan
from cdcd.reproduction.rows import BASE, ROWS, Row, rows_of
from cdcd.reproduction.scales import SCALES

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
    return Plan(MICRO, [ROWS[name] for name in names], {"text": "tales"}, out)


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
    plan = Plan(SCALES["small"], rows_of(["table1"]), {"text": "tales"}, tmp_path)
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
    texts = measuring.held_out(model, 16, 26, "random", whole_documents)
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


def test_samples_are_drawn_by_code_that_is_compiled_as_the_trainings(finished, monkeypatch):
    asked = {}
    monkeypatch.setattr(work, "load", lambda run, **options: asked.update(options))
    monkeypatch.setattr(work, "load_translator", lambda run, **options: asked.update(options))
    for factory in (work._of_text, work._of_translator):
        asked.clear()
        training = {"device": "cuda", "compile": "graphs"}
        factory({"run": "none", "config": {"training": training}, "judge": None, "batch_size": 1})
        assert asked == training


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
    points = list(pictures._points(rows, ours, "entropy", "nll"))
    assert points == [tuple(ours[rows[0].name][0][m] for m in ("entropy", "nll"))] * 7


def test_figure_7_shows_samples_beside_what_was_there(finished):
    """Prompts and the texts around gaps are real text; the same seed draws the same texts."""
    rows = rows_of(["figure7"])
    plan = replace(finished, rows=rows)
    (job,) = plan.jobs()
    assert (job.name, job.needs) == ("base.0+0", ("base.0",))
    assert work.perform(plan, workers=1, console=QUIET) == []
    model = load(plan.run("base.0"))
    given = measuring.held_out(model, **(plan.scale.prompts(rows[0])))
    originals = [text for text, _ in split_texts(given.first(4), model.tokenizer)]
    completions, infillings = (plan.result(row, 0)["texts"] for row in rows)
    assert len(completions) == len(originals) > 0
    for prompt, text in zip(originals, completions, strict=True):
        assert text["before"] == prompt
        assert text["after"] == ""
    assert all(text["after"] for text in infillings)
    assert any(text["sample"] != text["original"] for text in (*completions, *infillings))
    paths = {path.name for path in report.write(plan)}
    assert paths == {"figure7.md", "verdicts.md"}
    plain = (plan.out / "figure7.txt").read_text()
    for text in (*completions, *infillings):
        assert f"«{text['before']}»{text['sample'].rstrip()}" in plain
        assert f"original: {text['original'].rstrip()}" in plain
    assert (plan.out / "figure7.md").read_text().count("Original: ") == len(originals) + len(
        infillings
    )


def test_a_completion_may_be_of_another_length_than_the_original(finished, monkeypatch):
    """A sample begins behind its prompt, may fill the sequence, and is shown to its own end."""
    model, seen = load(finished.run("base.0")), []

    def ends_at_once(model, given, *_):
        seen.append(given)
        is_first = given.is_generated & (given.is_generated.cumsum(1) == 1)
        tokens = torch.where(is_first, EOS, torch.where(given.is_generated, PAD, given.tokens))
        return given.with_tokens(tokens)

    monkeypatch.setattr(samples, "sample_texts", ends_at_once)
    row = ROWS["figure7/samples/completion"]
    texts = samples.complete(row, model, 4, MICRO.prompts(row))["texts"]
    assert bool(seen[0].is_generated[:, -1].all())
    assert {text["sample"] for text in texts} == {MARKS[EOS]}


def test_the_middle_half_of_a_text_is_infilled():
    tokens = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7], [5, 6, 7, 8, EOS, PAD, PAD, PAD]])
    assert samples.middle(tokens).int().tolist() == [
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0, 0, 0, 0],
    ]


def test_prompts_are_bold_and_markup_is_escaped():
    text = {"before": "a *b* ", "sample": "c\nd", "after": " e_", "original": "f"}
    written = samples.as_markdown({"infilling": {"training": "base.0", "texts": [text]}})
    assert "## Infilling 1\n\n**a \\*b\\*** c d **e\\_**\n\nOriginal: f\n" in written


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


def test_trainings_of_a_compiled_shape_wait_for_none(tmp_path, monkeypatch):
    plan = replace(plan_of([BASE], tmp_path), scale=replace(MICRO, seeds=4))
    (tmp_path / "rows").mkdir()
    together = [0]

    def process(plan, job):
        if not job.rows and job.name != JUDGE:
            together.append(together[-1] + 1)
            metrics = plan.run(job.training) / "metrics.jsonl"
            metrics.parent.mkdir(parents=True)
            metrics.write_text("{}")
            work.time.sleep(0.2)
            together.append(together[-1] - 1)

    monkeypatch.setattr(work, "_do_in_process", process)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.005)
    assert work.perform(plan, workers=5, console=QUIET) == []
    assert max(together) == 4


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
        (("--only", "table4/big-n=1/zh-en"), "table4/big-n=1/zh-en is not at this scale"),
        (
            ("table4", "--scale", "small", "--data", "{out}"),
            "pairs en-de .* test_2016_flickr.de.txt.xz; looked for .*; and .* pairs zh-en .*tatoeba",
        ),
        (("table4", "--scale", "paper", "--data", "{out}"), "pairs en-de .* and .* pairs zh-en"),
        (("--seeds", 0), "--seeds: it is 0, it must be at least 1"),
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


def test_a_corpus_is_known_by_its_content_wherever_it_lies(tmp_path):
    """Text that was moved before it was prepared is the same corpus; one more document makes another."""
    identities = []
    for name, extra in (("a", ""), ("b", ""), ("c", "\nthe end")):
        folder = tmp_path / name
        folder.mkdir()
        text = "\n".join(f"cats {i % 7} and dogs {i % 5}" for i in range(60)) + extra
        (folder / "text.txt").write_text(text)
        config = PrepareConfig(source=str(folder / "text.txt"), tokenizer="words", workers=1)
        prepare(config, folder / "data")
        identities.append(SCALES["small"].protocol({"text": str(folder / "data")})["corpus"])
    assert identities[0] == identities[1] != identities[2]


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
