"""The built-in corpora are those of earlier versions, text for text: runs resume and results compare."""

import hashlib

import pytest

from cdcd.languages import numerals, tales


@pytest.mark.parametrize(
    ("texts", "digest"),
    [
        (tales.stories(300, seed=0), "485f3afbf3993a28"),
        (numerals.sample_pairs(300, seed=0), "c6cd10e8f7ecad2c"),
        (numerals.sample_pairs(300, seed=0, direction="de-en", held_out=True), "5b43fe3da8f65dfa"),
    ],
    ids=["tales", "numerals", "numerals held out"],
)
def test_texts_are_frozen(texts, digest):
    assert hashlib.sha256(repr(texts).encode()).hexdigest()[:16] == digest
