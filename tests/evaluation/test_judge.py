"""Judges and exact scores: equal to a direct computation, whatever the batch, the padding, the tokenizer."""

import itertools
from pathlib import Path

import pytest
import torch
from tiny import train_tiny
from torch import Tensor

import cdcd
from cdcd.config import DataConfig
from cdcd.data.sequences import TokenDocuments
from cdcd.data.tokenizers import ByteTokenizer, SymbolTokenizer, WordTokenizer
from cdcd.data.vocabulary import EOS, PAD, UNKNOWN
from cdcd.evaluation.exact import exact_scores
from cdcd.evaluation.judge import (
    Judge,
    RunReader,
    num_bytes,
    split_texts,
)
from cdcd.evaluation.judges import load_judge
from cdcd.evaluation.texts import Texts
from cdcd.languages import markov_chain, tales

LENGTH = 24
AUTOREGRESSIVE = {
    "model": "autoregressive",
    "training.learning_rate": 2e-2,
    "training.steps": 12,
    "training.average_decay": 0.0,
}
WORDS = WordTokenizer(tales.VOCABULARY)


@pytest.fixture(scope="module")
def judge_run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("judge") / "run", AUTOREGRESSIVE)


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory):
    bytes_ = {"data.tokenizer": "bytes", "data.length": 256, "data.num_documents": 50}
    return train_tiny(tmp_path_factory.mktemp("judge") / "bytes", AUTOREGRESSIVE | bytes_)


@pytest.fixture(scope="module")
def diffusion_run(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("judge") / "diffusion")


@pytest.fixture(scope="module")
def judge(judge_run):
    found = load_judge(str(judge_run), WORDS, LENGTH, dtype="float64")
    assert found.tokenizer is None
    return found


@pytest.fixture(scope="module")
def byte_judge(byte_run):
    found = load_judge(str(byte_run), WORDS, LENGTH, dtype="float64")
    assert found.tokenizer is WORDS
    return found


def rows_of(texts, tokenizer, length, layout="documents"):
    sequences = TokenDocuments.of_texts(texts, tokenizer, "the texts").sequences(length, layout)
    return sequences.rows(torch.arange(len(sequences)))


@pytest.fixture(scope="module")
def texts():
    """Stories, with prefixes of different lengths, counted to their ends."""
    stories = [*tales.stories(12, seed=5), "Mia was home ."]
    rows = rows_of(stories, WORDS, LENGTH)
    given = torch.arange(len(rows))[:, None] % 13
    return Texts(rows, torch.arange(LENGTH) >= given).until_end()


def log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """ln p of each token, by the definition of the softmax."""
    exponentials = logits.double().exp()
    return (
        (exponentials / exponentials.sum(-1, keepdim=True))
        .log()
        .gather(-1, tokens[..., None])[..., 0]
    )


# Judges that share the tokenizer


def test_nats_equal_a_computation_from_the_logits(judge, texts):
    found = judge.nats(texts)
    for row, is_generated, nats in zip(texts.tokens, texts.is_generated, found, strict=True):
        places = is_generated.nonzero()[:, 0].tolist()
        # Each token from a reading of nothing but what stands before it.
        expected = 0.0
        for place in places:
            logits = judge.reader.model.model(row[None, : place + 1])[0, place]
            expected -= float(log_probs(logits[None], row[place : place + 1]))
        assert float(nats) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found.min() == 0.0, "no sample is without generated tokens"
    assert found.max() > 1.0


def test_nats_do_not_depend_on_the_batch_or_on_what_does_not_count(judge, texts):
    whole = judge.nats(texts)
    for size in (1, 5):
        small = Judge("small", judge.reader, batch_size=size)
        torch.testing.assert_close(small.nats(texts), whole, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            small.features(texts), judge.features(texts), rtol=1e-5, atol=1e-5
        )
    after = torch.arange(LENGTH) >= texts.ends()[:, None]
    assert after.any()
    changed = texts.with_tokens(torch.where(after, 9, texts.tokens))
    assert not torch.equal(changed.tokens, texts.tokens)
    torch.testing.assert_close(judge.nats(changed), whole, rtol=1e-9, atol=1e-9)


def test_nats_are_conditioned_on_the_prefix(judge, texts):
    is_prefix = (torch.arange(LENGTH) < texts.ends()[:, None]) & ~texts.is_generated
    other = texts.with_tokens(torch.where(is_prefix, 9, texts.tokens))
    changed = (judge.nats(other) - judge.nats(texts)).abs() > 1e-6
    is_conditioned = texts.is_generated.any(1) & (texts.tokens != other.tokens).any(1)
    assert torch.equal(changed, is_conditioned)
    assert is_conditioned.sum() > 5


