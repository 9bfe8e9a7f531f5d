"""`cdcd evaluate` for translators: known translations get their known numbers, and stopping loses nothing."""

import json
import re
import statistics
from collections import Counter
from dataclasses import replace

import pytest
import torch
from controls import wrong_translations
from tiny import cdcd_main, contents, silent, train_tiny

from cdcd.data.pairs import PreparedPairs
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.tokenizers import numerals_tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.evaluation.held_out_pairs import (
    HeldOutPairs,
    held_out_pairs,
    overlap,
    training_pairs,
)
from cdcd.evaluation.systems import System, jobs_of
from cdcd.evaluation.translation_evaluation import TranslationConfig, TranslationEvaluation
from cdcd.inference.rounds import Predicted
from cdcd.inference.translator import Translator
from cdcd.languages import numerals
from cdcd.metrics.bleu import Corpus, bleu_difference
from cdcd.presets import preset
from cdcd.settings import override
from cdcd.training import corpora
from cdcd.training import run as runs

COUNT = 30
SMALL = {"data.num_documents": 300, "sampling.num_steps": 4}
TINY = SMALL | {
    "seq2seq.num_encoder_blocks": 1,
    "seq2seq.num_decoder_blocks": 1,
    "seq2seq.width": 16,
    "seq2seq.hidden": 16,
    "seq2seq.num_heads": 2,
    "training.steps": 2,
    "training.batch_size": 4,
    "training.warmup_steps": 0,
    "training.decay_steps": 0,
    "training.validate_every": 0,
    "training.valid_sequences": 4,
}


def small_config(model="diffusion", **changes):
    return override(preset("numerals", model), SMALL | changes)


CONFIG = small_config()
HELD_OUT = held_out_pairs(CONFIG, num_sentences=COUNT)
SOURCES, REFERENCES = HELD_OUT.corpus.sources, HELD_OUT.corpus.references


