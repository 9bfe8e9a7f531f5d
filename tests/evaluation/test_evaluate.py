"""`cdcd evaluate`: it tells real text from bad, reports every setting, and refuses mistakes at once."""

import itertools
import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from controls import shuffled, spliced
from rich.console import Console
from tiny import cdcd_main, contents, silent, tiny_options, train_tiny

import cdcd
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation import text_evaluation as module
from cdcd.evaluation.sweep import sweep_settings
from cdcd.evaluation.systems import jobs_of
from cdcd.evaluation.text_evaluation import (
    Evaluation,
    EvaluationConfig,
    Samples,
    sample_texts,
    training_sequences,
)
from cdcd.evaluation.text_report import Measured, Report, Row
from cdcd.evaluation.texts import Texts, held_out_texts
from cdcd.languages import tales
from cdcd.metrics.entropy import text_statistics
from cdcd.metrics.intervals import Interval

AUTOREGRESSIVE = {"model": "autoregressive"}


# Negative controls, with a judge that has really learnt

MARKOV = {
    "data.source": "markov",
    "data.layout": "stream",
    "data.num_documents": 1_000,
    "data.valid_share": 0.5,
    "data.length": 48,
}
JUDGE = (
    MARKOV
    | AUTOREGRESSIVE
    | {
        "data.num_documents": 2_000,
        "training.seed": 1,
        "training.steps": 180,
        "training.batch_size": 32,
        "training.learning_rate": 1e-2,
        "training.decay_steps": 50,
        "training.average_decay": 0.0,
        "training.log_every": 100,
        "training.checkpoint_every": 0,
    }
)
NUM_SAMPLES = 250


@pytest.fixture(scope="module")
def markov(tmp_path_factory):
    """A diffusion run that knows nothing, and a judge that knows the language."""
    place = tmp_path_factory.mktemp("markov")
    return train_tiny(place / "run", MARKOV), train_tiny(place / "judge", JUDGE)


@pytest.fixture(scope="module")
def rows(markov):
    """The controls' rows, and one of other real text, which is held out too."""
    run, judge = markov
    config = EvaluationConfig(num_samples=NUM_SAMPLES)
    evaluation = Evaluation([run], str(judge), config, console=silent())
    assert evaluation.judge_facts["disjoint"]
    all_held_out = held_out_texts(evaluation.held_out, 2 * NUM_SAMPLES, "half", seed=0)
    rest = torch.arange(2 * NUM_SAMPLES) >= NUM_SAMPLES
    assert torch.equal(all_held_out.where(~rest).tokens, evaluation.real.tokens)
    training = training_sequences(evaluation.run, evaluation.tokenizer)
    first = evaluation.systems[0]
    samples = [
        Samples("data", {}, "held-out text", evaluation.real, first),
        Samples("other", {}, "other held-out text", all_held_out.where(rest), first),
        Samples("shuffled", {}, "control", shuffled(evaluation.real), first),
        Samples("spliced", {}, "control", spliced(evaluation.real, training), first),
    ]
    return {row.system: row for row in evaluation._rows(samples)}


def difference(one: Row, other: Row, name: str) -> float:
    """By how many standard errors a measure is higher in `one`."""
    (a, a_error), (b, b_error) = one.mean(name), other.mean(name)
    return (a - b) / math.hypot(a_error, b_error)


def test_text_without_syntax_is_told_from_real_text(rows):
    assert difference(rows["shuffled"], rows["data"], "nll") > 10
    assert rows["shuffled"].mean("nll")[0] > rows["data"].mean("nll")[0] + 0.5
    # Its unigram statistics are right: entropy alone tells nothing.
    assert abs(difference(rows["shuffled"], rows["data"], "entropy")) < 4
    assert rows["shuffled"].measured[0].mauve < rows["data"].measured[0].mauve - 0.1


def test_copied_text_is_told_from_real_text(rows):
    spliced, data = (rows[name].measured[0].matches for name in ("spliced", "data"))
    assert spliced.mean >= 12
    assert spliced.mean > 1.5 * data.mean
    # Likelihood does not show it: two fluent pieces have one bad joint each.
    assert rows["spliced"].mean("nll")[0] < rows["shuffled"].mean("nll")[0]


