"""Words split at random in training: which ways there are, how often each comes, what stays the same."""

import io
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sentencepiece
import torch
from tiny import cdcd_main, tiny_options

from cdcd.config import DataConfig
from cdcd.data.order import mix
from cdcd.data.pairs import PairDataset, pairs_in_memory
from cdcd.data.sequences import InMemory, ShuffledBatches
from cdcd.data.subword_sampling import (
    MAX_WAYS,
    SubwordSampledPairs,
    SubwordSampler,
    ways_to_split,
)
from cdcd.data.tokenizer_learning import train_sentencepiece
from cdcd.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, numerals_tokenizer
from cdcd.data.vocabulary import EOS, PAD, UNKNOWN
from cdcd.languages import numerals
from cdcd.presets import PRESETS, multi30k, preset
from cdcd.settings import override
from cdcd.training.corpora import load_pairs

TEXTS = [
    "Zwei Hunde spielen im hohen Gras.",
    "Ein Hund spielt mit einem Ball im Gras.",
    "Die Hunde laufen durch das hohe Gras und spielen.",
    "Ein Mann  spielt Gitarre, ein Hund hört zu.",
    "Spielende Hunde! Der Zug um zehn Uhr dreiundzwanzig kommt um acht nach vierzig an.",
    "☃ ein▁Schneemann \udcff",
    "Gras",
]
LENGTH = 64


@cache
def pieces() -> SentencePieceTokenizer:
    counted = [text for pair in numerals.sample_pairs(2000, seed=0) for text in pair]
    return SentencePieceTokenizer(train_sentencepiece([*TEXTS[:5] * 8, *counted], 1400))


def padded(texts, tokenizer, length=LENGTH):
    rows = [[*tokenizer.encode(text), EOS] for text in texts]
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def sampler(alpha=0.2, length=LENGTH, texts=TEXTS):
    return SubwordSampler(InMemory(padded(texts, pieces(), length)), pieces(), alpha)


def drawn(sequences, indices, seed=0):
    indices = np.asarray(indices)
    keys = mix(np.arange(len(indices), dtype=np.uint64) + np.uint64(seed * 100_003))
    return sequences.draw(indices, keys)


def all_ways(text):
    """Every way to spell a text with the vocabulary's pieces and its ln p, by trying them all."""
    processor = pieces().processor
    spelt = {
        processor.id_to_piece(n): n
        for n in range(processor.get_piece_size())
        if not (processor.is_byte(n) or processor.is_control(n) or processor.is_unknown(n))
    }

    def ways(rest):
        if not rest:
            yield [], 0.0
        for end in range(1, len(rest) + 1):
            if (piece := spelt.get(rest[:end])) is not None:
                for others, log_p in ways(rest[end:]):
                    yield [piece, *others], processor.get_score(piece) + log_p

    return sorted(ways(text.replace(" ", "▁")), key=lambda way: -way[1])


def ways_of(text):
    return ways_to_split(pieces(), pieces().encode(text))


# The ways


@pytest.mark.parametrize("word", [" Hund", "Die", " hohen", " hundert", " dreiundzwanzig"])
def test_ways_are_the_likeliest_of_all(word):
    found, log_p = ways_of(word)
    wanted = all_ways(word)
    assert len(wanted) > 1
    assert len(found) == min(MAX_WAYS, len(wanted))
    np.testing.assert_allclose(sorted(log_p)[::-1], [p for _, p in wanted[:MAX_WAYS]], rtol=1e-5)
    exact = {tuple(way): p for way, p in wanted}
    for way, p in zip(found, log_p, strict=True):
        assert exact[tuple(way)] == pytest.approx(p)
    assert found[0] == pieces().encode(word)


def test_some_words_have_more_ways_than_are_drawn_from():
    assert len(all_ways(" dreiundzwanzig")) > MAX_WAYS > len(all_ways(" im"))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
