"""Generation: gaps, given tokens, seeds, ends of documents, settings, and models of files."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny import cdcd_main, start_tiny, tiny_options

import cdcd
from cdcd.data.corpus import read_documents
from cdcd.data.tokenizer_learning import learn_sentencepiece, learn_words
from cdcd.data.tokenizers import WordTokenizer
from cdcd.data.vocabulary import EOS, PAD, UNKNOWN
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.inference.text_model import Canvas, DiffusionTextModel, split_gaps
from cdcd.settings import override
from cdcd.training.checkpoint import RunDirectory

# The syntax of gaps


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("The [5] went", ["The", 5, " went"]),
        ("[2] went", [2, " went"]),
        ("went [2]", ["went", 2]),
        ("[2]", [2]),
        ("a[3]b", ["a", 3, "b"]),
        ("a [1] b [12] c", ["a", 1, " b", 12, " c"]),
        ("[1][2]", [1, 2]),
        (r"say \[5] now", ["say [5] now"]),
        (r"say \[5] [2]", ["say [5]", 2]),
        ("[abc] and [] and [1", ["[abc] and [] and [1"]),
        ("[-1] [1.5] [ 2 ]", ["[-1] [1.5] [ 2 ]"]),
        ("a\n[2]", ["a\n", 2]),
        ("", []),
    ],
)
def test_split_gaps(text, parts):
    assert split_gaps(text) == parts


def test_adjacent_gaps_are_one(model):
    assert model.infill_canvas("Mia [2] [3] home.") == model.infill_canvas("Mia [5] home.")


def test_the_canvas_of_a_text_ends_it(model):
    encode = model.tokenizer.encode
    canvas = model.infill_canvas("One [2] day")
    rest = (EOS, *[PAD] * (24 - 5))
    assert canvas.tokens == (*encode("One"), None, None, *encode("day"), *rest)
    full = model.infill_canvas("[24]")
    assert full.tokens == (None,) * 24


def test_in_a_stream_another_document_may_follow(model):
    config = override(model.config, {"data.layout": "stream"})
    stream = DiffusionTextModel(config, model.tokenizer, model.model, model.sampler.warp)
    canvas = stream.infill_canvas("One [2]")
    assert canvas.tokens == (*model.tokenizer.encode("One"), None, None, EOS, *[None] * 20)


# Given tokens and seeds


def test_given_tokens_stay_where_they_are(model):
    random_places = random.Random(0)
    words = model.tokenizer.encode("One sunny day Mia was at the old farm . She found a kite .")
    for seed in range(4):
        tokens = [random_places.choice([None, random_places.choice(words)]) for _ in range(24)]
        [drawn] = model.generate(Canvas(tuple(tokens)), seed=seed, ignore_eos=True)
        assert drawn.is_given == tuple(token is not None for token in tokens)
        for found, given in zip(drawn.tokens, tokens, strict=True):
            assert given is None or found == given


def tokens_of(model, canvas, **arguments):
    drawn = model.generate(canvas, ignore_eos=True, num_steps=12, **arguments)
    return [each.tokens for each in drawn]


def test_a_sample_depends_on_its_seed_alone(model, blank):
    drawn = tokens_of(model, blank, num_samples=5, seed=7)
    assert len(set(drawn)) == 5
    for batch_size in (1, 3):
        assert tokens_of(model, blank, num_samples=5, seed=7, batch_size=batch_size) == drawn
    assert tokens_of(model, blank, num_samples=2, seed=7) == drawn[:2]
    assert not set(tokens_of(model, blank, num_samples=5, seed=8)) & set(drawn)


def test_neighbours_in_a_batch_do_not_matter(model, blank):
    """Sample 1 is drawn beside a prompt, then beside other noise: it stays the same."""
    beside = tokens_of(model, [model.prompt_canvas("Mia was"), blank], seed=3)
    assert beside[1] == tokens_of(model, blank, num_samples=2, seed=3)[1]


def test_generation_leaves_the_global_generator_alone(model, blank):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model.generate(blank)
    assert torch.equal(torch.get_rng_state(), before)


def test_float64(run, blank):
    exact = cdcd.load(run, dtype="float64")
    seen = []
    [drawn] = exact.generate(
        blank, seed=1, ignore_eos=True, num_steps=12, callback=lambda i: seen.append(i.x0_hat.dtype)
    )
    assert set(seen) == {torch.float64}
    [rounded] = cdcd.load(run).generate(blank, seed=1, ignore_eos=True, num_steps=12)
    assert sum(a == b for a, b in zip(drawn.tokens, rounded.tokens, strict=True)) >= 20


# Ends of documents


def shown(model, row, given=(), **arguments):
    """What is shown of a row of tokens, of which some are given."""
    canvas = Canvas(tuple(t if i in given else None for i, t in enumerate(row)))
    return model._generated(canvas, (0, 0), list(row), arguments.get("ignore_eos", False))


def test_what_follows_the_end_is_hidden(model):
    mia, was, home = (model.tokenizer.encode(word)[0] for word in ("Mia", "was", "home"))
    row = (mia, was, EOS, home, PAD)
    assert shown(model, row).text == "Mia was"
    assert shown(model, row).tokens == (mia, was)
    assert shown(model, row, ignore_eos=True).text == "Mia was home"
    assert shown(model, row, ignore_eos=True).tokens == row
    assert shown(model, (EOS, mia, EOS)).text == ""


def test_an_end_inside_a_gap_does_not_cut_given_text(model):
    mia, was, home = (model.tokenizer.encode(word)[0] for word in ("Mia", "was", "home"))
    row = (mia, EOS, was, home, EOS, PAD)
    assert shown(model, row, given=(0, 3, 4, 5)).text == "Mia was home"
    assert shown(model, (mia, home, was, EOS, mia), given=(0, 1)).text == "Mia home was"


def test_ignore_eos_end_to_end(model, blank):
    whole = model.generate(blank, num_samples=16, ignore_eos=True)
    cut = model.generate(blank, num_samples=16)
    assert {len(each.tokens) for each in whole} == {24}
    for long, short in zip(whole, cut, strict=True):
        end = long.tokens.index(EOS) if EOS in long.tokens else 24
        assert short.tokens == long.tokens[:end]


# The callback


@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++", "ancestral", "bridge"])
def test_the_callback_sees_every_step(model, solver):
    seen = []
    model.generate(
        model.prompt_canvas("Mia"), num_samples=3, num_steps=7, solver=solver, callback=seen.append
    )
    assert [info.index for info in seen] == list(range(7))
    assert {info.num_steps for info in seen} == {7}
    levels = [info.t for info in seen]
    assert levels[0] == model.config.process.t_max
    assert all(high > low for high, low in pairwise(levels))
    for info in seen:
        assert info.x0_hat.shape == (3, 24, 8)
        assert info.probabilities.shape == (3, 24, model.tokenizer.vocab_size)
        torch.testing.assert_close(info.probabilities.sum(-1), torch.ones(3, 24))


# Settings that do not fit the model


@pytest.mark.parametrize(
    ("trained", "settings", "message"),
    [
        ({}, {"renormalise": True}, "only for models trained without self-conditioning"),
        ({}, {"clamp": True}, "only for models trained without self-conditioning"),
        (
            {"objective.conditioning_dropout": 0.0},
            {"guidance_scale": 2.0},
            "guidance needs a model",
        ),
        ({}, {"replacement": True}, "objective.masking none"),
        ({"objective.masking": "none"}, {}, "condition it with --replacement true"),
    ],
)
def test_settings_that_do_not_fit(model, trained, settings, message):
    config = override(model.config, trained)
    other = DiffusionTextModel(config, model.tokenizer, model.model, model.sampler.warp)
    with pytest.raises(ValueError, match=message):
        other.complete("Mia", **settings)


@pytest.mark.parametrize(
    ("trained", "settings"),
    [
        ({"objective.self_conditioning": False}, {"renormalise": True}),
        ({"objective.self_conditioning": False}, {"clamp": True}),
        ({}, {"guidance_scale": 2.0}),
        ({}, {"self_conditioning": False}),
        ({}, {"nucleus": 0.5, "softmax_temperature": 0.7}),
        ({}, {"score_temperature": 0.5}),
        ({}, {"score_temperature": 0.5, "exact_temperature": True}),
        ({}, {"solver": "dpm++"}),
        ({}, {"solver": "ancestral"}),
        ({}, {"solver": "bridge"}),
        ({}, {"stated_noise_scale": 1.2}),
        ({}, {"initial_noise_scale": 0.5}),
        ({}, {"warp": False, "rho": 7.0}),
        ({}, {"warp_temperature": 3.0, "warp_uniformity": 0.5}),
    ],
)
def test_settings_that_fit_change_the_samples(model, trained, settings):
    config = override(model.config, trained)
    other = DiffusionTextModel(config, model.tokenizer, model.model, model.sampler.warp)
    assert other.complete("Mia", **settings)[0].startswith("Mia")
    assert not torch.equal(estimates(other, "Mia", **settings), estimates(other, "Mia"))


def estimates(model, prompt, **settings):
    """The predictions of every step."""
    seen = []
    canvas = model.prompt_canvas(prompt)
    model.generate(canvas, callback=lambda info: seen.append(info.x0_hat), **settings)
    return torch.stack(seen)


def test_replacement_conditions_a_model_without_masks(model):
    config = override(model.config, {"objective.masking": "none"})
    other = DiffusionTextModel(config, model.tokenizer, model.model, model.sampler.warp)
    assert other.complete("Mia", replacement=True)[0].startswith("Mia")
    given, free = (estimates(other, prompt, replacement=True) for prompt in ("Mia", ""))
    assert not torch.equal(given[:, :, 1:], free[:, :, 1:])


@pytest.mark.parametrize("final", ["network", "nearest"])
@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++", "ancestral", "bridge"])
def test_the_number_of_network_calls_is_as_declared(model, monkeypatch, blank, solver, final):
    calls, network = [], model.sampler.network
    monkeypatch.setattr(
        model.sampler, "network", lambda *a, **k: calls.append(1) or network(*a, **k)
    )
    settings = {"solver": solver, "final_prediction": final, "num_steps": 5}
    model.generate(blank, **settings)
    assert len(calls) == override(model.config.sampling, settings).num_evaluations


# Tokenizers and models of files

TEXTS = [
    "The café was  open.", "A cat sat on the mat!", "naïve 日本 text", "tabs\tand so on", "cats [5]"
] * 6  # fmt: skip


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "corpus.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    return learn_sentencepiece(read_documents(str(file)), 400)


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat.", "  two  spaces  ", " ", "", "🦊 never seen 🦉", "Ω≈ç√", "a\nb\r\n\tc",
        "e\u0301 and é, ﬁ", "<pad><eos><unk><0x41>", "\x00", "日本語", "ends with space ",
    ],
)  # fmt: skip
def test_pieces_are_lossless(pieces, text):
    tokens = pieces.encode(text)
    assert pieces.decode(tokens) == text
    assert not {PAD, EOS, UNKNOWN} & set(tokens)


@pytest.mark.parametrize("text", ["The café was  open.", " a 🦊 b", "tabs\tand", "x  y"])
def test_pieces_are_concatenative(pieces, text):
    """Wherever a text is cut, the pieces of its parts spell the whole: as infilling needs."""
    for cut in range(len(text) + 1):
        assert pieces.decode(pieces.encode(text[:cut]) + pieces.encode(text[cut:])) == text


def test_pieces_of_a_text_without_spaces():
    tokenizer = learn_sentencepiece(["日本語", "日本", "本語"] * 5, 300)
    assert tokenizer.decode(tokenizer.encode("日本 日")) == "日本 日"


def test_pieces_of_long_documents(monkeypatch):
    """SentencePiece leaves out what is too long, here more than 80 bytes, unless it is cut."""
    monkeypatch.setattr("cdcd.data.tokenizer_learning.STRETCH", 20)
    tokenizer = learn_sentencepiece([" ".join(TEXTS), " ".join(TEXTS[::-1])], 400)
    assert tokenizer.vocab_size > 300
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


def test_the_smallest_vocabulary_is_the_one_that_the_error_names():
    with pytest.raises(ValueError, match="need 264"):
        learn_sentencepiece(["ab", "cd"] * 5, 263)
    assert learn_sentencepiece(["ab", "cd"] * 5, 264).vocab_size == 264


def test_words(model):
    tokenizer = learn_words(["b a c.", "a b", "a"], vocab_size=5)
    assert tokenizer.words == ("<pad>", "<eos>", "<unk>", "a", "b")
    assert tokenizer.encode("a z b") == [3, UNKNOWN, 4]
    with pytest.raises(ValueError, match=r"'kitten' is not in the .*; nearest: kite"):
        model.tokenizer.encode("a kitten", strict=True)
    with pytest.raises(ValueError, match=r"'zzzz' is not in the model's vocabulary$"):
        model.tokenizer.encode("zzzz", strict=True)
    with pytest.raises(ValueError, match="must be distinct"):
        WordTokenizer(["a", "a"])


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("tokenizer", ["sentencepiece", "words"])
def test_a_model_of_a_file_or_a_folder(tmp_path, capsys, kind, tokenizer):
    corpus = tmp_path / "corpus"
    if kind == "file":
        corpus.write_text("\n".join(TEXTS), encoding="utf-8")
    else:
        (corpus / "sub" / ".hidden").mkdir(parents=True)
        (corpus / "sub" / ".hidden" / "binary").write_bytes(b"\xff\xfe")
        for i, text in enumerate(TEXTS):
            (corpus / "sub" / f"{i}.txt").write_text(text, encoding="utf-8")
    source = {"data.source": str(corpus)}
    options = tiny_options(source | {"training.steps": 3, "data.tokenizer": tokenizer})
    assert cdcd_main("train", "--data", corpus, "--out", tmp_path / "run", *options) == 0
    assert RunDirectory(tmp_path / "run").config.data.source == str(corpus)
    capsys.readouterr()
    assert cdcd_main("sample", tmp_path / "run", "--prompt", "The café", "--json") == 0
    [sample] = json.loads(capsys.readouterr().out)["samples"]
    assert sample["text"].startswith("The café")
    assert cdcd_main("infill", tmp_path / "run", "A cat [2] mat!") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("A cat")
    assert shown.rstrip("\n").endswith("mat!")


def test_a_damaged_tokenizer_is_named(tmp_path, capsys):
    start_tiny(tmp_path / "run")
    folder = tmp_path / "run" / "tokenizer"
    for name, content in (("words.json", "{"), ("words.json", "{}"), ("sentencepiece.model", "x")):
        for file in folder.iterdir():
            file.unlink()
        (folder / name).write_text(content)
        assert cdcd_main("sample", tmp_path / "run") == 2
        message = capsys.readouterr().err
        assert str(folder / name) in message
        assert message.count("\n") == 1


def test_guidance_in_one_pass_is_two_passes(model):
    """The network sees given and hidden tokens in one batch, with the states that two would have."""
    tokens = torch.randint(3, model.tokenizer.vocab_size, (2, model.length))
    is_noisy = torch.arange(model.length).expand(2, -1) >= 5
    noise = torch.randn(2, model.length, model.sampler.table.shape[1])
    guided = model.sampler.estimator(
        tokens, is_noisy, SamplingConfig(guidance_scale=3.0), noise=noise
    )
    plain = model.sampler.estimator(tokens, is_noisy, SamplingConfig(), noise=noise)
    hidden = replace(plain, is_dropped=torch.ones(2, dtype=torch.bool))
    states, state = [None, None], None
    for level in (20.0, 5.0, 1.0):
        t = torch.full((2,), level)
        found = guided(level * noise, t, state)
        a, b = (each(level * noise, t, s) for each, s in zip((plain, hidden), states, strict=True))
        torch.testing.assert_close(found.x0_hat, b.x0_hat + 3.0 * (a.x0_hat - b.x0_hat))
        torch.testing.assert_close(found.logits, a.logits)
        states, state = [a.state, b.state], found.state
    assert (a.x0_hat - b.x0_hat).abs().max() > 1e-3
