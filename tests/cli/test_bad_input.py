"""Mistakes: exit code 2, one line on stderr that names the mistake, nothing created or changed."""

import re

import pytest
import torch
from tiny import cdcd_main, contents, tiny_options, train_tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run and bad corpora, which no mistake may change."""
    place = tmp_path_factory.mktemp("place")
    train_tiny(place / "run")
    (place / "empty.txt").write_text(" \n\n")
    (place / "empty").mkdir()
    (place / "latin1.txt").write_bytes("a café\nanother café\n".encode("latin1"))
    (place / "short.txt").write_text("a b\nc d\n")
    (place / "one.txt").write_text("only one document\n")
    (place / "long.txt").write_text("One sunny day Mia\n" + "Mia " * 40 + "\n")
    (place / "no_prompt.txt").write_text("")
    return place


def assert_refused(place, capfd, arguments, message):
    before = contents(place)
    arguments = [str(argument).format(place=place) for argument in arguments]
    assert cdcd_main(*arguments) == 2
    shown = capfd.readouterr()
    assert re.search(message, shown.err), shown.err
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith(f"cdcd {arguments[0]}: error: ")
    assert shown.out == ""
    assert contents(place) == before


STREAM = ("--data.layout", "stream")
WORDS = ("--data.tokenizer", "words")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "{place}/absent.txt"), "there is no corpus '.*absent.txt'.*tales"),
        (("--data", "{place}/empty.txt"), "empty.txt holds no text"),
        (("--data", "{place}/empty"), "empty holds no text"),
        (("--data", "{place}/latin1.txt"), "latin1.txt, line 1: not UTF-8 text"),
        (("--data", "{place}/one.txt"), "has one document; it needs two"),
        (("--data", "{place}/short.txt", *STREAM, *WORDS), "too few tokens for one sequence of 24"),
        (
            ("--data", "{place}/short.txt", "--data.vocab-size", 100),
            "vocab_size is 100; .* need 262",
        ),
        (
            ("--process.t-min", 50),
            r"t_min \(50.0\) must be below process.t_max \(50.0\)",
        ),
        (("--process.t-min", 60), r"t_min \(60.0\) must be below"),
        (("--process.t-min", 0), "process.t_min is 0.0, it must be at least 1e-06"),
        (
            ("--network.width", 33),
            r"width \(33\) must be a multiple of 2 × network.num_heads \(2\)",
        ),
        (("--training.accumulate", 3), r"batch_size \(8\) must be a multiple .* \(3\)"),
        (("--training.steps", "many"), "--training.steps: 'many' is not a whole number"),
        (("--training.steps", "1e3"), "'1e3' is not a whole number"),
        (("--training.steps", -1), "training.steps is -1, it must be at least 0"),
        (("--training.learning-rate", "nan"), "'nan' is not a finite number"),
        (("--training.learning-rate", 0), "learning_rate is 0.0, it must be above 0"),
        (
            ("--training.average-decay", 1),
            "average_decay is 1.0, it must be below 1",
        ),
        (("--warp.train", "yes"), "'yes' is neither true nor false"),
        (
            ("--data.languages", "en-fr"),
            "data.languages has no effect here: it needs task translation; leave it out",
        ),
        (("--training.optimiser", "mun"), "unknown choice mun; did you mean muon?"),
        (("--data.length", 1), "data.length is 1, it must be at least 2"),
        (("--data.valid-share", 1.5), "valid_share is 1.5, it must be below 1"),
        (
            ("--objective.prefix-length", 24),
            r"prefix_length \(24\) must be below data.length \(24\)",
        ),
        (("--preset", "lage"), "unknown preset lage; did you mean large?"),
        (("--checkpoint", 3), "--checkpoint goes with --resume"),
        (("--init-from", "{place}/absent"), "absent does not exist"),
        (("--init-from", "{place}/empty"), "empty is not a run directory"),
        (("--resume",), "leave out --preset"),
        (("--out", "{place}/one.txt/run"), "could not create the run .*: Not a directory"),
    ],
)
def test_train(place, capfd, options, message):
    source = {"data.source": options[1]} if options[0] == "--data" else {}
    arguments = ["train", "--out", "{place}/new", *tiny_options(source), *options]
    assert_refused(place, capfd, arguments, message)


def test_no_cuda(place, capfd):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    train = ["train", "--out", "{place}/new", *tiny_options({"training.device": "cuda"})]
    assert_refused(place, capfd, train, "there is no CUDA device here")
    sample = ["sample", "{place}/run", "--device", "cuda"]
    assert_refused(place, capfd, sample, "there is no CUDA device here; use --device cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", "Mia " * 24), "the prompt has 24 tokens, but only 24 fit"),
        (("--prompt", "Mia Mia", "--length", 2), "only 2 fit .* raise --length to at most 24"),
        (("--prompt", "One suny day"), "'suny' is not in the model's vocabulary; nearest: sunny"),
        (("--prompt", "x" * 120_000), "the word 'x{60}…' is not in the model's vocabulary\n"),
        (("--prompt-file", "{place}/absent.txt"), "No such file or directory.*absent.txt"),
        (("--prompt-file", "{place}/no_prompt.txt"), "no_prompt.txt holds no prompt"),
        (
            ("--prompt-file", "{place}/latin1.txt"),
            r"latin1.txt, line 1: not UTF-8 text \(byte 0xe9\); convert",
        ),
        (("--prompt-file", "{place}/long.txt"), "the prompt has 40 tokens"),
        (("--prompt", "Mia", "--prompt-file", "{place}/long.txt"), "not allowed with argument"),
        (("--score-temperature", 0), "score_temperature is 0.0, it must be at least 0.001"),
        (("--softmax-temperature", -1), "softmax_temperature is -1.0, it must be at least 0.001"),
        (("--warp-temperature", 0), "warp_temperature is 0.0, it must be at least 0.001"),
        (("--score-temperature", "nan"), "'nan' is not a finite number"),
        (("--score-temperature", "warm"), "'warm' is not a finite number"),
        (("--rho", 0), "rho is 0.0, it must be at least 0.05"),
        (("--nucleus", 0), "nucleus is 0.0, it must be above 0"),
        (("--nucleus", 1.1), "nucleus is 1.1, it must be at most 1"),
        (("--warp-uniformity", 2), "warp_uniformity is 2.0, it must be at most 1"),
        (("--initial-noise-scale", -1), "initial_noise_scale is -1.0"),
        (("--num-steps", 0), "num_steps is 0, it must be at least 1"),
        (("--num-steps", 2.5), "'2.5' is not a whole number"),
        (("--num-samples", 0), "--num-samples: it is 0, it must be at least 1"),
        (("--batch-size", 0), "--batch-size: it is 0, it must be at least 1"),
        (("--batch-size", -1), "--batch-size: it is -1, it must be at least 1"),
        (("--warp", "maybe"), "'maybe' is neither true nor false"),
        (("--solver", "ancestral", "--eta", -1), "eta is -1.0, it must be at least 0"),
        (("--eta", 1), "eta has no effect here: it needs solver ancestral or bridge; leave it out"),
        (
            ("--solver", "bridge", "--noise-above", 3, "--noise-below", 2),
            r"noise_above \(3.0\) must be below noise_below \(2.0\)",
        ),
        (
            ("--stated-noise-scale", 0),
            "stated_noise_scale is 0.0, it must be at least 0.1",
        ),
        (("--solver", "heum"), "unknown choice heum; did you mean heun?"),
        (("--num-samples", 10**9), "--num-samples: it is 1000000000, it must be at most 1,000,000"),
        (("--batch-size", 1 << 40), "--batch-size: it is .*, it must be at most 1,048,576"),
        (("--rho", 1e-300), "rho is 1e-300, it must be at least 0.05"),
        (("--num-steps", 99999999999), "num_steps is 99999999999, it must be at most 1,000,000"),
        (("--seed", "x"), "--seed: 'x' is not a whole number"),
        (("--seed", 1 << 63), "--seed: it is 9223372036854775808, it must be at most"),
        (("--seed", "9" * 5_000), "--seed: '9{199}… is not a whole number"),
        (("--length", 25), "length is 25, .* choose 1 to 24"),
        (("--length", 0), "--length: it is 0, it must be at least 1"),
        (("--checkpoint", 5), "holds no checkpoint of step 5, only of 2, 4, 6"),
        (("--dtype", "float16"), "--dtype: unknown choice float16; did you mean bfloat16?"),
        (("--renormalise", "true"), "only for models trained without self-conditioning"),
        (
            ("--replacement", "true"),
            "replacement is for models trained with objective.masking none",
        ),
    ],
)
def test_sample(place, capfd, options, message):
    assert_refused(place, capfd, ["sample", "{place}/run", *options], message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mia [0] home.", r"a gap of \[0\] tokens cannot be filled: gaps have 1 to 24"),
        ("Mia [25] home.", r"a gap of \[25\] tokens cannot be filled"),
        (
            "Mia [12] was [12] home.",
            "the text with its gaps has 28 tokens, the model's sequences 24",
        ),
        ("Mia was home.", r"there is no gap in the text; write \[5\]"),
        (r"Mia was.", "there is no gap"),
        ("Mia [2] hme.", "'hme' is not in the model's vocabulary; nearest: home"),
        ("", "there is no gap"),
    ],
)
def test_infill(place, capfd, text, message):
    assert_refused(place, capfd, ["infill", "{place}/run", text], message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ((verb, "{place}/absent", *more), "absent does not exist; train one with: cdcd train")
            for verb, *more in (("sample",), ("infill", "[2]"), ("info",), ("plot",))
        ),
        *(
            ((verb, "{place}/empty", *more), "empty is not a run directory .no config.json")
            for verb, *more in (("sample",), ("infill", "[2]"), ("info",), ("plot",))
        ),
        (("train", "--resume", "--out", "{place}/absent"), "absent does not exist"),
        (("train", "--resume", "--out", "{place}/empty"), "empty is not a run directory"),
        (("plot", "{place}/run", "--out", "{place}/one.txt/sub"), "Not a directory"),
        (("plot", "{place}/run", "--out", "{place}/new", "--prompt", "suny"), "nearest: sunny"),
        (("train",), "arguments are required: --out"),
        (("infill", "{place}/run"), "arguments are required: TEXT"),
    ],
)
def test_runs_and_folders(place, capfd, arguments, message):
    assert_refused(place, capfd, arguments, message)