@pytest.mark.parametrize("word", [" Hund", " dreiundzwanzig"])
def test_each_way_comes_as_often_as_it_is_likely(word, alpha):
    # One word in 20,000 sequences: a mean is off by four standard errors once in 16,000 times.
    sequences = sampler(alpha, texts=[word])
    count = 20_000
    rows = drawn(sequences, np.zeros(count, np.int64)).tolist()
    weights = {tuple(way): math.exp(alpha * p) for way, p in all_ways(word)[:MAX_WAYS]}
    total = sum(weights.values())
    seen = dict.fromkeys(weights, 0)
    for row in rows:
        seen[tuple(row[: row.index(EOS)])] += 1
    for way, weight in weights.items():
        p = weight / total
        assert abs(seen[way] / count - p) < 4 * math.sqrt(p * (1 - p) / count)


def test_words_are_drawn_by_themselves():
    # How the first word is split says nothing about how the same word is split later.
    rows = drawn(sampler(0.2, texts=[" zwanzig zwanzig"]), np.zeros(20_000, np.int64)).tolist()
    likeliest = pieces().encode(" zwanzig")
    p_first = np.mean([row[: len(likeliest)] == likeliest for row in rows])
    both = np.mean([row[: 2 * len(likeliest) + 1] == [*likeliest, *likeliest, EOS] for row in rows])
    assert 0.1 < p_first < 0.9
    assert abs(both - p_first**2) < 4 * math.sqrt(0.25 / len(rows))


# What stays


def test_texts_stay_the_same():
    sequences = sampler()
    changed = 0
    for seed in range(20):
        rows = drawn(sequences, range(len(TEXTS)), seed)
        assert rows.shape == (len(TEXTS), LENGTH)
        assert rows.dtype == torch.int64
        for row, text in zip(rows.tolist(), TEXTS, strict=True):
            end = row.index(EOS)
            assert set(row[end + 1 :]) <= {PAD}
            assert PAD not in row[:end]
            assert pieces().decode(row, errors="surrogateescape") == text
            changed += row[:end] != pieces().encode(text)
    assert changed > 50


def test_bytes_stay_bytes():
    row = TEXTS.index("☃ ein▁Schneemann \udcff")
    snowman = pieces().encode("☃")
    assert len(snowman) == 3
    for seed in range(20):
        found = drawn(sampler(), [row], seed)[0].tolist()
        assert found[:3] == snowman


def test_rows_by_their_numbers_are_as_they_were():
    pairs = SubwordSampledPairs(small_pairs(), pieces(), 0.2)
    rows = pairs.rows(np.arange(len(TEXTS)))
    assert torch.equal(rows[:, :LENGTH], padded(TEXTS, pieces()))
    assert (len(pairs), pairs.length) == (len(TEXTS), LENGTH + 96)


def test_what_would_not_fit_stays():
    plain = padded(TEXTS[:1], pieces())
    size = int((plain != PAD).sum())
    seen = set()
    for seed in range(50):
        row = drawn(sampler(length=size + 2, texts=TEXTS[:1]), [0], seed)[0]
        seen.add(int((row != PAD).sum()))
        assert pieces().decode(row.tolist()) == TEXTS[0]
    assert max(seen) <= size + 2
    assert len(seen) == 3  # the room is used


def test_a_row_does_not_depend_on_its_batch():
    sequences, keys = sampler(), mix(np.arange(len(TEXTS), dtype=np.uint64))
    together = sequences.draw(np.arange(len(TEXTS)), keys)
    for row in range(len(TEXTS)):
        alone = sequences.draw(np.array([row]), keys[row : row + 1])
        assert torch.equal(alone[0], together[row])


# In training


def small_pairs(texts=TEXTS):
    targets = [text.upper() for text in texts]
    return pairs_in_memory(
        zip(texts, targets, strict=True), pieces(), source_length=LENGTH, target_length=96
    )


def test_sources_vary_and_targets_do_not():
    pairs = small_pairs()
    shuffled = ShuffledBatches(
        SubwordSampledPairs(pairs, pieces(), 0.2), batch_size=len(TEXTS), seed=3
    )
    plain = ShuffledBatches(pairs, batch_size=len(TEXTS), seed=3)
    epochs = [shuffled.batch(step) for step in range(6)]
    for step, batch in enumerate(epochs):
        as_stored = plain.batch(step)
        assert torch.equal(batch[:, LENGTH:], as_stored[:, LENGTH:])
        for row, stored in zip(batch.tolist(), as_stored.tolist(), strict=True):
            assert pieces().decode(row[:LENGTH]) == pieces().decode(stored[:LENGTH])
    texts = [{tuple(row[:LENGTH]) for row in batch.tolist()} for batch in epochs]
    assert len(set.union(*texts)) > 2 * len(TEXTS)  # new ways in every epoch