def test_real_text_is_not_told_from_other_real_text(rows):
    for name in ("nll", "entropy"):
        assert abs(difference(rows["other"], rows["data"], name)) < 3, name
    other, data = (rows[name].measured[0] for name in ("other", "data"))
    assert abs(other.matches.mean - data.matches.mean) < 1
    assert other.matches.copied_share == data.matches.copied_share == 0
    assert data.mauve > 0.8
    assert other.mauve == pytest.approx(1), "the other text is what MAUVE compares with"


def test_the_judge_is_near_the_truth_on_real_text(rows):
    exact = rows["data"].measured[0].exact
    assert exact.possible_share == 1
    assert 0 <= exact.judge_error < 0.1


# A whole evaluation by the command line

TALES = {"data.num_documents": 300, "data.valid_share": 0.3}
SAMPLES = 40
SWEEP = ("--sweep", "score_temperature=0.5,1.0", "--sweep", "num-steps=3,5")
BASELINE_SWEEP = ("--baseline-sweep", "temperature=0.5,1,2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs on tales: two of diffusion, a judge, a baseline, and some that do not fit."""
    place = tmp_path_factory.mktemp("evaluate")
    trained = TALES | {"training.steps": 60, "training.learning_rate": 1e-2}
    train_tiny(place / "run", trained)
    train_tiny(place / "again", trained | {"training.seed": 1})
    for name, changes in (
        ("judge", {"training.seed": 7, "training.steps": 40, "training.learning_rate": 1e-2}),
        ("baseline", {"training.steps": 40, "training.learning_rate": 1e-2}),
        ("short", {"data.length": 12}),
        ("streamed", {"data.layout": "stream"}),
        ("spelt", {"data.tokenizer": "bytes"}),
    ):
        train_tiny(place / name, TALES | AUTOREGRESSIVE | changes)
    train_tiny(place / "undropped", TALES | {"objective.conditioning_dropout": 0.0})
    return place


@pytest.fixture(scope="module")
def evaluated(place):
    """What `cdcd evaluate` prints and writes."""
    out = place / "evaluation"
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEWEST_FOR_MAUVE", 10)
        patch.setattr("sys.stdout", printed)
        code = cdcd_main(
            "evaluate", place / "run", place / "again",
            "--judge", place / "judge", "--baseline", place / "baseline",
            "--num-samples", SAMPLES, "--out", out,
            *SWEEP, *BASELINE_SWEEP,
        )  # fmt: skip
    assert code == 0
    return printed.getvalue(), json.loads((out / "report.json").read_text()), out


def by_label(report: dict) -> dict[tuple, dict]:
    return {(row["system"], *row["settings"].values()): row for row in report["rows"]}


def test_there_is_a_row_for_every_setting_with_all_replicates(evaluated):
    _, report, _ = evaluated
    rows = by_label(report)
    swept = {("cdcd", a, b) for a in (0.5, 1.0) for b in (3, 5)}
    baseline = {("baseline", t) for t in (0.5, 1.0, 2.0)}
    assert set(rows) == {("data",)} | swept | baseline
    for label, row in rows.items():
        expected = {"cdcd": 2}.get(label[0], 1)
        assert len(row["measured"]) == expected
        assert len({each["source"] for each in row["measured"]}) == expected
        values = torch.tensor(
            [each["nll"]["value"] for each in row["measured"]], dtype=torch.double
        )
        assert row["mean"]["nll"]["value"] == pytest.approx(float(values.mean()))
        assert len(values.unique()) == expected, "replicates are the same samples"
        if label[0] == "cdcd":
            # Two runs, that is two training seeds.
            assert row["mean"]["nll"]["error"] == pytest.approx(float(values.std()) / 2**0.5)
        else:
            [only] = row["measured"]
            error = (only["nll"]["high"] - only["nll"]["low"]) / (2 * 1.96)
            assert row["mean"]["nll"]["error"] == pytest.approx(error)
    sources = [each["source"] for each in rows["cdcd", 1.0, 3]["measured"]]
    assert [Path(s.split(",")[0]).name for s in sources] == ["run", "again"]
    assert [s.split(", ")[1] for s in sources] == ["seed 0", "seed 0"]


def test_all_rows_are_measured_at_equal_token_counts(evaluated):
    _, report, _ = evaluated
    counts = {
        each["statistics"]["num_tokens"] for row in report["rows"] for each in row["measured"]
    }
    assert len(counts) == 1
    for row in report["rows"]:
        for each in row["measured"]:
            assert each["entropy"]["value"] == pytest.approx(each["statistics"]["entropy"])
            assert each["nll"]["low"] <= each["nll"]["value"] <= each["nll"]["high"]
            assert each["nats_per_byte"] > 0


def test_frontiers_are_interpolated_along_the_first_sweep(evaluated):
    _, report, _ = evaluated
    rows = by_label(report)
    frontiers = {frontier["system"]: frontier for frontier in report["frontiers"]}
    assert set(frontiers) == {"cdcd, num_steps 3", "cdcd, num_steps 5", "baseline"}
    for steps in (3, 5):
        means = [rows["cdcd", a, steps]["mean"] for a in (0.5, 1.0)]
        points = [[mean["entropy"]["value"], mean["nll"]["value"]] for mean in means]
        assert frontiers[f"cdcd, num_steps {steps}"]["points"] == points
    target = rows["data",]["mean"]["entropy"]["value"]
    points = frontiers["baseline"]["points"]
    found = frontiers["baseline"]["nll_at_data_entropy"]
    assert min(h for h, _ in points) < target < max(h for h, _ in points)
    (h1, n1), (h2, n2) = next(
        pair for pair in itertools.pairwise(points) if pair[0][0] < target < pair[1][0]
    )
    assert found == pytest.approx(n1 + (n2 - n1) * (target - h1) / (h2 - h1))


def test_the_report_says_what_it_depends_on(evaluated, place):
    _, report, _ = evaluated
    assert report["judge"]["disjoint"] is True
    assert report["judge"]["config"]["model"] == "autoregressive"
    assert report["judge"]["step"] == 40
    protocol = report["protocol"]
    assert protocol["prefix"] == "a prefix of 12 given"
    assert set(protocol["runs"]) == {str(place / "run"), str(place / "again")}
    assert protocol["baseline"]["model"] == "autoregressive"
    assert 0 < protocol["num_samples"] <= SAMPLES
    assert {"cdcd", "torch", "python", "device"} <= set(report["environment"])


def test_examples_show_what_was_given(evaluated):
    _, report, out = evaluated
    examples = report["examples"]
    assert "data" in examples
    assert "cdcd (score_temperature 0.5, num_steps 3)" in examples
    prefixes = [re.match("«(.*?)»", text, re.DOTALL)[1] for text in examples["data"]]
    assert len(prefixes) == module.NUM_EXAMPLES
    for label, texts in examples.items():
        found = [re.match("«(.*?)»", text, re.DOTALL)[1] for text in texts]
        assert found == prefixes, f"{label} had other prompts"
    assert examples["data"] != examples["cdcd (score_temperature 0.5, num_steps 3)"]
    written = (out / "examples.txt").read_text()
    assert written.count("== ") == len(examples)


def test_the_table_and_the_pictures(evaluated):
    printed, report, out = evaluated
    for name in ("system", "AR-NLL", "nats/byte", "entropy", "MAUVE", "longest match", "possible"):
        assert name in printed
    for row in report["rows"]:
        assert f"{row['mean']['nll']['value']:.3f}" in printed
    assert "baseline: AR-NLL at the data's entropy" in printed
    assert "may know" not in printed
    names = ["report.json", "examples.txt", "frontier.png"]
    assert printed.split()[-3:] == [str(out / name) for name in names]
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "frontier.png").stat().st_size > 5_000


