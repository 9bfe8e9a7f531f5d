"""`cdcd translate`: lines in, lines out, one for one; and other verbs on a translator's run."""

import io
import json
import re
import sys

import pytest
from forks import end_of, fork_cdcd
from tiny import cdcd_main, contents, tiny_options, train_tiny

import cdcd
from cdcd.inference.decoder_settings import DECODERS, names_of
from cdcd.inference.translator import Samples, Translator
from cdcd.languages.numerals import sample_pairs
from cdcd.training.checkpoint import RunDirectory

TRANSLATION = {"task": "translation"}
BASELINE = TRANSLATION | {"model": "autoregressive"}
LINES = [english for english, _ in sample_pairs(5, seed=1)]
SHORT = "Today is December the thirteenth."
"""Six tokens, and its end."""
LONG = " ".join([SHORT] * 6)
"""37 tokens, five more than fit."""
ENDLESS = SHORT.replace(".", " ") * 8
QUICK = ("--num-steps", 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs, a language model among them, and texts."""
    place = tmp_path_factory.mktemp("place")
    steps = {"training.steps": 2, "training.validate_every": 1}
    train_tiny(place / "run", TRANSLATION | steps)
    train_tiny(place / "baseline", BASELINE | steps)
    train_tiny(place / "text", {"training.steps": 1})
    (place / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    (place / "empty.txt").write_text("")
    (place / "latin1.txt").write_bytes("Good.\nA café.\n".encode("latin1"))
    (place / "binary.txt").write_bytes(b"Good.\nab\0c\n")
    (place / "long.txt").write_text(f"{SHORT}\n{LONG}\n{SHORT}\n{LONG}\n")
    (place / "endless.txt").write_text(f"{LONG}\n{ENDLESS}\n")
    (place / "folder").mkdir()
    return place


@pytest.fixture(scope="module")
def translator(place):
    return cdcd.load_translator(place / "run")


@pytest.fixture
def upper(monkeypatch):
    """Translations that tell their source, and what was asked for."""
    asked = []

    def translate(_, texts, **options):
        asked.append((list(texts), options))
        return [text.upper() for text in texts]

    monkeypatch.setattr(Translator, "translate", translate)
    return asked


def translated(place, capfd, content: bytes, *options: object) -> tuple[list[str], str]:
    """The lines of stdout, and stderr."""
    (place / "given").write_bytes(content)
    assert cdcd_main("translate", place / "run", "--source", place / "given", *options) == 0
    (place / "given").unlink()
    shown = capfd.readouterr()
    assert shown.out == "" or shown.out.endswith("\n")
    return shown.out.split("\n")[:-1], shown.err


# What is written


def test_it_is_the_library(place, translator, capfd):
    options = ("--seed", 3, "--num-samples", 3, "--score-temperature", 0.9, *QUICK)
    arguments = ("translate", place / "run", "--source", place / "lines.txt", *options)
    assert cdcd_main(*arguments) == 0
    settings = {"score_temperature": 0.9, "num_steps": 2}
    expected = translator.translate(LINES, num_samples=3, seed=3, **settings)
    assert capfd.readouterr() == ("".join(f"{text}\n" for text in expected), "")
    assert cdcd_main(*arguments, "--utility", "chrf", "--batch-size", 2, "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["settings"] == settings
    assert [row["source"] for row in shown["translations"]] == LINES
    by_chrf = translator.translate(LINES, num_samples=3, utility="chrf", seed=3, **settings)
    assert [row["translation"] for row in shown["translations"]] == by_chrf


def test_a_baseline_searches_or_draws(place, capfd):
    baseline = cdcd.load_translator(place / "baseline")
    arguments = ("translate", place / "baseline", "--source", place / "lines.txt")
    for options, settings in (
        ((), {}),
        (("--beam-size", 2, "--max-length", 5), {"beam_size": 2, "max_length": 5}),
        (("--temperature", 0), {"temperature": 0.0}),
        (("--nucleus", 0.5, "--num-samples", 2), {"nucleus": 0.5, "num_samples": 2}),
    ):
        assert cdcd_main(*arguments, *options) == 0
        expected = baseline.translate(LINES, **settings)
        assert capfd.readouterr().out == "".join(f"{text}\n" for text in expected), options


def test_out_is_written_at_once(place, tmp_path, translator, capfd):
    arguments = ("translate", place / "run", "--source", place / "lines.txt", *QUICK)
    (tmp_path / "out.txt").write_text("old")
    assert cdcd_main(*arguments, "--out", tmp_path / "out.txt") == 0
    expected = "".join(f"{text}\n" for text in translator.translate(LINES, num_steps=2))
    assert (tmp_path / "out.txt").read_text() == expected
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("source", [["--source", "-"], []], ids=["named", "by default"])
def test_stdin(place, translator, capfd, monkeypatch, source):
    given = io.TextIOWrapper(io.BytesIO(f"{SHORT}\n".encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", given)
    assert cdcd_main("translate", place / "run", *source, *QUICK) == 0
    assert capfd.readouterr().out == translator.translate([SHORT], num_steps=2)[0] + "\n"


def test_a_process(place, translator, tmp_path):
    command = ("translate", place / "run", "--source", place / "lines.txt", *QUICK)
    assert end_of(fork_cdcd(*command, output=tmp_path / "output")) == [0]
    lines = (tmp_path / "output").read_text().splitlines()
    assert lines == translator.translate(LINES, num_steps=2)


# Lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\n\n  \t\nb\n", ["A", "", "", "B"]),
        ("\n", [""]),
        ("", []),
        ("a\r\nb\r\n\r\n", ["A", "B", ""]),
        ("a\nb", ["A", "B"]),
        ("\ufeffa\nb\n", ["A", "B"]),
        ("a\u2028b\nc\x0bd\x85e\x1cf\rg\n", ["A B", "C D E F G"]),
    ],
)
def test_lines_are_one_for_one(place, capfd, monkeypatch, content, expected):
    monkeypatch.setattr(Translator, "fill", lambda *_: pytest.fail("an empty line is translated"))
    if content.strip():

        def samples(_, texts, **__):
            shown = [[text.upper() if text.strip() else ""] for text in texts]
            return Samples(shown, [[0.0]] * len(shown))

        monkeypatch.setattr(Translator, "scored_samples", samples)
    assert translated(place, capfd, content.encode())[0] == expected


def test_a_translation_stays_on_its_line(place, capfd, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: ["eins\nzwei\r\ndrei", "\n"])
    assert translated(place, capfd, b"a\nb\n")[0] == ["eins zwei drei", ""]


def test_empty_lines_are_not_translated(place, translator, capfd):
    found, _ = translated(place, capfd, f"\n{SHORT}\n \n".encode(), *QUICK)
    assert found == translator.translate(["", SHORT, " "], num_steps=2)
    assert (found[0], found[2]) == ("", "")


def test_unknown_words_are_said_once(place, capfd, upper):
    found, errors = translated(place, capfd, f"{SHORT}\nToday is Friyay.\nfoo\n".encode())
    assert len(found) == 3
    assert re.fullmatch(r"cdcd translate: warning: line 2: .*'Friyay.*in 1 other lines\)\n", errors)


# Long lines


def test_long_lines_are_split_at_sentence_ends(place, capfd, upper):
    found, errors = translated(place, capfd, f"{SHORT}\n{LONG}\n{SHORT}\n{LONG}\n".encode())
    assert found == [SHORT.upper(), LONG.upper(), SHORT.upper(), LONG.upper()]
    [(texts, _)] = upper
    five, one = " ".join([SHORT] * 5), SHORT
    assert texts == [SHORT, five, SHORT, five, one, one]
    assert errors == "".join(
        f"cdcd translate: warning: line {line} has 37 tokens, this model reads at most 32: "
        f"translated in 2 pieces\n"
        for line in (2, 4)
    )


def test_long_lines_can_be_left_empty(place, capfd, upper):
    lines = f"{SHORT}\n{LONG}\n{SHORT}\n".encode()
    found, errors = translated(place, capfd, lines, "--long", "skip")
    assert found == [SHORT.upper(), "", SHORT.upper()]
    assert re.fullmatch(
        r"cdcd translate: warning: line 2: longer than the 32 tokens .*left empty\n", errors
    )


def test_a_long_line_changes_no_other(place, capfd):
    """A line's samples depend on its number, not on how many pieces those before it have."""
    plain, _ = translated(place, capfd, f"{SHORT}\n{SHORT}\n".encode(), *QUICK)
    found, _ = translated(place, capfd, f"{LONG}\n{SHORT}\n".encode(), *QUICK)
    assert len(found) == 2
    assert found[1] == plain[1]


# Mistakes


def assert_refused(place, capfd, message, *arguments):
    before = contents(place)
    arguments = [str(argument).format(place=place) for argument in arguments]
    assert cdcd_main(*arguments) == 2
    shown = capfd.readouterr()
    assert re.search(message, shown.err), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith(f"cdcd {arguments[0]}: error: ") or arguments[0] == "bench"
    assert shown.out == ""
    assert contents(place) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--source", "{place}/absent.txt"), "No such file or directory: .*absent.txt"),
        (("--source", "{place}/folder"), "Is a directory"),
        (
            ("--source", "{place}/latin1.txt"),
            r"latin1.txt, line 2 is not UTF-8 text .byte 6 is 0xe9",
        ),
        (("--source", "{place}/binary.txt"), "binary.txt, line 2 holds a zero byte"),
        (("--source", "{place}/long.txt", "--long", "refuse"), "lines 2, 4: longer than the 32"),
        (("--source", "{place}/endless.txt"), "line 2: a sentence is longer than the 32 tokens"),
        (("--num-samples", 0), "--num-samples: it is 0, it must be at least 1"),
        (("--batch-size", 0), "--batch-size: it is 0, it must be at least 1"),
        (("--utility", "meteor"), "unknown choice meteor; known: bleu, chrf"),
        (("--long", "cut"), "unknown choice cut; known: refuse, skip, split"),
        (("--num-steps", 0), "num_steps is 0, it must be at least 1"),
        (("--beam-size", 3), "beam_size is a setting of beam search, not of decoder ode"),
        (("--temperature", 0.5), "temperature is a setting of decoder mask-predict and autoreg"),
        (("--decoder", "mask-predict"), "for models trained with masks"),
        (("--solver", "settle"), "unknown choice settle; it is decoder mask-predict now"),
        (("--settle-lengths", 2), "--settle-lengths; it is num-lengths of mask-predict now"),
        (("--sureness", 2), "--sureness; it is confidence-weight of mask-predict now"),
        (("--replacement", "true"), "replacement is for given tokens; a translation has none"),
        (("--renormalise", "true"), "only for models trained without self-conditioning"),
        (("--checkpoint", 7), "holds no checkpoint of step 7"),
        (("--num-step", 7), "unknown option --num-step; did you mean --num-steps?"),
        (("--out", "{place}/absent/out.txt"), "there is no folder .*absent; make it first"),
        (("--out", "{place}/folder"), "folder, which is no file"),
    ],
)
def test_mistakes(place, capfd, options, message):
    given = ("--source", "{place}/lines.txt")
    arguments = ("translate", "{place}/run", "--out", "{place}/out.txt", *given, *options)
    assert_refused(place, capfd, message, *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--guidance-scale", 2), "guidance_scale is a setting of decoder ode, not of beam search"),
        (
            ("--beam-size", 2, "--num-samples", 2),
            "beam_size is of beam search, but several samples",
        ),
        (("--max-length", 3, "--temperature", 1), "max_length is of beam search, but temperature"),
        (("--max-length", 99), "max_length is 99, the model's targets have at most 32"),
        (("--beam-size", 0), "beam_size is 0, it must be at least 1"),
    ],
)
def test_mistakes_with_a_baseline(place, capfd, options, message):
    arguments = ("translate", "{place}/baseline", "--source", "{place}/lines.txt", *options)
    assert_refused(place, capfd, message, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("translate", "{place}/text", "--source", "{place}/lines.txt"), "text is a language model, no translator: use cdcd sample"),
        (("translate", "{place}/absent", "--source", "{place}/lines.txt"), "absent does not exist"),
        (("sample", "{place}/run"), "run is a translator, no language model: use cdcd translate"),
        (("infill", "{place}/run", "[3]"), "run is a translator, no language model"),
        (("evaluate", "{place}/run", "--judge", "{place}/text"), "--judge: not for translators"),
        (("plot", "{place}/run", "--prompt", "Mia"), "run is a translator: there is no sample"),
        (("bench", "train", "--preset", "numerals"), "only language models are measured here"),
        (("bench", "sample", "--task", "translation"), "only language models are measured here"),
    ],
)  # fmt: skip
def test_verbs_and_runs_that_do_not_fit(place, capfd, arguments, message):
    assert_refused(place, capfd, message, *arguments)