def test_features_have_read_the_document_to_its_end_and_no_further(judge, texts):
    found = judge.features(texts)
    for row, end, feature in zip(texts.tokens, texts.ends().tolist(), found, strict=True):
        expected = judge.reader.model.model.states(row[None, :end])[0, -1].float()
        torch.testing.assert_close(feature, expected)
    after = torch.arange(LENGTH) >= texts.ends()[:, None]
    changed = texts.with_tokens(torch.where(after, 9, texts.tokens))
    torch.testing.assert_close(judge.features(changed), found)
    last = texts.with_tokens(texts.tokens.scatter(1, texts.ends()[:, None] - 1, 9))
    assert (judge.features(last) - found).abs().amax(1).min() > 1e-4


def test_a_judge_may_read_longer_sequences_but_no_shorter_ones(judge_run, judge, texts):
    short = Texts(texts.tokens[:, :10], texts.is_generated[:, :10])
    longer = load_judge(str(judge_run), WORDS, 10, dtype="float64")
    torch.testing.assert_close(longer.nats(short), judge.nats(short))
    with pytest.raises(ValueError, match=r"reads sequences of 24 tokens, .* writes 25; .* 25"):
        load_judge(str(judge_run), WORDS, 25)


def test_a_diffusion_model_is_no_judge(diffusion_run):
    with pytest.raises(ValueError, match=r"is a diffusion model; .*--model autoregressive"):
        load_judge(str(diffusion_run), WORDS, LENGTH)


def test_a_judge_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="absent does not exist"):
        load_judge(str(tmp_path / "absent"), WORDS, LENGTH)


# Texts and bytes


def test_texts_are_split_where_the_generated_part_begins():
    mia, was, home, stop = WORDS.encode("Mia was home .", strict=True)
    rows = torch.tensor(
        [
            [mia, was, home, stop, EOS, PAD],
            [mia, was, home, stop, mia, was],
            [mia, EOS, home, stop, EOS, mia],
            [mia, was, EOS, PAD, PAD, PAD],
            [mia, EOS, PAD, PAD, PAD, PAD],
        ]
    )
    texts = Texts(rows, (torch.arange(6) >= 2).expand_as(rows))
    streamed = [("Mia was", " home.\n�"), ("Mia was", " home. Mia was")]
    streamed += [("Mia\n", "home.\nMia"), ("Mia was", "\n���"), ("Mia\n", "����")]
    assert split_texts(texts, WORDS) == streamed
    ended = [("Mia was", " home.\n"), ("Mia was", " home. Mia was")]
    ended += [("Mia\n", ""), ("Mia was", "\n"), ("Mia\n", "")]
    assert split_texts(texts.until_end(), WORDS) == ended
    nothing_given = Texts(rows[:1], torch.ones(1, 6, dtype=torch.bool)).until_end()
    assert split_texts(nothing_given, WORDS) == [("", "Mia was home.\n")]


def test_bytes_are_those_of_the_generated_part():
    rows = torch.tensor([[*WORDS.encode("Mia was home ."), EOS, PAD]])
    texts = Texts(rows, (torch.arange(6) >= 2)[None]).until_end()
    assert num_bytes(texts, WORDS) == [len(" home.\n")]


def test_padding_that_counts_is_not_free(byte_judge):
    """A model that answers with padding has not ended its text: nats and bytes must show it."""
    mia, was = WORDS.encode("Mia was", strict=True)
    rows = torch.tensor([[mia, was, PAD, PAD], [mia, was, EOS, PAD]])
    texts = Texts(rows, (torch.arange(4) >= 2).expand_as(rows)).until_end()
    assert num_bytes(texts, WORDS) == [6, 1]
    nats = byte_judge.nats(texts)
    assert nats[0] > 3 * nats[1] > 0


@pytest.mark.parametrize("given", range(6))
def test_a_byte_is_a_byte_even_inside_a_character(given):
    """Of a tokenizer of bytes, every generated token is one byte, wherever a character is cut."""
    tokenizer = ByteTokenizer()
    rows = torch.tensor([tokenizer.encode("aé€")])
    texts = Texts(rows, (torch.arange(6) >= given)[None])
    assert num_bytes(texts, tokenizer) == [6 - given]