@pytest.fixture
def pictures():
    """For tests that look at them."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    if "pictures" not in request.fixturenames:
        for name in ("plot_bleu_by_count", "plot_bleu_by_steps"):
            monkeypatch.setattr(f"cdcd.evaluation.report_plots.{name}", lambda *_: None)


class Scripted(Translator):
    """Translates by a script: `answer(number, sample, settings)`."""

    def __init__(self, answer, config=CONFIG, tokenizer=None, sure=lambda number, sample: 0.0):
        super().__init__(config, tokenizer or numerals_tokenizer(), torch.nn.Linear(1, 1))
        self.answer, self.sure, self.calls = answer, sure, []

    def settings(self, changes, num_samples=1):
        if "confidence_weight" in changes:
            return override(self.config.mask_predict, changes)
        if self.config.model == "diffusion":
            return override(self.config.sampling, changes)
        drawn = num_samples > 1 or "temperature" in changes
        return override(self.config.decoding if drawn else self.config.beam, changes)

    def fill(self, source, places, settings, done):
        self.calls.append(places)
        rows = []
        for _, number, sample in places:
            tokens = [*self.tokenizer.encode(self.answer(number, sample, settings)), EOS]
            rows.append([*tokens, *[PAD] * (self.config.data.length - len(tokens))])
        confidence = torch.tensor([self.sure(number, sample) for _, number, sample in places])
        return Predicted(torch.tensor(rows), confidence)


def system(answer, name="cdcd", **config):
    translator = Scripted(answer, small_config(**config))
    return System(f"runs/{name}", name, translator, translator.config, "10 abc")


def baseline(answer):
    return system(answer, "baseline", model="autoregressive")


def evaluated(systems, out, *, sweep=({},), other=None, held_out=HELD_OUT, **config):
    evaluation = TranslationEvaluation(
        [*systems, *([other] if other else [])],
        held_out,
        TranslationConfig(**({"batch_size": 8, "num_resamples": 100} | config)),
        console=silent(),
    )
    report = evaluation.report(out, sweep)
    report.write(out)
    return report


def perfect(number, *_):
    return REFERENCES[number]


def quarter_empty(number, *_):
    return "" if number % 4 == 0 else REFERENCES[number]


def neighbour(number, *_):
    return REFERENCES[(number + 1) % COUNT]


def row(report, system, **settings):
    [found] = [r for r in report.rows if (r.system, r.settings) == (system, settings)]
    return found


# Numbers


def test_a_perfect_translator_is_right_throughout(tmp_path):
    found = row(evaluated([system(perfect)], tmp_path), "cdcd")
    assert found.scores.bleu.value == pytest.approx(100)
    assert (found.exact.num_right, found.exact.num_sentences, found.exact.reasons) == (30, 30, {})
    assert (found.scores.repetition, found.scores.missing_words) == (0, 0)
    assert found.num_too_long == 0
    assert found.sentences_per_second > 0


def test_what_is_wrong_is_counted_by_its_reason(tmp_path):
    report = evaluated([system(neighbour)], tmp_path, held_out=HELD_OUT)
    found = row(report, "cdcd").exact
    pairs = zip(SOURCES, [*REFERENCES[1:], REFERENCES[0]], strict=True)
    expected = Counter(numerals.check(*pair, "en-de") for pair in pairs)
    assert found.num_right == expected.pop("right", 0)
    assert found.reasons == dict(expected)
    quarter = row(evaluated([system(quarter_empty)], tmp_path / "other"), "cdcd")
    assert (quarter.exact.num_right, quarter.exact.reasons) == (22, {"not grammatical": 8})
    assert quarter.scores.empty_share == pytest.approx(8 / 30)


def test_wrong_translations_are_told_from_references():
    config = TranslationConfig(num_resamples=100)
    evaluation = TranslationEvaluation([], HELD_OUT, config, console=silent())
    texts = wrong_translations(HELD_OUT.corpus)
    found = {name: evaluation._scored(each, system=name) for name, each in texts.items()}
    assert found.pop("references").exact.num_right == COUNT
    for name, each in found.items():
        assert each.exact.num_right <= 1, name
        assert each.scores.bleu.value < 60, name
    assert found["source copied"].scores.missing_words > 0.5


def majority_right(number, sample, _):
    """One sample of three is wrong, another one for each sentence."""
    return "Heute ist Montag." if sample == number % 3 else REFERENCES[number]


def test_decoding_finds_what_most_samples_say(tmp_path):
    report = evaluated([system(majority_right)], tmp_path, counts=(3,))
    found = row(report, "cdcd")
    assert [each.num_samples for each in found.by_count] == [1, 3]
    assert found.by_count[0].bleu == found.scores.bleu
    assert found.by_count[1].bleu.value == pytest.approx(100)
    assert found.by_count[1].oracle_bleu == pytest.approx(100)
    assert found.exact.num_right == 20
    assert found.exact_by_count.num_right == COUNT
    lines = (tmp_path / "hypotheses/cdcd-3-samples.txt").read_text().splitlines()
    assert lines == list(REFERENCES)
    by_characters = evaluated([system(majority_right)], tmp_path, counts=(3,), utility="chrf")
    assert row(by_characters, "cdcd").exact_by_count.num_right == COUNT


def test_decoding_can_count_confidence(tmp_path):
    def confidently_wrong(number, sample):
        return -0.1 if sample == number % 3 else -0.2

    def found(**settings):
        one = system(majority_right)
        one.model.sure = confidently_wrong
        report = evaluated([one], tmp_path, sweep=[settings], counts=(3,))
        return row(report, "cdcd", **settings).exact_by_count.num_right

    # The majority is some 67 points more alike than the other, which is more confident by 0.1 nats.
    assert found() == found(confidence_weight=0.0) == found(confidence_weight=30.0) == COUNT
    assert found(confidence_weight=3000.0) == 0


def by_steps(number, _, settings):
    """Better with more steps; from ten on only one sentence is worse."""
    wrong = {5: 12, 10: 1, 50: 0}[settings.num_steps]
    return neighbour(number) if number < wrong else REFERENCES[number]


def test_a_sweep_is_a_line_in_the_order_of_its_setting(tmp_path, pictures):
    sweep = [{"num_steps": steps} for steps in ("50", "5", "10")]
    report = evaluated([system(by_steps)], tmp_path, sweep=sweep, counts=(1, 2))
    [line] = report.lines("num_steps").values()
    assert [each.settings["num_steps"] for each in line] == [5, 10, 50]
    assert [each.settings["num_steps"] for each in report.rows[1:]] == [50, 5, 10]
    values = [each.scores.bleu.value for each in line]
    assert values == sorted(set(values))
    for name in ("bleu_by_samples.png", "bleu_by_steps.png"):
        assert (tmp_path / name).stat().st_size > 1000


def test_seeds_have_a_mean_and_a_deviation(tmp_path):
    answers = (perfect, quarter_empty, majority_right)
    systems = [system(answer, f"cdcd {n}") for n, answer in enumerate(answers)]
    report = evaluated(systems, tmp_path, counts=(1, 3))
    [found] = report.over_runs
    values = [row(report, f"cdcd {n}").scores.bleu.value for n in range(3)]
    assert found.bleu.mean == pytest.approx(statistics.fmean(values))
    assert found.bleu.deviation == pytest.approx(statistics.stdev(values))
    assert found.right.mean == pytest.approx(100 * (30 + 22 + 20) / 90)
    assert (found.system, found.settings, len(found.runs)) == ("cdcd", {}, 3)
    assert set(found.bleu_by_count) == {1, 3}
    assert found.bleu_by_count[3].mean > found.bleu.mean
    written = json.loads((tmp_path / "translation.json").read_text())
    assert written["over_runs"][0]["bleu"]["mean"] == found.bleu.mean
    assert evaluated(systems[:1], tmp_path).over_runs == []


def test_the_baseline_searches_and_samples_and_differences_are_paired(tmp_path):
    def other(number, sample, settings):
        if hasattr(settings, "beam_size"):
            return quarter_empty(number)
        return neighbour(number) if settings.temperature == 0 else majority_right(number, sample, 0)

    report = evaluated([system(perfect)], tmp_path, other=baseline(other), counts=(1, 3))
    labels = ["beam search", "greedy", "samples"]
    names = ["references", "cdcd", *(f"baseline: {label}" for label in labels)]
    assert [each.label for each in report.rows] == names
    assert [bool(each.by_count) for each in report.rows] == [False, True, False, False, True]
    beam = [quarter_empty(n) for n in range(COUNT)]
    expected = bleu_difference(beam, REFERENCES, HELD_OUT.corpus, num_resamples=100)
    assert [(each.first, each.second) for each in report.differences] == [
        ("baseline: beam search", "cdcd"),
        ("baseline: beam search", "cdcd, 3 samples"),
        ("baseline: samples, 3 samples", "cdcd, 3 samples"),
    ]
    assert report.differences[0].bleu == report.differences[1].bleu == expected
    assert report.differences[0].bleu.low > 0
    assert report.differences[2].bleu.value == pytest.approx(0)
    assert report.over_runs == []


def test_an_autoregressive_run_has_its_usual_rows_once(tmp_path):
    one = baseline(perfect)
    sweep = [{"beam_size": "1"}, {"beam_size": str(one.config.beam.beam_size)}]
    jobs = jobs_of([one], {}, [], [{"temperature": "0.5"}], 4)
    assert [(job.mode, job.reported, job.num_samples) for job in jobs] == [
        ("beam search", {}, 1), ("greedy", {}, 1), ("samples", {"temperature": 0.5}, 4),
        ("samples", {}, 4),
    ]  # fmt: skip
    drawn = jobs_of([replace(one, name="drawn")], {"temperature": 0.5}, [{}], [], 4)
    assert {(job.mode, job.num_samples) for job in drawn} == {("samples", 4), ("greedy", 1)}
    report = evaluated([system(perfect), one], tmp_path, other=None)
    assert [each.label for each in report.rows][2:] == ["baseline: beam search", "baseline: greedy"]
    jobs = jobs_of([system(perfect), one], {}, [{}], sweep)
    shown = [(job.mode, job.reported) for job in jobs[1:]]
    assert shown == [("beam search", {}), ("greedy", {}), ("beam search", {"beam_size": 1})]


# How it is translated


FITS, TOO_LONG = "Heute ist Montag.", "Heute " * 40 + "ist Montag."


@pytest.mark.parametrize(
    ("long", "unread", "expected"),
    [
        (" ".join([FITS] * 20), 0, "one two three"),
        (f"{FITS} {TOO_LONG} {FITS}", 1, "one three"),
        (TOO_LONG, 1, ""),
    ],
)
def test_sentences_that_are_too_long_are_counted_and_never_dropped(
    tmp_path, long, unread, expected
):
    """The last line is long: its pieces come last, each with a translation of its own.

    Seven short sentences of four tokens fit into one, with its end.
    """
    corpus = replace(HELD_OUT.corpus, sources=[*SOURCES[:-1], long])
    spoken = ("one", "two", "three")
    scripted = system(lambda n, *_: [*REFERENCES[:-1], *spoken][n])
    report = evaluated([scripted], tmp_path, held_out=HeldOutPairs(corpus, "with a long one"))
    found = row(report, "cdcd")
    assert (found.num_too_long, found.num_unread) == (1, unread)
    assert report.num_sentences == COUNT
    lines = (tmp_path / "hypotheses/cdcd.txt").read_text().splitlines()
    assert lines == [*REFERENCES[:-1], expected]
    said = f"1 sentences are too long for a model: translated in pieces; of {unread} a piece"
    assert any(said in remark for remark in report.remarks)


def test_texts_are_written_for_people(tmp_path):
    evaluated([system(perfect)], tmp_path, other=baseline(quarter_empty), counts=(1, 2))
    examples = (tmp_path / "examples.md").read_text()
    numbers = [int(n) for n in re.findall(r"## Sentence (\d+)", examples)]
    assert len(numbers) == 20
    assert numbers == sorted(set(numbers))
    for number in numbers:
        assert f"- source: {SOURCES[number - 1]}\n" in examples
        assert f"- cdcd: {REFERENCES[number - 1]}\n" in examples
    for label in ("reference", "cdcd, 2 samples", "baseline: beam search"):
        assert examples.count(f"- {label}: ") == 20
    assert "- baseline: beam search: (nothing)" in examples
    read = {
        path.stem: path.read_text().splitlines() for path in (tmp_path / "hypotheses").iterdir()
    }
    assert read["source"] == list(SOURCES)
    assert read["reference"] == read["cdcd"] == list(REFERENCES)
    assert read["baseline-beam-search"] == [quarter_empty(n) for n in range(COUNT)]
    assert all(len(lines) == COUNT for lines in read.values())


# Stopping and going on


def without_speed(report):
    rows = [replace(each, sentences_per_second=None) for each in report.rows]
    return replace(report, rows=rows)


SWEEP = [{"num_steps": str(steps)} for steps in (5, 10, 50)]


def test_stopped_and_gone_on_is_uninterrupted(tmp_path):
    def stopping(number, sample, settings):
        if settings.num_steps == 10 and number == 20:
            raise KeyboardInterrupt
        return by_steps(number, sample, settings)

    whole = evaluated([system(by_steps)], tmp_path / "whole", sweep=SWEEP)
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        evaluated([system(stopping)], out, sweep=SWEEP)
    assert [path.name for path in out.iterdir()] == ["rows"]
    assert len(list((out / "rows").iterdir())) == 1
    again = system(by_steps)
    found = evaluated([again], out, sweep=SWEEP)
    assert without_speed(found) == without_speed(whole)
    assert sum(map(len, again.model.calls)) == 2 * COUNT
    third = system(by_steps)
    assert evaluated([third], out, sweep=SWEEP) == found
    assert third.model.calls == []


def test_a_row_that_was_not_written_whole_is_made_again(tmp_path):
    evaluated([system(by_steps)], tmp_path, sweep=SWEEP)
    first, *_ = written = list((tmp_path / "rows").iterdir())
    first.with_name(f".{first.name}.writing").write_text(first.read_text()[:200])
    first.unlink()
    again = system(by_steps)
    evaluated([again], tmp_path, sweep=SWEEP)
    assert sum(map(len, again.model.calls)) == COUNT
    assert set((tmp_path / "rows").iterdir()) == set(written)


@pytest.mark.parametrize(
    "change",
    ["seed", "counts", "batch_size", "checkpoint", "run", "test set", "settings", "own settings"],
)
def test_a_row_of_anything_else_is_not_taken(tmp_path, change):
    first = system(perfect)
    evaluated([first], tmp_path)
    again, arguments = system(perfect), {}
    match change:
        case "seed" | "batch_size":
            arguments = {change: 5}
        case "counts":
            arguments = {"counts": (1, 2)}
        case "checkpoint":
            again = replace(again, checkpoint="20 abc")
        case "run":
            again = replace(again, run="runs/another")
        case "test set":
            other = replace(HELD_OUT.corpus, references=[*REFERENCES[:-1], "Heute ist Montag."])
            arguments = {"held_out": replace(HELD_OUT, corpus=other)}
        case "settings":
            arguments = {"sweep": [{"num_steps": "5"}]}
        case "own settings":
            again = system(perfect, **{"sampling.num_steps": 5})
    evaluated([again], tmp_path, **arguments)
    assert again.model.calls
    assert len(list((tmp_path / "rows").iterdir())) == 2


def test_a_kept_row_is_named_anew(tmp_path):
    evaluated([system(perfect)], tmp_path)
    renamed = replace(system(perfect), name="cdcd first")
    report = evaluated([renamed, system(quarter_empty, "cdcd second")], tmp_path)
    assert [each.label for each in report.rows][1:] == ["cdcd first", "cdcd second"]
    assert renamed.model.calls == []


# Test sets


def test_built_in_pairs_are_held_out_and_those_of_no_training(tmp_path):
    assert len(held_out_pairs(CONFIG).corpus.sources) == 500
    assert held_out_pairs(CONFIG, num_sentences=COUNT) == HELD_OUT
    assert held_out_pairs(CONFIG, split="valid", num_sentences=COUNT).hash != HELD_OUT.hash
    for text in SOURCES:
        assert all(map(numerals.is_held_out, numerals.parse(text, "en")))
    tokenizer = numerals_tokenizer()
    assert overlap(HELD_OUT.corpus, CONFIG, tokenizer).pairs == 0
    back = held_out_pairs(small_config(**{"data.languages": "de-en"}), num_sentences=5)
    assert (back.direction, back.corpus.target_language) == ("de-en", "en")
    for source, reference in zip(back.corpus.sources, back.corpus.references, strict=True):
        assert numerals.check(source, reference, "de-en") == "right"
    with pytest.raises(ValueError, match="no split 'judge'; choose test or valid"):
        held_out_pairs(CONFIG, split="judge")


def test_what_was_trained_on_is_found(tmp_path):
    tokenizer = numerals_tokenizer()
    known = corpora.built_in_pairs(CONFIG.data, 7, seed=CONFIG.training.seed, held_out=False)
    sources = [*SOURCES, *(source for source, _ in known), known[0][0]]
    references = [*REFERENCES, *(target for _, target in known), "Heute ist Montag."]
    corpus = Corpus(sources, references, "en", "de")
    found = overlap(corpus, CONFIG, tokenizer)
    assert (found.pairs, found.sources) == (7, 8)
    report = evaluated([system(lambda *_: "")], tmp_path, held_out=HeldOutPairs(corpus, "known"))
    assert "trained on: at most 7 of the test set's pairs, 8 of its sources" in report.remarks
    assert report.protocol["trained_on"] == {"runs/cdcd": {"pairs": 7, "sources": 8}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Made-up pairs, some of which lack a translation."""
    place = tmp_path_factory.mktemp("prepared")
    lines = {"en": [], "de": []}
    for n in range(300):
        lines["en"].append(f"The house  {n} is “big”." + " Very big." * (n % 7))
        lines["de"].append(f"Das Haus  {n} ist „groß“." + " Sehr groß." * (n % 7))
        if n % 10 == 3:
            lines["de"][-1] = ""
    for language, texts in lines.items():
        (place / f"a.{language}").write_text("\n".join(texts) + "\n")
    shares = {"valid_share": 0.1, "test_share": 0.2, "workers": 1}
    sources = {"source": str(place / "a.en"), "target_source": str(place / "a.de")}
    for name, more in (
        ("set", {}),
        ("untested", {"test_share": 0.0}),
    ):
        config = PrepareConfig(**(sources | shares | {"tokenizer": "bytes"} | more))
        prepare(config, place / name, console=silent())
    return place


