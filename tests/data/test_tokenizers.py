"""Tokenizers: lossless where they promise it, saved and loaded, learnt from a stream."""

import io
import json
import random

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from cdcd.data.tokenizer_learning import (
    learn_sentencepiece,
    learn_tokenizer,
    learn_words,
    sample_stretches,
)
from cdcd.data.tokenizers import (
    ByteTokenizer,
    SentencePieceTokenizer,
    SymbolTokenizer,
    WordTokenizer,
    load_tokenizer,
    token_dtype,
    tokenizer_hash,
)
from cdcd.data.vocabulary import EOS, PAD, UNKNOWN

TEXTS = ["The café was  open.", "A cat sat on the mat!", "naïve 日本 text", "tabs\tand so on"] * 6


@pytest.fixture(scope="module")
def pieces():
    return learn_sentencepiece(TEXTS, 400)


def raw(text):
    return text.encode("utf-8", "surrogateescape")


# Bytes


@given(st.binary(max_size=60))
def test_bytes_keep_any_bytes(content):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(content.decode("utf-8", "surrogateescape"))
    assert tokens == [byte + 3 for byte in content]
    assert raw(tokenizer.decode(tokens, errors="surrogateescape")) == content


def test_bytes_have_readable_pieces():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 259
    assert [tokenizer.piece(token) for token in (0, 1, 2, 3 + 65, 3 + 255)] == [
        "<pad>", "<eos>", "<unk>", "A", "<0xFF>",
    ]  # fmt: skip
    assert tokenizer.decode([PAD, 3 + 65, EOS, 3 + 255]) == "A\ufffd"


# Pieces


@given(content=st.binary(max_size=40))
def test_pieces_keep_any_bytes(pieces, content):
    tokens = pieces.encode(content.decode("utf-8", "surrogateescape"))
    assert UNKNOWN not in tokens
    assert raw(pieces.decode(tokens, errors="surrogateescape")) == content


@pytest.mark.parametrize(
    "content", [b"caf\xe9 ol\xe9", b"\xff\xfe", b"ok \xe6\x97 \xe6\x97\xa5", b"a\xc3"]
)
def test_pieces_keep_bytes_that_are_not_utf8_as_themselves(pieces, content):
    text = content.decode("utf-8", "surrogateescape")
    tokens = pieces.encode(text)
    shown = [pieces.piece(token) for token in tokens]
    for byte in text:
        if "\udc80" <= byte <= "\udcff":
            assert f"<0x{ord(byte) - 0xDC00:02X}>" in shown
    assert pieces.decode(tokens, errors="surrogateescape") == text
    pieces.decode(tokens).encode("utf-8")  # what is shown can be printed


def test_pieces_tell_the_sign_of_a_space_from_a_space(pieces):
    for text in ("a▁b", "▁", "▁ ▁\udcff"):
        assert pieces.decode(pieces.encode(text), errors="surrogateescape") == text
    assert pieces.encode("a▁b") != pieces.encode("a b")


def test_plain_text_is_encoded_as_sentencepiece_does(pieces):
    for text in TEXTS:
        assert pieces.encode(text) == pieces.processor.encode(text)


def test_rare_characters_of_a_large_corpus_are_left_to_their_bytes(monkeypatch):
    monkeypatch.setattr("cdcd.data.tokenizer_learning.LARGE", 1000)
    monkeypatch.setattr("cdcd.data.tokenizer_learning.COVERAGE", 0.98)
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    rng = random.Random(0)
    corpus = ["".join(rng.choices("abcdefghi ", k=100)) for _ in range(200)] + [rare]
    tokenizer = learn_sentencepiece(corpus, 300)
    assert tokenizer.vocab_size <= 300
    assert tokenizer.decode(tokenizer.encode(rare)) == rare
    monkeypatch.setattr("cdcd.data.tokenizer_learning.LARGE", 10**9)
    with pytest.raises(
        ValueError, match=r"vocab_size is 300; bytes and the characters .* need 569"
    ):
        learn_sentencepiece(corpus, 300)


def test_the_smallest_vocabulary_of_a_large_corpus_is_the_one_that_the_error_names(monkeypatch):
    monkeypatch.setattr("cdcd.data.tokenizer_learning.LARGE", 1000)
    monkeypatch.setattr("cdcd.data.tokenizer_learning.COVERAGE", 0.99)
    corpus = ["abc abd "] * 200 + ["xyz"]
    with pytest.raises(ValueError, match=r"need 264"):
        learn_sentencepiece(corpus, 263)
    assert learn_sentencepiece(corpus, 264).vocab_size == 264


def test_learning_leaves_out_bytes_that_are_not_utf8():
    tokenizer = learn_sentencepiece([*TEXTS, "caf\udce9"], 400)
    assert tokenizer.content == learn_sentencepiece([*TEXTS, "caf"], 400).content


# The sample that pieces are learnt from


def test_a_corpus_that_fits_is_taken_whole_and_in_order():
    texts = [f"document {number}" for number in range(50)]
    assert sample_stretches(iter(texts), num_bytes=10_000, stretch=100, seed=0) == texts
    cut = sample_stretches(["abcdefg"], num_bytes=100, stretch=3, seed=0)
    assert cut == ["abc", "def", "g"]


