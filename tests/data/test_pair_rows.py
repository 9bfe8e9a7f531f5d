"""Pairs as rows of source and target, prepared or in memory."""

import numpy as np
import pytest
import torch
from pair_corpus import ENGLISH, GERMAN, prepared, texts_of, write_corpus

from cdcd.data.pairs import PairDataset, pairs_in_memory
from cdcd.data.prepare.reading import Documents, ParallelDocuments
from cdcd.data.sequences import InMemory, Sequences, ShuffledBatches
from cdcd.data.tokenizers import ByteTokenizer, numerals_tokenizer
from cdcd.data.vocabulary import EOS, PAD
from cdcd.languages import numerals


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def unpadded(row, source_length):
    """The two texts of a row, after checking what is behind them."""
    texts = []
    for side in (row[:source_length], row[source_length:]):
        end = side.tolist().index(EOS)
        assert (side[end + 1 :] == PAD).all()
        texts.append(ByteTokenizer().decode(side[:end].tolist()))
    return tuple(texts)


def test_rows(corpus):
    pairs = prepared(corpus, shard_tokens=2000)
    assert len(list((pairs.path / "source").glob("train-*.tokens"))) > 2
    found = pairs.sequences("train", source_length=40, target_length=30)
    assert isinstance(found, Sequences)
    assert (found.source_length, found.target_length, found.length) == (40, 30, 70)
    wanted = [(s, t) for s, t in texts_of(pairs, "train") if len(s) < 40 and len(t) < 30]
    rows = found.rows(torch.arange(len(found)))
    assert rows.dtype == torch.int64
    assert [unpadded(row, 40) for row in rows] == wanted
    assert 0 < found.num_dropped == pairs.num_pairs("train") - len(wanted)
    assert torch.equal(found.rows(np.array([5, 2])), rows[[5, 2]])


def test_rows_the_other_way(corpus):
    pairs = prepared(corpus)
    there = pairs.sequences("valid", source_length=60, target_length=50)
    back = pairs.sequences("valid", source_length=50, target_length=60, reverse=True)
    rows, other = (each.rows(torch.arange(len(each))) for each in (there, back))
    assert torch.equal(torch.cat([rows[:, 60:], rows[:, :60]], 1), other)
    assert there.num_dropped == 0


def test_rows_in_memory_are_those_prepared(corpus):
    pairs = prepared(corpus)
    lengths = {"source_length": 40, "target_length": 30}
    there = pairs.sequences("train", **lengths)
    memory = pairs_in_memory(texts_of(pairs, "train"), pairs.tokenizer, **lengths)
    every = torch.arange(len(there))
    assert torch.equal(there.rows(every), memory.rows(every))
    assert there.num_dropped == memory.num_dropped


def test_a_side_that_fills_its_length_is_kept():
    found = pairs_in_memory(
        [("ab", "x"), ("abc", "x")], ByteTokenizer(), source_length=3, target_length=2
    )
    assert found.rows(torch.tensor([0])).tolist() == [[100, 101, EOS, 123, EOS]]
    assert found.num_dropped == 1


def test_shuffled_pairs_stay_pairs(corpus):
    pairs = prepared(corpus)
    found = pairs.sequences("train", source_length=60, target_length=50)
    shuffled = ShuffledBatches(found, batch_size=16, seed=0)
    both = set(zip(ENGLISH, GERMAN, strict=True))
    for step in range(30):
        assert {unpadded(row, 60) for row in shuffled.batch(step)} <= both


def test_nothing_fits(corpus):
    pairs = prepared(corpus)
    message = r"none of \d+ pairs fits into 4 \+ 50 tokens .* raise the lengths"
    with pytest.raises(ValueError, match=message):
        pairs.sequences("train", source_length=4, target_length=50)
    with pytest.raises(ValueError, match=message):
        pairs_in_memory([("house", "Haus")] * 3, ByteTokenizer(), source_length=4, target_length=50)
    with pytest.raises(ValueError, match=r"there are 2 sources and 3 targets"):
        PairDataset(InMemory(torch.zeros(2, 3)), InMemory(torch.zeros(3, 3)))


def test_the_built_in_task_fits():
    drawn = numerals.sample_pairs(500, seed=0)
    found = pairs_in_memory(drawn, numerals_tokenizer(), source_length=32, target_length=32)
    assert len(found) == 500
    assert found.num_dropped == 0


def test_reading_in_memory(corpus):
    (corpus / "x.tsv").write_text("hi\thallo\n\nyes\t \nno\tnein\n")
    rows = [("hi", "hallo"), ("", ""), ("yes", " "), ("no", "nein")]
    assert list(Documents(str(corpus / "x.tsv"), columns=("1", "2"))) == rows
    sides = (Documents(str(corpus / "x.tsv"), columns=(column,)) for column in ("1", "2"))
    assert list(ParallelDocuments(*sides)) == rows