def test_mauve_and_matches_are_measured_and_can_be_left_out(evaluated, place):
    _, report, _ = evaluated
    for row in report["rows"]:
        assert 0 < row["measured"][0]["mauve"] <= 1
        assert row["measured"][0]["matches"]["mean"] > 0
        assert row["measured"][0]["exact"] is not None
    config = EvaluationConfig(num_samples=8, mauve=False, matches=False)
    plain = Evaluation([place / "run"], str(place / "judge"), config, console=silent()).report()
    assert all(row.measured[0].matches is None for row in plain.rows)
    assert all(row.measured[0].mauve is None for row in plain.rows)
    plain.print(silent())


def test_the_same_evaluation_gives_the_same_numbers(evaluated, place):
    """Also in other batches, and of one run alone."""
    _, report, _ = evaluated
    config = EvaluationConfig(num_samples=SAMPLES, batch_size=7, mauve=False)
    evaluation = Evaluation([place / "again"], str(place / "judge"), config, console=silent())
    again = evaluation.report([{"score_temperature": "0.5", "num_steps": "3"}])
    # Another run's seed is another held-out text, of a built-in corpus.
    first = Evaluation([place / "run"], str(place / "judge"), config, console=silent())
    found = first.report([{"score_temperature": "0.5", "num_steps": "3"}])
    expected = by_label(report)["cdcd", 0.5, 3]["measured"][0]
    [row] = [row for row in found.rows if row.system == "cdcd"]
    assert row.measured[0].nll.value == pytest.approx(expected["nll"]["value"], rel=1e-5)
    assert again.row("data").mean("nll") != found.row("data").mean("nll")