def test_broken_bytes_are_counted_once_each():
    tokenizer = ByteTokenizer()
    rows = torch.tensor([[*tokenizer.encode("ab"), 3 + 0xFF, 3 + 0xC3, 3 + 0x28]])
    texts = Texts(rows, (torch.arange(5) >= 1)[None])
    assert num_bytes(texts, tokenizer) == [4]


# Judges with a tokenizer of their own


def direct_nats(reader: RunReader, before: str, generated: str) -> float:
    """The generated part's nats after the text before it, one text on its own."""
    given, counted = reader.encode(before), reader.encode(generated)
    if not counted:
        return 0.0
    tokens = torch.tensor([[*given, *counted]])
    found = log_probs(reader.model.model(tokens), tokens)
    return -float(found[0, len(given) :].sum())


def test_a_text_judge_reads_the_generated_text_after_the_given_one(byte_judge, texts):
    pairs = split_texts(texts, WORDS)
    expected = [direct_nats(byte_judge.reader, *pair) for pair in pairs]
    assert byte_judge.nats(texts).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    unconditioned = [direct_nats(byte_judge.reader, "", after) for _, after in pairs]
    assert byte_judge.nats(texts).tolist() != pytest.approx(unconditioned, rel=1e-3)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_padding_in_a_batch_changes_nothing(byte_judge, texts, batch_size):
    small = Judge("small", byte_judge.reader, WORDS, batch_size=batch_size)
    torch.testing.assert_close(small.nats(texts), byte_judge.nats(texts), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        small.features(texts), byte_judge.features(texts), rtol=1e-5, atol=1e-5
    )


def test_features_of_a_text_judge_have_read_the_whole_text(byte_judge, texts):
    for (before, after), feature in zip(
        split_texts(texts, WORDS), byte_judge.features(texts), strict=True
    ):
        tokens = torch.tensor([byte_judge.reader.encode(before + after)])
        expected = byte_judge.reader.model.model.states(tokens)[0, -1].float()
        torch.testing.assert_close(feature, expected)


def test_a_text_judge_takes_the_nearest_context_that_fits(byte_judge, texts):
    reader = RunReader(byte_judge.reader.model)
    reader.length = 60
    pair = ("".join(map(chr, range(33, 126))), "Mia was home.")
    given, counted = Judge("short", reader, WORDS)._fitted(*pair)
    assert counted == reader.encode(pair[1])
    assert given == reader.encode(pair[0])[-(60 - len(counted)) :]
    reader.length = 13
    assert Judge("short", reader, WORDS)._fitted(*pair) == ([], counted)
    reader.length = 12
    with pytest.raises(ValueError, match="has 13 tokens by the judge short, which reads 12; use"):
        Judge("short", reader, WORDS)._fitted(*pair)


# Exact scores

MARKOV = DataConfig(source="markov", length=9, num_states=5)
TALES = DataConfig(source="tales", length=44, layout="documents")


class Exact(Judge):
    """A judge that knows the language."""

    def __init__(self, log_prob_of) -> None:
        self.log_prob_of = log_prob_of

    def nats(self, texts: Texts) -> Tensor:
        return torch.tensor(
            [
                -self.log_prob_of(row[counted].tolist())
                for row, counted in zip(texts.tokens, texts.is_generated, strict=True)
            ],
            dtype=torch.float64,
        )


def half_given(tokens: Tensor) -> Texts:
    return Texts(tokens, (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).expand_as(tokens))


def markov_log_prob(words: list[str]) -> float:
    chain = markov_chain(5)
    states = [int(word[1:]) for word in words]
    found = float(chain.initial[states[0]].double().log())
    for a, b in itertools.pairwise(states):
        found += float(chain.transitions[a, b].double().log())
    return found


@pytest.mark.parametrize(
    "tokenizer",
    [WordTokenizer(markov_chain(5).words), SymbolTokenizer(["w3", "w0", "w4", "w1", "w2"])],
    ids=["words", "learnt symbols"],
)
@pytest.mark.parametrize("layout", ["stream", "documents"])
def test_exact_scores_of_the_markov_language(tokenizer, layout):
    documents = markov_chain(5).documents(20, 8, seed=3)
    tokens = rows_of(documents, tokenizer, 9, layout)
    judge = Exact(lambda row: markov_log_prob(tokenizer.decode(row).split()))
    data = DataConfig(source="markov", length=9, num_states=5, layout=layout)
    found = exact_scores(half_given(tokens), data, tokenizer, judge)
    expected = -sum(markov_log_prob(document.split()) for document in documents) / (20 * 9)
    assert found.possible_share == 1
    assert found.nll == pytest.approx(expected, rel=1e-5)
    assert found.judge_error == pytest.approx(0, abs=1e-5)


