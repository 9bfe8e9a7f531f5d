"""Sequences: packed, padded or cropped out of shards; shuffled without memory; damage found."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import silent

from cdcd.data.order import ROUNDS, keys_for, mix, permuted
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.sequences import (
    InMemory,
    Sequences,
    ShuffledBatches,
    TokenDataset,
    TokenDocuments,
    is_dataset,
)
from cdcd.data.tokenizers import WordTokenizer, tokenizer_hash
from cdcd.data.vocabulary import EOS, PAD

TEXTS = [" ".join(["a", "b", "c", "d"][(n + k) % 4] for k in range(n % 11 + 1)) for n in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of 1 to 11 symbols, in several shards."""
    place = tmp_path_factory.mktemp("data")
    (place / "corpus.txt").write_text("\n".join(TEXTS))
    config = PrepareConfig(
        source=str(place / "corpus.txt"),
        tokenizer="symbols",
        valid_share=0.2,
        test_share=0.0,
        shard_tokens=500,
        workers=1,
    )
    prepare(config, place / "set", console=silent())
    return place / "set"


@pytest.fixture(scope="module")
def dataset(folder):
    return TokenDataset(folder)


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def stored(dataset, split):
    return [document.tolist() for document in dataset.documents(split)]


def shards_of(dataset, split):
    """The documents of a split, shard by shard."""
    documents = iter(stored(dataset, split))
    described = json.loads((dataset.path / "dataset.json").read_text())["splits"][split]
    return [[next(documents) for _ in range(s["documents"])] for s in described["shards"]]


def all_rows(sequences):
    return sequences.rows(np.arange(len(sequences)))


# Reading


def test_documents_are_those_of_the_corpus(dataset):
    texts = [dataset.tokenizer.decode(d) for s in dataset.splits for d in stored(dataset, s)]
    assert sorted(texts) == sorted(TEXTS)
    assert all(document[-1] == EOS for document in stored(dataset, "train"))
    assert dataset.splits == ("train", "valid")
    assert dataset.tokenizer.vocab_size == 7
    assert dataset.tokenizer_hash == tokenizer_hash(dataset.tokenizer)
    summary = dataset.summary("train")
    assert summary.documents == len(stored(dataset, "train"))
    assert summary.tokens == sum(map(len, stored(dataset, "train")))
    assert len(shards_of(dataset, "train")) > 2


@pytest.mark.parametrize("length", [2, 7, 64])
def test_stream_packs_each_shard(dataset, length):
    wanted = []
    for documents in shards_of(dataset, "train"):
        tokens = [token for document in documents for token in document]
        wanted += [tokens[i : i + length] for i in range(0, len(tokens) - length + 1, length)]
    sequences = dataset.documents("train").stream(length)
    assert isinstance(sequences, Sequences)
    assert sequences.length == length
    assert all_rows(sequences).tolist() == wanted
    assert all_rows(sequences).dtype == torch.int64


@pytest.mark.parametrize("length", [2, 5, 12])
def test_each_sequence_starts_a_document_or_goes_on_with_it(dataset, length):
    wanted = [
        [*document[start : start + length], *[PAD] * (start + length - len(document))]
        for document in stored(dataset, "train")
        for start in range(0, len(document), length)
    ]
    found = all_rows(dataset.documents("train").one_each(length))
    assert found.tolist() == wanted
    assert (found == PAD).any()


@pytest.mark.parametrize("layout", ["documents", "stream"])
def test_texts_in_memory_are_as_one_shard(dataset, layout):
    there = TokenDocuments(dataset.documents("valid").shards[:1], "the first shard")
    documents = [document.tolist() for document in there]
    texts = [dataset.tokenizer.decode(document) for document in documents]
    memory = TokenDocuments.of_texts(texts, dataset.tokenizer, "the corpus")
    assert [document.tolist() for document in memory] == documents
    assert torch.equal(all_rows(memory.sequences(5, layout)), all_rows(there.sequences(5, layout)))
    assert torch.equal(all_rows(memory.full(5)), all_rows(there.full(5)))
    with pytest.raises(ValueError, match=r"the corpus has too few documents of that length of 99"):
        memory.full(99)


@pytest.mark.parametrize("length", [2, 5, 11])
def test_full_documents(dataset, length):
    wanted = [d[:length] for d in stored(dataset, "train") if len(d) - 1 >= length]
    found = all_rows(dataset.documents("train").full(length))
    assert found.tolist() == wanted
    assert not ((found == PAD) | (found == EOS)).any()