def test_copies_are_looked_for_in_what_a_systems_own_run_trained_on(place):
    """Runs of a built-in corpus with other seeds have other training sets."""
    config = EvaluationConfig(num_samples=8, mauve=False)
    runs = [place / "run", place / "again"]
    evaluation = Evaluation(runs, str(place / "judge"), config, console=silent())
    found = []
    for each in evaluation.systems:
        training = training_sequences(each.config, each.model.tokenizer)
        copied = evaluation.prompts.with_tokens(training.rows(torch.arange(len(evaluation.real))))
        found += [Samples("cdcd", {}, "copied", copied, other) for other in evaluation.systems]
    matches = evaluation._matches(found)
    shares = [matches[each].copied_share for each in found]
    assert shares[0] == shares[3] == 1
    assert max(shares[1:3]) < 0.5
    drawn = {
        s.source: s.system.config
        for s in evaluation._all_samples(jobs_of(evaluation.systems, {}, [{"num_steps": 1}], []))
    }
    for run in runs:
        assert drawn[f"{run}, seed 0"] == cdcd.load(run).config


def test_only_what_is_to_be_generated_is_generated(place):
    model = cdcd.load(place / "run")
    config = EvaluationConfig(num_samples=20, protocol="random")
    evaluation = Evaluation([place / "run"], str(place / "judge"), config, console=silent())
    prompts = evaluation.prompts
    settings = {"num_steps": 3}
    texts = sample_texts(model, prompts, settings, 3, 20)
    given = ~prompts.is_generated
    assert torch.equal(texts.tokens[given], prompts.tokens[given])
    assert not torch.equal(texts.tokens, prompts.tokens)
    # What is to be generated is never read: the answer would be in it.
    hidden = prompts.with_tokens(torch.where(prompts.is_generated, PAD, prompts.tokens))
    for name in ("run", "baseline"):
        model = cdcd.load(place / name)
        settings = {"num_steps": 3} if name == "run" else {}
        one, other = (sample_texts(model, p, settings, 3, 20) for p in (prompts, hidden))
        assert torch.equal(one.tokens, other.tokens)


def test_settings_for_all_reach_the_runs_and_not_the_baseline(place, monkeypatch):
    used = []

    def record(model, prompts, changes, seed, batch_size):
        used.append((model.config.model, changes, seed, batch_size))
        return prompts

    monkeypatch.setattr(module, "sample_texts", record)
    evaluation = Evaluation(
        [place / "run"],
        str(place / "judge"),
        EvaluationConfig(num_samples=4, seed=5, batch_size=3, matches=False),
        baseline=place / "baseline",
        settings={"num_steps": 2, "score_temperature": 0.7},
        console=silent(),
    )
    report = evaluation.report([{"score_temperature": "0.9"}, {}], [{"nucleus": "0.5"}])
    both = {"num_steps": 2, "score_temperature": "0.9"}
    plain = {"num_steps": 2, "score_temperature": 0.7}
    assert used == [
        *(("diffusion", changes, 5, 3) for changes in (both, plain)),
        ("autoregressive", {"nucleus": "0.5"}, 5, 3),
    ]
    assert report.protocol["settings"] == plain
    # Samples that are the real text itself cannot be told from it.
    for row in report.rows:
        assert row.measured[0].nll == report.row("data").measured[0].nll