def prepared_config(place, name="set", **changes):
    lengths = {"data.length": 120, "data.source_length": 120}
    return small_config(**({"data.source": str(place / name)} | lengths | changes))


def test_the_test_split_is_the_original_text_in_the_runs_direction(prepared):
    dataset = PreparedPairs(prepared / "set")
    texts = [dataset.texts("test", n) for n in range(dataset.num_pairs("test"))]
    found = held_out_pairs(prepared_config(prepared))
    assert list(zip(found.corpus.sources, found.corpus.references, strict=True)) == texts
    assert texts[0][0].startswith("The house  ")
    assert (found.direction, found.name) == (None, "set, test")
    [remark] = found.remarks
    assert remark.endswith(f"when it was prepared: empty {dataset.counts('test')['empty']}")
    swapped = {"data.reverse": True}
    back = held_out_pairs(prepared_config(prepared, **swapped))
    assert (back.corpus.sources, back.corpus.target_language) == (found.corpus.references, "en")
    few = held_out_pairs(prepared_config(prepared), split="valid", num_sentences=5)
    assert len(few.corpus.sources) == 5
    assert re.fullmatch(r"set, valid, the first 5 of \d+", few.name)


def test_splits_that_are_not_there_or_were_trained_on(prepared):
    config = prepared_config(prepared, "untested")
    with pytest.raises(ValueError, match="no pairs in a split 'test', it has train, valid: choose"):
        held_out_pairs(config)
    with pytest.raises(ValueError, match="the split train is what a run trained on"):
        held_out_pairs(config, split="train", trained_on={"train"})
    moved = prepared_config(prepared, "moved")
    with pytest.raises(ValueError, match="moved are not there; say where with --data FOLDER"):
        held_out_pairs(moved)