def test_rows_in_any_order(dataset):
    for layout in ("stream", "documents"):
        sequences = dataset.documents("train").sequences(6, layout)
        every = all_rows(sequences)
        indices = torch.randint(len(sequences), (50,), generator=torch.Generator().manual_seed(0))
        assert torch.equal(sequences.rows(indices), every[indices])
        assert torch.equal(sequences.rows(indices.numpy()), every[indices])
        assert torch.equal(InMemory(every.int()).rows(indices), every[indices])
        assert sequences.rows(indices[:0]).shape == (0, 6)
        for wrong in (-1, len(sequences)):
            with pytest.raises(IndexError, match=f"there are {len(sequences)} sequences"):
                sequences.rows(np.array([wrong]))


# What is wrong with a data set


def test_splits_and_lengths_that_are_not_there(dataset):
    with pytest.raises(ValueError, match=r"no documents in a split 'test'; it has train, valid"):
        dataset.documents("test")
    valid = dataset.documents("valid")
    with pytest.raises(
        ValueError, match=r"valid of .* too few tokens for one sequence of 9999 tok"
    ):
        valid.stream(9999)
    with pytest.raises(ValueError, match=r"valid of .* too few documents of that length of 12 tok"):
        valid.full(12)
    with pytest.raises(IndexError, match=r"valid of .* has \d+ documents"):
        valid[400]


@pytest.mark.parametrize("kind", ["tokens", "ends"])
def test_a_shard_cut_short(copy, kind):
    file = copy / f"train-00001.{kind}"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-8])
    message = rf"train-00001.{kind} has {size - 8:,} bytes, it should have {size:,}"
    with pytest.raises(ValueError, match=message):
        TokenDataset(copy)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{kind} has 0 bytes, it should have {size:,}"):
        TokenDataset(copy)


@pytest.mark.parametrize("kind", ["tokens", "ends"])
def test_verify_finds_a_flipped_bit(copy, kind):
    dataset = TokenDataset(copy)
    dataset.verify()
    content = bytearray((copy / f"train-00000.{kind}").read_bytes())
    content[20] ^= 1
    (copy / f"train-00000.{kind}").write_bytes(content)
    described = json.loads((copy / "dataset.json").read_text())
    wanted = described["splits"]["train"]["shards"][0]["sha256"][kind]
    message = rf"train-00000.{kind} is damaged: its SHA-256 is \w+, dataset.json says {wanted}"
    with pytest.raises(ValueError, match=message):
        TokenDataset(copy).verify()


def test_another_tokenizer(copy, dataset):
    other = WordTokenizer(["a", "b", "c", "d"])
    shutil.rmtree(copy / "tokenizer")
    (copy / "tokenizer").mkdir()
    other.save(copy / "tokenizer")
    with pytest.raises(ValueError, match=r"has the tokens of another tokenizer than the one in"):
        TokenDataset(copy)


def test_what_is_no_data_set(copy, tmp_path):
    assert is_dataset(copy)
    assert is_dataset(str(copy))
    assert not is_dataset(tmp_path)
    assert not is_dataset("tales")
    with pytest.raises(
        ValueError, match=r"absent does not exist; prepare one with: cdcd data prep"
    ):
        TokenDataset(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"is not a prepared data set \(no dataset.json in it\)"):
        TokenDataset(tmp_path)
    described = json.loads((copy / "dataset.json").read_text())
    for content, message in (
        ("{", "is damaged: it is not JSON"),
        ("[]", "is damaged: it is not a JSON object"),
        (json.dumps(described | {"format": 9}), "is of format 9, this version of cdcd reads 1"),
    ):
        (copy / "dataset.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            TokenDataset(copy)
    (copy / "dataset.json").rename(copy / ".progress.json")
    assert is_dataset(copy)
    with pytest.raises(ValueError, match=r"is not finished; go on with the command that began it"):
        TokenDataset(copy)


# The order


SIZES = [1, 2, 3, 4, 5, 7, 10, 1000, *(2**k + d for k in (4, 7, 8, 13) for d in (-1, 0, 1))]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_order_is_a_permutation(size, seed):
    keys = keys_for(seed, "epoch", 0, count=ROUNDS)
    assert sorted(permuted(np.arange(size), size, keys)) == list(range(size))


def test_any_part_of_a_huge_order():
    size, keys = 5 * 10**9 + 7, keys_for(0, count=ROUNDS)
    positions = np.arange(3 * 10**9, 3 * 10**9 + 50_000)
    found = permuted(positions, size, keys)
    assert len(np.unique(found)) == len(found)
    assert found.min() >= 0
    assert found.max() < size
    assert np.array_equal(permuted(positions[7:9], size, keys), found[7:9])
    assert stats.kstest(found / size, "uniform").pvalue > 0.01


def uniformity(size, rounds, num_keys=1000):
    """The least of three p-values: where positions go, where neighbours go, their distance."""
    orders = np.array(
        [permuted(np.arange(size), size, keys_for(k, count=8)[:rounds]) for k in range(num_keys)]
    )
    places = np.zeros((size, size))
    np.add.at(places, (np.tile(np.arange(size), num_keys), orders.ravel()), 1)
    where = stats.chisquare(places.ravel(), ddof=2 * size - 2).pvalue
    pairs = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size**2)
    different = ~np.eye(size, dtype=bool).ravel()
    neighbours = stats.chisquare(pairs[different]).pvalue
    steps = np.bincount((orders[:, 1:] - orders[:, :-1]).ravel() % size, minlength=size)[1:]
    return min(where, neighbours, stats.chisquare(steps).pvalue)