def test_documents_that_end_in_what_is_given_are_left_out(place):
    config = EvaluationConfig(num_samples=100)
    evaluation = Evaluation([place / "run"], str(place / "judge"), config, console=silent())
    drawn = held_out_texts(evaluation.held_out, 100, "half")
    ended = (drawn.tokens[:, :12] == EOS).any(1)
    assert ended.any()
    assert torch.equal(evaluation.prompts.tokens, drawn.tokens[~ended])
    assert evaluation.real.is_generated.any(1).all()
    report = evaluation.report([{"num_steps": 2}])
    assert report.protocol["num_samples"] == int((~ended).sum())


def test_full_documents_are_never_ended(place):
    config = EvaluationConfig(num_samples=20, sequences="documents")
    evaluation = Evaluation([place / "baseline"], str(place / "judge"), config, console=silent())
    assert (evaluation.real.tokens >= 3).all()
    [samples] = [
        s
        for s in evaluation._all_samples(jobs_of(evaluation.systems, {}, [{}], []))
        if s.name == "autoregressive"
    ]
    assert not ((samples.texts.tokens == EOS) | (samples.texts.tokens == PAD)).any()
    assert samples.texts.is_generated.sum() == 20 * 12


def test_a_judge_with_another_tokenizer(place):
    longer = train_tiny(
        place.parent / "spelt-long",
        TALES | AUTOREGRESSIVE | {"data.tokenizer": "bytes", "data.length": 256},
    )
    config = EvaluationConfig(num_samples=8, matches=False)
    evaluation = Evaluation([place / "run"], str(longer), config, console=silent())
    report = evaluation.report([{"num_steps": 2}])
    for row in report.rows:
        # About uniform over bytes, of which a word has several.
        [measured] = row.measured
        assert 2 < measured.nats_per_byte < 7
        assert measured.nll.value > 2 * measured.nats_per_byte
    # The same stories, in other tokens.
    assert report.judge["shared"] == {"training": 210, "held_out": 0}
    assert not report.judge["disjoint"]
    printed = StringIO()
    report.print(Console(file=printed, width=200))
    assert "The judge trained on 210 of the systems' training documents" in printed.getvalue()


# Mistakes


def refused(place, capfd, message, *options, judge="judge", runs=("run",)):
    before = contents(place)
    arguments = ["evaluate", *(place / run for run in runs), "--judge", place / judge, *options]
    arguments = [str(a).format(place=place) for a in arguments]
    assert cdcd_main(*arguments) == 2
    shown = capfd.readouterr()
    assert re.search(message, shown.err), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith("cdcd evaluate: error: ")
    assert shown.out == ""
    assert contents(place) == before


@pytest.fixture
def no_sampling(monkeypatch):
    def fail(*_):
        raise AssertionError("something was sampled")

    monkeypatch.setattr(module, "sample_texts", fail)


FEW = ("--num-samples", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*FEW, "--sweep", "score_temprature=1"), "unknown setting score_temprature; did you mean"),
        ((*FEW, "--sweep", "score_temperature=1,0"), "score_temperature is 0.0, it must be"),
        ((*FEW, "--sweep", "score_temperature=1,warm"), "'warm' is not a finite number"),
        ((*FEW, "--sweep", "num_steps=2.5"), "'2.5' is not a whole number"),
        ((*FEW, "--sweep", "score_temperature"), "written name=value,value, not 'score_temper"),
        ((*FEW, "--sweep", "renormalise=false,true"), "only for models trained without self-cond"),
        (
            (*FEW, "--sweep", "temperature=1"),
            "temperature is a setting of decoder mask-predict and",
        ),
        (
            (*FEW, "--baseline", "{place}/baseline", "--baseline-sweep", "score_temperature=1"),
            "score_temperature is a setting of decoder ode, not of autoregressive",
        ),
        (("--num-samples", 0), "num_samples is 0, it must be at least 2"),
        (("--num-samples", 5_000), r"5000 samples were asked for, .* has \d+ sequences"),
        ((*FEW, "--split", "test"), "--split test needs a prepared data set; leave it out"),
        ((*FEW, "--protocol", "third"), "unknown choice third"),
        ((*FEW, "--baseline", "{place}/absent"), "absent does not exist"),
        ((*FEW, "--baseline", "{place}/short"), "the runs differ in data.length: 24 and 12"),
        ((*FEW, "--baseline", "{place}/streamed"), "the runs differ in data.layout"),
        ((*FEW, "--baseline", "{place}/spelt"), "the runs have different tokenizers"),
        ((*FEW, "--data", "{place}/absent.txt"), "text .*absent.txt is not there; say where with"),
    ],
)
def test_mistakes(place, capfd, no_sampling, options, message):
    refused(place, capfd, message, *options)


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("absent", "absent does not exist; train one with"),
        ("run", "run is a diffusion model; train one with: cdcd train --model autoregressive"),
        ("short", "reads sequences of 12 tokens, the generator writes 24; train the judge with"),
    ],
)
def test_judges_that_cannot_judge(place, capfd, no_sampling, judge, message):
    refused(place, capfd, message, *FEW, judge=judge)