def test_without_sacrebleu(place, capfd, monkeypatch):
    from cdcd.metrics.ngrams import word_splitter

    word_splitter.cache_clear()
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    monkeypatch.setattr(
        Translator, "scored_samples", lambda *_, **__: pytest.fail("it was sampled")
    )
    arguments = ("translate", "{place}/run", "--source", "{place}/lines.txt", "--num-samples", 2)
    message = r"BLEU needs sacrebleu: pip install 'cdcd\[translate\]'"
    assert_refused(place, capfd, message, *arguments)


# Other verbs


def test_the_options_are_the_fields_of_all_settings(capsys):
    assert cdcd_main("translate", "--help-all") == 0
    shown = set(re.findall(r"^  --([a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE))
    own = {"source", "out", "num-samples", "seed", "batch-size", "utility", "long", "checkpoint"}
    own |= {"device", "dtype", "compile", "json", "decoder", "score-weight"}
    settings = {name for decoder in DECODERS for name in names_of(decoder)}
    assert shown - own == {name.replace("_", "-") for name in settings}


def test_info(place, capfd):
    assert cdcd_main("info", place / "run", "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["task"], shown["model"], shown["step"]) == ("translation", "diffusion", 2)
    model = cdcd.load_translator(place / "run").model
    assert shown["parameters"] == sum(p.numel() for p in model.parameters())
    assert cdcd_main("info", place / "baseline") == 0
    assert re.search(r"task +translation", capfd.readouterr().out)


def test_plot(place, tmp_path, capfd):
    names = {"run": ["training.png", "time_warping.png"], "baseline": ["training.png"]}
    for run, expected in names.items():
        assert cdcd_main("plot", place / run, "--out", tmp_path / run) == 0
        paths = [tmp_path / run / name for name in expected]
        assert capfd.readouterr().out.split() == [str(path) for path in paths]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("model", ["diffusion", "autoregressive"])
def test_train_and_resume(tmp_path, capfd, model):
    changes = TRANSLATION | {"model": model, "data.languages": "de-en", "training.steps": 2}
    run = tmp_path / "a run"
    assert cdcd_main("train", "--out", run, *tiny_options(changes)) == 0
    assert f"; try: cdcd translate '{run}' --source -\n" in capfd.readouterr().out
    config = RunDirectory(run).config
    assert (config.model, config.data.languages) == (model, "de-en")
    more = ("--training.steps", 4) + (("--beam.beam-size", 2) if model == "autoregressive" else ())
    assert cdcd_main("train", "--out", run, "--resume", *more) == 0
    whole = tmp_path / "whole"
    assert cdcd_main("train", "--out", whole, *tiny_options(changes | {"training.steps": 4})) == 0
    found, expected = (contents(RunDirectory(r).folder(4)) for r in (run, whole))
    assert found == expected
    assert cdcd.load_translator(run).languages == ("de", "en")


def test_fine_tuning_keeps_lengths_and_languages(place, tmp_path):
    changes = TRANSLATION | {"data.languages": "de-en", "data.source_length": 31, "data.length": 30}
    other = train_tiny(tmp_path / "other", changes | {"training.steps": 1})
    options = ("--preset", "numerals", "--data.num-documents", 200, "--training.steps", 1)
    arguments = ("train", "--out", tmp_path / "new", "--init-from", other, *options)
    assert cdcd_main(*arguments, "--training.valid-sequences", 4) == 0
    data = RunDirectory(tmp_path / "new").config.data
    assert (data.languages, data.source_length, data.length) == ("de-en", 31, 30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--data.languages", "xx"),
            "data.languages is 'xx'; give two language tags, such as en-de",
        ),
        (("--data.languages", "en_de"), "data.languages is 'en_de'; give two language tags"),
        (("--data.languages", "en-fr"), "data.languages is en-fr; numerals are written in en-de"),
        (("--data.reverse", "true"), "data.reverse is for prepared data sets"),
        (
            ("--network.width", 64),
            "network.width has no effect here: it needs task text",
        ),
        (("--seq2seq.width", 7), r"seq2seq.width \(7\) must be even and a multiple"),
        (("--beam.beam-size", 2), "beam.beam_size has no effect .* model autoregressive"),
        (
            ("--training.label-smoothing", 0.1),
            "label_smoothing has no effect .* model autoregressive",
        ),
        (("--data.layout", "stream"), "data.layout has no effect here: it needs task text"),
        (("--data.extra-padding", 0.1), "unknown option --data.extra-padding"),
        (("--training.strategy", "fsdp"), "translation models are not sharded"),
        (("--training.schedule", "inverse_sqrt"), "set training.warmup_steps above 0"),
        (("--data.length", 3), r"none of 190 pairs fits into 32 \+ 3 tokens"),
        (("--data", "tales"), "tales holds no pairs to translate: give --data numerals"),
        (
            ("--data", "{place}/absent"),
            "absent does not exist; prepare one with: .*--target-source",
        ),
        (
            ("--data", "{place}/lines.txt"),
            "lines.txt is not a prepared data set .*; prepare one with",
        ),
    ],
)
def test_training_mistakes(place, capfd, options, message):
    source = {"data.source": options[1]} if options[0] == "--data" else {}
    tiny = tiny_options(TRANSLATION | source)
    arguments = ("train", "--out", "{place}/new", *tiny, *options)
    assert_refused(place, capfd, message, *arguments)


def test_the_task_chooses_its_preset(place, capfd):
    """Without a preset, `--task translation` is a whole configuration."""
    arguments = ("train", "--task", "translation", "--data", "{place}/absent", "--out", "{place}/x")
    assert_refused(place, capfd, "absent does not exist; prepare one with", *arguments)
    arguments = ("train", "--data", "numerals", "--out", "{place}/x")
    assert_refused(place, capfd, "train a translator with --task translation", *arguments)


def test_prepare_says_how_to_train(tmp_path, capfd):
    (tmp_path / "pairs.tsv").write_text("".join(f"one {n}\teins {n}\n" for n in range(40)))
    settings = ("--column", 1, "--target-column", 2, "--tokenizer", "bytes", "--valid-share", 0.2)
    source, out = tmp_path / "pairs.tsv", tmp_path / "a set"
    assert cdcd_main("data", "prepare", "--source", source, "--out", out, *settings) == 0
    said = capfd.readouterr().out.splitlines()[-1]
    assert f"cdcd train --task translation --preset multi30k --data '{out}'" in said
    assert "--preset wmt-base" in said