@pytest.mark.parametrize("size", [3, 12, 30])
def test_orders_are_uniform(size):
    assert uniformity(size, ROUNDS) > 1e-3


@pytest.mark.parametrize("size", [12, 30])
def test_too_few_rounds_would_be_found(size):
    """Power: the same test refuses a network of two rounds."""
    assert uniformity(size, 2) < 1e-6


def test_the_hash_is_splitmix64():
    """The first numbers of the published generator from the seed 1234567."""
    state = (1234567 + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(
        np.uint64
    )
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mix(state).tolist() == wanted


@pytest.fixture
def numbers():
    """Sequences that show their own number."""
    return InMemory(torch.arange(103, dtype=torch.int32)[:, None].expand(-1, 2))


def test_every_epoch_has_every_sequence_in_a_new_order(numbers):
    batches = ShuffledBatches(numbers, 10, seed=0)
    seen = torch.cat([batches.batch(step) for step in range(31)])[:309, 0]
    epochs = seen.view(3, 103)
    assert all(sorted(epoch.tolist()) == list(range(103)) for epoch in epochs)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (epochs[one] == epochs[other]).sum() < 10
    assert (epochs[0] == torch.arange(103)).sum() < 10
    assert seen.dtype == torch.int64


def test_batches_are_a_function_of_step_and_seed(numbers):
    once, again = ShuffledBatches(numbers, 10, seed=3), ShuffledBatches(numbers, 10, seed=3)
    later = [again.batch(step) for step in (99, 5)]
    assert torch.equal(once.batch(5), later[1])
    assert torch.equal(once.batch(99), later[0])
    assert not torch.equal(once.batch(5), ShuffledBatches(numbers, 10, seed=4).batch(5))


@pytest.mark.parametrize("world_size", [1, 2, 4, 12])
def test_ranks_share_the_batch(numbers, world_size):
    batches = ShuffledBatches(numbers, 12, seed=0)
    for step in (0, 8, 9):  # step 8 spans two epochs
        parts = [
            batches.batch(step, rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        assert {len(part) for part in parts} == {12 // world_size}
        assert torch.equal(torch.cat(parts), batches.batch(step))


def test_a_rank_reads_only_its_rows():
    class Counting(InMemory):
        def rows(self, indices):
            asked.append(len(indices))
            return super().rows(indices)

    asked = []
    ShuffledBatches(Counting(torch.zeros(50, 2)), 8, 0).batch(0, rank=1, world_size=4)
    assert asked == [2]


def test_bad_batches(numbers):
    with pytest.raises(ValueError, match=r"batch of 10 sequences cannot be shared by 4 ranks"):
        ShuffledBatches(numbers, 10, 0).batch(0, world_size=4)


def test_a_batch_larger_than_the_corpus():
    tokens = torch.arange(3)[:, None]
    seen = ShuffledBatches(InMemory(tokens), 9, seed=0).batch(0)[:, 0]
    assert all(sorted(epoch.tolist()) == [0, 1, 2] for epoch in seen.view(3, 3))