def test_a_judge_whose_sequences_are_too_short_for_the_text(place, capfd, no_sampling):
    """A judge of bytes reads 24 of them: only the text itself shows that it is too short."""
    refused(place, capfd, r"a generated text has \d+ tokens by the judge", *FEW, judge="spelt")


def test_guidance_needs_a_model_that_was_trained_for_it(place, capfd, no_sampling):
    options = (*FEW, "--sweep", "guidance_scale=1,2")
    refused(place, capfd, "conditioning_dropout above 0", *options, runs=["undropped"])


def test_a_judge_is_required(place, capfd):
    assert cdcd_main("evaluate", place / "run") == 2
    assert "needs a judge: --judge RUN|hf:NAME" in capfd.readouterr().err


# Text of one's own, and prepared data sets


def test_runs_on_a_text_file_must_hold_out_the_same_documents(tmp_path, capfd, no_sampling):
    (tmp_path / "corpus.txt").write_text("\n".join(tales.stories(120, seed=2)) + "\n")
    own = {"data.source": str(tmp_path / "corpus.txt"), "data.tokenizer": "bytes"}
    train_tiny(tmp_path / "run", TALES | own)
    train_tiny(tmp_path / "judge", TALES | own | AUTOREGRESSIVE)
    train_tiny(tmp_path / "other", TALES | own | AUTOREGRESSIVE | {"training.seed": 1})
    message = r"was trained on 2\d of the 36 held-out documents; choose another --split"
    refused(tmp_path, capfd, f"the baseline {message}", *FEW, "--baseline", "{place}/other")
    refused(tmp_path, capfd, f"the judge .*other {message}", *FEW, judge="other")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """All by the command line: a text file, a data set, a run on it, its judge."""
    place = tmp_path_factory.mktemp("prepared")
    (place / "corpus.txt").write_text("\n".join(tales.stories(600, seed=3)) + "\n")
    shares = ("--valid-share", 0.1, "--test-share", 0.2, "--judge-share", 0.3)
    source = ("--source", place / "corpus.txt", "--tokenizer", "words", "--workers", 1)
    assert cdcd_main("data", "prepare", "--out", place / "set", *source, *shares) == 0
    stream = {"data.layout": "stream", "data.source": str(place / "set")}
    for name, changes in (
        ("run", {}),
        ("judge", AUTOREGRESSIVE | {"data.split": "judge"}),
        ("baseline", AUTOREGRESSIVE),
        ("peeked", AUTOREGRESSIVE | {"data.split": "test"}),
    ):
        options = tiny_options(stream | changes)
        assert cdcd_main("train", "--data", place / "set", "--out", place / name, *options) == 0
    return place


def test_a_prepared_data_set_from_end_to_end(prepared, capfd):
    capfd.readouterr()
    options = ("--judge", prepared / "judge", "--baseline", prepared / "baseline", "--seed", 3)
    code = cdcd_main("evaluate", prepared / "run", *options, "--num-samples", 30)
    shown = capfd.readouterr()
    assert code == 0, shown.err
    assert "may know" not in shown.out
    report = json.loads((prepared / "run/evaluation/report.json").read_text())
    assert report["judge"]["disjoint"] is True
    assert report["judge"]["about"].endswith("(judge)")
    assert "exact NLL" not in shown.out
    rows = by_label(report)
    assert {("baseline", n) for n in (0.8, 0.9, 0.95, 1.0)} < set(rows)
    assert ("cdcd",) in rows
    # The samples of a stream are measured whole.
    assert rows["data",]["measured"][0]["statistics"]["num_tokens"] == 30 * 12