def test_files_without_a_line_are_no_test_set(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="the test set has 0 sources and 0 references"):
        held_out_pairs(CONFIG, files=(tmp_path / "empty", tmp_path / "empty"))


def test_a_run_whose_pairs_have_gone_is_tested_on_files(prepared, tmp_path):
    moved, place = prepared_config(prepared, "moved"), tmp_path / "out"
    held_out = held_out_pairs(moved, files=(prepared / "a.en", prepared / "a.de"), num_sentences=4)
    translator = Scripted(lambda *_: "Heute ist Montag.", moved)
    gone = System("runs/gone", "cdcd", translator, moved, "1 a")
    report = evaluated([gone], place, held_out=held_out)
    assert held_out.name == "a.en, a.de, the first 4 of 300"
    assert "the training pairs of runs/gone are not there: not compared" in report.remarks


def test_prepared_pairs_are_compared_with_what_was_trained_on(prepared):
    config = prepared_config(prepared)
    dataset = PreparedPairs(prepared / "set")
    num_trained = len(list(training_pairs(config, dataset.tokenizer)))
    everything = held_out_pairs(config, files=(prepared / "a.en", prepared / "a.de"))
    assert overlap(everything.corpus, config, dataset.tokenizer).pairs == num_trained > 0
    held_out = held_out_pairs(config)
    assert overlap(held_out.corpus, config, dataset.tokenizer).pairs == 0