def test_a_sample_is_within_its_bytes_seeded_and_even():
    texts = [f"{number:06d}" for number in range(3000)]
    sample = sample_stretches(iter(texts), num_bytes=6 * 600, stretch=100, seed=1)
    assert len(sample) == 600
    assert sample == sorted(sample)
    assert sample == sample_stretches(iter(texts), num_bytes=6 * 600, stretch=100, seed=1)
    assert sample != sample_stretches(iter(texts), num_bytes=6 * 600, stretch=100, seed=2)
    thirds = np.bincount([int(text) // 1000 for text in sample])
    assert abs(thirds - 200).max() < 45  # four standard deviations


def test_bytes_are_counted_not_characters():
    assert len(sample_stretches(["日日", "本本"], num_bytes=8, stretch=9, seed=0)) == 1


# Words and symbols


def test_symbols():
    tokenizer = learn_words(iter(["e2e4 e7e5\ne2e4", "g1f3 e2e4 e7e5"]), 5, SymbolTokenizer)
    assert tokenizer.words == ("<pad>", "<eos>", "<unk>", "e2e4", "e7e5")
    assert tokenizer.encode("e7e5  e2e4\ng1f3") == [4, 3, UNKNOWN]
    assert tokenizer.decode([4, 3, EOS, PAD]) == "e7e5 e2e4"
    with pytest.raises(ValueError, match=r"the symbol 'e2e5' is not in .*; nearest: .*e2e4"):
        tokenizer.encode("e2e5", strict=True)


def test_symbols_between_spaces_come_back():
    text = "74,70,65,58 -1,70,65,58 1/2-1/2 e7e8q"
    tokenizer = learn_words([text], 100, SymbolTokenizer)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_undecodable_words_are_unknown():
    for kind in (WordTokenizer, SymbolTokenizer):
        tokenizer = learn_words(["caf\udce9 ole ole"], 100, kind)
        assert not any("\udce9" in word for word in tokenizer.words)
        assert UNKNOWN in tokenizer.encode("caf\udce9")
        assert UNKNOWN not in tokenizer.encode("ole")


def test_specials_in_a_text_are_only_text():
    tokenizer = learn_words(["a <eos> <pad> b"], 100, SymbolTokenizer)
    assert tokenizer.encode("<eos> <pad>") == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("kind", ["words", "symbols"])
def test_a_vocabulary_that_is_too_small(kind):
    with pytest.raises(ValueError, match=r"vocab_size is 3, it must be above 3"):
        learn_tokenizer(kind, ["a"], 3)


def test_an_unknown_kind():
    with pytest.raises(ValueError, match=r"unknown tokenizer symbol; did you mean symbols?"):
        learn_tokenizer("symbol", ["a"], 30)


# Arrays, saving, loading


def every_kind(pieces):
    return [pieces, WordTokenizer(["a", "b"]), SymbolTokenizer(["a", "b"]), ByteTokenizer()]


def test_the_smallest_type_for_tokens():
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32


def test_saving_and_loading(pieces, tmp_path):
    hashes = set()
    for tokenizer in every_kind(pieces):
        folder = tmp_path / tokenizer.kind / "tokenizer"
        folder.mkdir(parents=True)
        tokenizer.save(folder)
        [file] = folder.iterdir()
        for place in (folder.parent, folder, file):
            loaded = load_tokenizer(place)
            assert type(loaded) is type(tokenizer)
            assert loaded.encode("a b") == tokenizer.encode("a b")
            assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)
        hashes.add(tokenizer_hash(tokenizer))
    assert len(hashes) == 4
    assert all(len(found) == 64 for found in hashes)


def test_a_model_file_of_any_name(pieces, tmp_path):
    (tmp_path / "spm32k.model").write_bytes(pieces.content)
    assert tokenizer_hash(load_tokenizer(tmp_path / "spm32k.model")) == tokenizer_hash(pieces)


def test_a_model_with_other_specials(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=35, minloglevel=2
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    message = "other.model .* has pad -1, eos 2, unk 0; it needs pad 0, eos 1, unk 2: .*--pad_id=0"
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path / "other.model")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sentencepiece.model", b"no model"),
        ("words.json", b"{"),
        ("words.json", json.dumps({"words": ["a", "a"]}).encode()),
        ("symbols.json", json.dumps({"words": ["a"]}).encode()),
    ],
)
def test_damaged_tokenizers(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"the tokenizer .*{name} is damaged"):
        load_tokenizer(tmp_path)


def test_places_without_a_tokenizer(tmp_path):
    with pytest.raises(ValueError, match=r"holds no tokenizer \(sentencepiece.model, words.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(
        ValueError, match=r"there is no tokenizer .*absent; give .* or a folder, a run"
    ):
        load_tokenizer(tmp_path / "absent")
    (tmp_path / "merges.txt").write_text("a b")
    with pytest.raises(ValueError, match=r"merges.txt is not a tokenizer; known files: \*.model"):
        load_tokenizer(tmp_path / "merges.txt")


def test_the_model_type_is_what_the_paper_uses(pieces):
    assert isinstance(pieces, SentencePieceTokenizer)
    assert pieces.processor.is_byte(3)