def test_the_split_is_held_out(prepared, capfd, no_sampling):
    message = r"run was trained on (\d+) of the \1 held-out documents"
    refused(prepared, capfd, message, *FEW, "--split", "train")
    refused(prepared, capfd, r"no documents in a split 'tset'", *FEW, "--split", "tset")
    message = r"was trained on (\d+) of the \1 held-out documents"
    refused(prepared, capfd, f"baseline {message}", *FEW, "--baseline", "{place}/peeked")
    refused(prepared, capfd, f"judge .*peeked {message}", *FEW, judge="peeked")


def test_the_test_split_is_measured_where_there_is_one(prepared):
    def held_out(split: str) -> torch.Tensor:
        config = EvaluationConfig(num_samples=4, split=split)
        found = Evaluation([prepared / "run"], str(prepared / "judge"), config, console=silent())
        return found.held_out.rows(torch.arange(20))

    assert torch.equal(held_out("auto"), held_out("test"))
    assert not torch.equal(held_out("auto"), held_out("valid"))


def test_text_that_has_moved(prepared, capfd, no_sampling):
    judge = str(prepared / "judge")
    config = EvaluationConfig(num_samples=4)
    before = Evaluation([prepared / "run"], judge, config, console=silent())
    (prepared / "set").rename(prepared / "moved")
    try:
        refused(prepared, capfd, r"the run's text .*set is not there; .* --data PATH", *FEW)
        moved = Evaluation(
            [prepared / "run"], judge, config, data=str(prepared / "moved"), console=silent()
        )
        assert torch.equal(moved.real.tokens, before.real.tokens)
        assert moved.judge_facts["disjoint"] is True
    finally:
        (prepared / "moved").rename(prepared / "set")


def test_text_of_another_tokenizer(prepared, tmp_path, capfd, no_sampling):
    (tmp_path / "corpus.txt").write_text("a b c d e f g h\n" * 200)
    prepare(
        PrepareConfig(source=str(tmp_path / "corpus.txt"), tokenizer="symbols", workers=1),
        tmp_path / "set",
    )
    capfd.readouterr()
    options = (*FEW, "--data", tmp_path / "set")
    refused(prepared, capfd, "has another tokenizer than the run", *options)


# Settings and reports


def test_sweeps_make_a_grid():
    assert sweep_settings([]) == [{}]
    assert sweep_settings(["score-temperature=0.9, 1"]) == [
        {"score_temperature": "0.9"},
        {"score_temperature": "1"},
    ]
    grid = sweep_settings(["--a=1,2", "b=3,4"])
    assert grid == [{"a": x, "b": y} for x in "12" for y in "34"]


@pytest.mark.parametrize(
    ("sweeps", "message"),
    [
        (["a="], "written name=value,value, not 'a='"),
        (["=1,2"], "written name=value,value"),
        (["a=1,,2"], "written name=value,value"),
        (["a=2,2"], "repeats a value or a name"),
        (["a-b=2", "a_b=3"], "repeats a value or a name"),
    ],
)
def test_sweeps_that_cannot_be_read(sweeps, message):
    with pytest.raises(ValueError, match=message):
        sweep_settings(sweeps)


@pytest.mark.parametrize(("name", "value"), [("num_samples", 1), ("batch_size", 0)])
def test_numbers_that_are_too_small(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}, it must be at least {value + 1}"):
        EvaluationConfig(**{name: value})


def measured(nll: float, entropy: float) -> Measured:
    tokens = torch.tensor([[3, 4], [3, 5]])
    return Measured(
        source="made up",
        nll=Interval(nll, nll - 0.196, nll + 0.196),
        nats_per_byte=nll / 4,
        entropy=Interval(entropy, entropy - 0.1, entropy + 0.1),
        statistics=text_statistics(tokens, torch.ones_like(tokens, dtype=torch.bool)),
    )