# The command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translators")
    for name, model, changes in (
        ("run", "diffusion", {}),
        ("again", "diffusion", {"training.seed": 1}),
        ("baseline", "autoregressive", {}),
        ("back", "autoregressive", {"data.languages": "de-en"}),
    ):
        config = override(preset("numerals", model), TINY | changes)
        runs.start(config, folder / name, console=silent()).train()
    train_tiny(folder / "text")
    (folder / "a.en").write_text("".join(f"{text}\n" for text in SOURCES))
    (folder / "a.de").write_text("".join(f"{text}\n" for text in REFERENCES))
    (folder / "b.de").write_text("".join(f"{text}\n" for text in REFERENCES[:-2]))
    return folder


FEW = ("--num-sentences", 6, "--batch-size", 4, "--num-resamples", 100)


def test_from_end_to_end(place, tmp_path, capfd):
    options = ("--baseline", place / "baseline", "--counts", "1,3", "--sweep", "num-steps=2,3")
    arguments = (
        "evaluate",
        place / "run",
        place / "again",
        *options,
        *FEW,
        "--out",
        tmp_path / "o",
    )
    assert cdcd_main(*arguments) == 0
    shown = capfd.readouterr()
    report = json.loads((tmp_path / "o/translation.json").read_text())
    assert [each["system"] for each in report["rows"]] == [
        "references", "cdcd run", "cdcd run", "cdcd again", "cdcd again",
        "baseline: beam search", "baseline: greedy", "baseline: samples",
    ]  # fmt: skip
    assert [each["settings"].get("num_steps") for each in report["rows"][1:5]] == [2, 3, 2, 3]
    assert len(report["differences"]) == 4 * 3
    assert [each["settings"] for each in report["over_runs"]] == [
        {"num_steps": 2},
        {"num_steps": 3},
    ]
    assert report["protocol"]["batch_size"] == 4
    assert report["protocol"]["runs"][str(place / "run")]["checkpoint"].startswith("2 ")
    assert report["environment"]["torch"] == torch.__version__
    for part in (
        "tok:intl",
        "% right",
        "mean of 2 runs",
        "less baseline",
    ):
        assert part in shown.out, part
    assert re.search(r"^1 of 7, cdcd run \(num_steps 2\): [\d.]+ BLEU", shown.err, re.MULTILINE)
    before = contents(tmp_path / "o/hypotheses")
    assert cdcd_main(*arguments) == 0
    again = capfd.readouterr()
    assert again.err.count("(was there)") == 7
    assert again.out == shown.out
    assert contents(tmp_path / "o/hypotheses") == before