def test_batches_are_a_function_of_seed_step_and_rank():
    def batches(seed=3):
        varied = SubwordSampledPairs(small_pairs(), pieces(), 0.2)
        return ShuffledBatches(varied, batch_size=6, seed=seed)

    assert torch.equal(batches().batch(5), batches().batch(5))
    assert not torch.equal(batches().batch(5), batches(4).batch(5))
    ranks = [batches().batch(5, rank=rank, world_size=3) for rank in range(3)]
    assert torch.equal(torch.cat(ranks), batches().batch(5))


def test_more_pieces_where_alpha_is_small():
    def mean_size(alpha):
        rows = drawn(sampler(alpha), np.arange(len(TEXTS)).repeat(50))
        return float((rows != PAD).sum(1).double().mean())

    plain = float((padded(TEXTS, pieces()) != PAD).sum(1).double().mean())
    assert plain < mean_size(1.0) < mean_size(0.2)


def bpe():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:5] * 4), model_writer=model, model_type="bpe", vocab_size=60,
        pad_id=PAD, eos_id=EOS, unk_id=UNKNOWN, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return SentencePieceTokenizer(model.getvalue())


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), numerals_tokenizer(), bpe()])
def test_other_vocabularies_are_refused(tokenizer):
    pairs = PairDataset(InMemory(torch.zeros(1, 4).long()), InMemory(torch.zeros(1, 4).long()))
    with pytest.raises(ValueError, match=r"unigram .* --data.subword-sampling 0"):
        SubwordSampledPairs(pairs, tokenizer, 0.2)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, math.nan])
def test_out_of_range(alpha):
    with pytest.raises(ValueError, match=r"subword_sampling is .* at (least 0|most 1)"):
        DataConfig(subword_sampling=alpha)


def test_it_is_for_translators(tmp_path, capsys):
    made = cdcd_main("train", "--data.subword-sampling", 0.2, "--out", tmp_path / "run")
    assert made != 0
    assert "subword_sampling" in capsys.readouterr().err


def test_presets():
    assert multi30k().data.subword_sampling == 0.2
    others = [preset(name) for name in PRESETS if name != "multi30k"]
    assert {each.data.subword_sampling for each in others} == {0.0}
    assert multi30k("autoregressive").data.subword_sampling == 0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "a.en").write_text("\n".join(TEXTS[:5] * 20))
    (folder / "a.de").write_text("\n".join(text.lower() for text in TEXTS[:5] * 20))
    arguments = ["--source", folder / "a.en", "--target-source", folder / "a.de", "--workers", 1]
    arguments += ["--vocab-size", 320, "--valid-share", 0.1, "--out", folder / "pairs"]
    assert cdcd_main("data", "prepare", *arguments) == 0
    return folder / "pairs"


def test_only_training_pairs_vary(prepared):
    config = override(multi30k(), {"data.source": str(prepared)})
    varied, plain = (
        load_pairs(replace(config, data=replace(config.data, subword_sampling=alpha)))
        for alpha in (0.2, 0.0)
    )
    batches = [
        ShuffledBatches(corpus.train, batch_size=16, seed=0).batch(0) for corpus in (varied, plain)
    ]
    assert not torch.equal(*batches)
    held_out = [
        ShuffledBatches(corpus.valid, batch_size=4, seed=0).batch(0) for corpus in (varied, plain)
    ]
    assert torch.equal(*held_out)


def test_a_resumed_run_is_the_uninterrupted_run(prepared, tmp_path):
    def train(name, *arguments):
        made = cdcd_main("train", "--out", tmp_path / name, *arguments)
        assert made == 0

    changes = {"task": "translation", "data.source": str(prepared), "data.subword_sampling": 0.2}
    start = tiny_options(changes)
    train("whole", *start, "--training.steps", 4)
    train("part", *start, "--training.steps", 2)
    train("part", "--resume", "--training.steps", 4)
    weights = "checkpoints/step-00000004/weights.safetensors"
    whole = (tmp_path / "whole" / weights).read_bytes()
    assert whole == (tmp_path / "part" / weights).read_bytes()