def made_up(points: dict[tuple[str, ...], tuple[float, float]]) -> Report:
    names = ("first", "second")
    rows = [Row("data", {}, [measured(2.0, 5.0)])]
    rows += [
        Row("cdcd", dict(zip(names, settings, strict=False)), [measured(nll, entropy)])
        for settings, (entropy, nll) in points.items()
    ]
    protocol = {"num_samples": 2, "length": 2, "prefix": "nothing given", "settings": {}}
    return Report(rows, {"name": "j", "about": "made up", "disjoint": True}, protocol)


def test_a_frontier_is_read_at_the_datas_entropy():
    report = made_up({("1",): (4.0, 1.0), ("2",): (6.0, 3.0)})
    [frontier] = report.frontiers()
    assert frontier.points == [(4.0, 1.0), (6.0, 3.0)]
    assert frontier.nll_at_data_entropy == pytest.approx(2.0)
    [beyond] = made_up({("1",): (5.5, 1.0), ("2",): (6.0, 3.0)}).frontiers()
    assert beyond.nll_at_data_entropy is None
    assert made_up({("1",): (5.0, 1.0)}).frontiers() == []


def test_a_grid_is_one_frontier_for_each_setting_of_the_second_sweep():
    """Neighbours in the list of settings need not be neighbours on a line."""
    points = {
        ("1", "a"): (4.0, 1.0), ("1", "b"): (7.0, 0.0),
        ("2", "a"): (6.0, 3.0), ("2", "b"): (8.0, 1.0),
    }  # fmt: skip
    frontiers = {f.system: f.nll_at_data_entropy for f in made_up(points).frontiers()}
    assert frontiers == {"cdcd, second a": pytest.approx(2.0), "cdcd, second b": None}


def test_one_run_has_the_error_of_its_samples_and_several_that_of_their_mean():
    assert Row("cdcd", {}, [measured(2.0, 5.0)]).mean("nll") == (2.0, pytest.approx(0.1))
    runs = [measured(value, 5.0) for value in (1.0, 2.0, 3.0)]
    assert Row("cdcd", {}, runs).mean("nll") == (2.0, pytest.approx(1 / 3**0.5))


def test_a_report_without_matplotlib_has_its_numbers(tmp_path, monkeypatch):
    def absent(*_):
        raise ValueError("pictures need matplotlib")

    monkeypatch.setattr("cdcd.evaluation.report_plots.new_figure", absent)
    report = made_up({("1",): (4.0, 1.0), ("2",): (6.0, 3.0)})
    report = replace(report, examples={"cdcd": ["«Mia» was\nhome."]})
    paths = report.write(tmp_path / "a/b")
    assert [path.name for path in paths] == ["report.json", "examples.txt"]
    written = json.loads(paths[0].read_text())
    assert written["frontiers"][0]["nll_at_data_entropy"] == pytest.approx(2.0)
    assert paths[1].read_text() == "== cdcd\n«Mia» was ⏎ home.\n\n"


def test_texts_are_scored_by_what_counts(place):
    """The whole way from tokens to a row equals one computed by hand."""
    config = EvaluationConfig(num_samples=12, mauve=False, matches=False)
    evaluation = Evaluation([place / "run"], str(place / "judge"), config, console=silent())
    real: Texts = evaluation.real
    [row] = evaluation._rows([Samples("data", {}, "held-out text", real, evaluation.systems[0])])
    logits = cdcd.load(place / "judge").model(real.tokens)
    nll = -torch.log_softmax(logits, -1).gather(-1, real.tokens[..., None])[..., 0]
    expected = float(nll[real.is_generated].mean())
    assert row.measured[0].nll.value == pytest.approx(expected, rel=1e-5)
    words = evaluation.tokenizer
    text = [
        words.decode(t[g].tolist()) for t, g in zip(real.tokens, real.is_generated, strict=True)
    ]
    num_bytes = sum(len(each.encode()) for each in text)
    # Each text has a space before it, unless it begins with a mark; its end is a byte.
    num_bytes += sum(each[:1] not in (".", ",", "?", "!", ":", "") for each in text)
    num_bytes += int(((real.tokens == EOS) & real.is_generated).sum())
    total = float(nll[real.is_generated].sum())
    assert row.measured[0].nats_per_byte == pytest.approx(total / num_bytes, rel=1e-4)