def test_files_and_the_default_folder(place, capfd):
    files = ("--source", place / "a.en", "--reference", place / "a.de")
    assert cdcd_main("evaluate", place / "run", *files, *FEW, "--num-steps", 2) == 0
    report = json.loads((place / "run/evaluation/translation.json").read_text())
    assert report["protocol"]["test_set"] == f"a.en, a.de, the first 6 of {COUNT}"
    assert report["protocol"]["settings"] == {"num_steps": 2}
    assert report["rows"][1]["exact"] is None
    assert str(place / "run/evaluation/translation.json") in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--judge", "text"), "--judge: not for translators; leave it out"),
        (("run", "--num-samples", 8), "--num-samples: not for translators"),
        (("run", "--source", "a.en"), "--source FILE and --reference FILE: give both"),
        (("run", "--source", "a.en", "--reference", "b.de"), "b.de has 28 lines, .*a.en has more:"),
        (("run", "--split", "judge"), "numerals have no split 'judge'; choose test or valid"),
        (("run", "--counts", "1,x"), "'1,x' is not INT,INT, such as 1,10"),
        (("run", "--counts", "0"), r"counts are \[0\]; give numbers of samples from 1 on"),
        (("run", "--num-sentences", 1), "num_sentences is 1, it must be at least 2"),
        (("run", "--utility", "comet"), "unknown choice comet"),
        (("run", "--sweep", "num_stps=3"), "unknown setting num_stps; did you mean num_steps"),
        (("run", "--sweep", "replacement=true"), "a translation has none"),
        (("run", "run"), "a run is given twice"),
        (("run", "text"), "text is a language model, no translator"),
        (("run", "--baseline", "again"), "again is a diffusion model; give an autoregressive"),
        (("run", "--baseline", "back"), "back translates de-en, the test set is en-de"),
        (("text",), "the text of a language model needs a judge: --judge"),
        (("text", "--judge", "text", "--counts", "1,2"), "--counts: not for language models"),
        (("text", "--judge", "text", "--source", "a.en"), "--source: not for language models"),
    ],
)
def test_mistakes(place, capfd, arguments, message):
    before = contents(place)
    names = {path.name for path in place.iterdir()}
    given = [place / a if a in names else a for a in arguments]
    assert cdcd_main("evaluate", *given) == 2
    shown = capfd.readouterr()
    assert re.search(message, shown.err), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith("cdcd evaluate: error: ")
    assert contents(place) == before