def test_impossible_sequences_of_the_markov_language():
    tokenizer = WordTokenizer(markov_chain(5).words)
    document = markov_chain(5).documents(1, 8, seed=3)
    right = rows_of(document, tokenizer, 9, "stream")[0]
    rows = right.repeat(6, 1)
    rows[1, 4] = UNKNOWN
    rows[2, 4] = EOS
    rows[3, 4] = PAD
    rows[4, -1] = 3
    rows[5, 0] = EOS
    judge = Exact(lambda row: markov_log_prob(tokenizer.decode(row).split()))
    found = exact_scores(half_given(rows), MARKOV, tokenizer, judge)
    assert found.possible_share == pytest.approx(1 / 6)
    assert found.nll == pytest.approx(-markov_log_prob(document[0].split()) / 9, rel=1e-5)
    found = exact_scores(half_given(rows[1:]), MARKOV, tokenizer, judge)
    assert (found.possible_share, found.nll, found.judge_error) == (0, None, None)


def tales_judge() -> Exact:
    return Exact(lambda row: tales.GRAMMAR.log_prob([WORDS.words[t] for t in row if t != EOS]))


def test_exact_scores_of_the_tales():
    stories = tales.stories(30, seed=4)
    tokens = rows_of(stories, WORDS, 44)
    found = exact_scores(half_given(tokens), TALES, WORDS, tales_judge())
    nats = -sum(tales.check(story).log_prob for story in stories)
    count = int((tokens != PAD).sum())
    assert found.possible_share == 1
    assert found.nll == pytest.approx(nats / count, rel=1e-9)
    assert found.judge_error == pytest.approx(0, abs=1e-9)
    # A judge that is a tenth of a nat too harsh on each token is told so.
    harsh = tales_judge()
    exactly = harsh.log_prob_of
    harsh.log_prob_of = lambda row: exactly(row) - 0.1 * len(row)
    found = exact_scores(half_given(tokens), TALES, WORDS, harsh)
    assert found.judge_error == pytest.approx(0.1, abs=1e-9)


def test_what_follows_the_end_of_a_tale_does_not_matter():
    tokens = rows_of(tales.stories(5, seed=4), WORDS, 44)
    junk = torch.where(tokens == PAD, 9, tokens)
    assert not torch.equal(junk, tokens)
    plain, with_junk = (
        exact_scores(half_given(t), TALES, WORDS, tales_judge()) for t in (tokens, junk)
    )
    assert plain == with_junk


def test_impossible_tales():
    story = min(tales.stories(10, seed=4), key=len)
    right = rows_of([story], WORDS, 44)[0]
    end = int((right == EOS).nonzero()[0])
    assert end < 42
    rows = right.repeat(6, 1)
    rows[1, end] = right[end - 1]
    rows[2, 3] = UNKNOWN
    rows[3, 3], rows[3, 4] = rows[3, 4].clone(), rows[3, 3].clone()
    # The words of a right story with a hole between them are no story.
    rows[4, 4 : end + 2] = torch.cat([torch.tensor([PAD]), right[4 : end + 1]])
    rows[5, 0] = EOS
    found = exact_scores(half_given(rows), TALES, WORDS, tales_judge())
    assert found.possible_share == pytest.approx(1 / 6)
    assert found.nll == pytest.approx(-tales.check(story).log_prob / (end + 1), rel=1e-9)


def test_exact_scores_are_only_given_where_they_are_known(texts):
    judge = Exact(lambda row: -2.0 * len(row))
    for data, tokenizer in (
        (DataConfig(source="some.txt"), WORDS),
        (DataConfig(source="tales", layout="stream"), WORDS),
        (DataConfig(source="markov"), ByteTokenizer()),
    ):
        assert exact_scores(texts, data, tokenizer, judge) is None


def test_the_runs_here_are_what_they_seem(judge_run: Path, byte_run: Path):
    """A power check: the judges have learnt something, so that an error in them would show."""
    for run in (judge_run, byte_run):
        model = cdcd.load(run)
        logits = model.model(torch.full((1, 8), 5))
        assert float(logits.std(-1).mean()) > 0.1
