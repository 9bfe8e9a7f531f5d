"""Ends of sentences: where they are, where they only seem to be, and pieces that fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.data.sentences import pack_sentences, split_long, split_sentences

TEXTS = [
    "He came. |She left! |Why? |Nobody knew.",
    "Wait... |Then he left… |What?! |Yes.",
    "„Gut.“ |Dann ging er. |»Wirklich?« |“No.” |(He did.) |He said 'Stop.' |So he did.",
    "“Really?” she asked. |„Halt!“ rief er.",
    # Abbreviations, initials, times
    "Dr. Smith met Mr. and Mrs. J. S. Bach, i.e. the parents. |They talked.",
    "Das ist z. B. Berlin bzw. Bonn, d.h. eine Stadt. |Es regnet.",
    "The U.S. Army left at 5 p.m. |It rained.".replace("p.m. |", "p.m. "),
    "See Fig. 3 and No. 5. |No. |He did not.".replace("5. |No", "5. No"),
    "Das gefällt mir auf diese Art. |Nach Art. 5 ist es erlaubt.",
    # Ordinals, numbers, names of kings
    "Am 3. Mai kam er. |Im 19. Jahrhundert nicht.",
    "Ludwig XIV. regierte. |Elisabeth II. Regina auch.",
    "It cost 3.50 euros. |In 1995. |Then more.",
    # No space, no end
    "cdcd.load and www.example.com/a?b are one sentence.",
    "今天很好。|他说：「走吧！」|然後走了？|好。",
    "First.\u2028|Second.\t|Third",
    "no end at all",
    "",
]


@pytest.mark.parametrize("marked", TEXTS)
def test_ends(marked):
    text = marked.replace("|", "")
    assert split_sentences(text) == [part for part in marked.split("|") if part]


WORDS = st.sampled_from(
    ["Er", "kam", ".", "!", "…", " ", "  ", "3", "Dr", "“", "。", "z.", "\u2028"]
)


@given(st.lists(WORDS, max_size=30).map("".join), st.integers(1, 12))
def test_nothing_is_lost_and_pieces_fit(text, room):
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    pieces = pack_sentences(text, lambda piece: len(piece) <= room)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    whole = {sentence.strip() for sentence in sentences}
    assert all(len(piece) <= room or piece in whole for piece in pieces)


def test_pieces_are_few():
    text = "One. Two. Three. Four. Five."
    assert pack_sentences(text, lambda piece: len(piece) <= 9) == [
        "One. Two.",
        "Three.",
        "Four.",
        "Five.",
    ]
    assert pack_sentences(text, lambda piece: len(piece) <= 16) == [
        "One. Two. Three.",
        "Four. Five.",
    ]
    assert pack_sentences(text, lambda piece: True) == [text]
    assert pack_sentences("   ", len) == []


def test_a_long_text_takes_no_long_time():
    assert len(split_sentences("He came. " * 20_000)) == 20_000


def test_further_pieces_stand_behind_all_texts_and_return_to_their_own():
    texts = ["A b.", "One two. Three four. Five!", "", "Far too long a sentence. Six."]
    pieces = split_long(texts, lambda text: len(text) <= 12)
    assert pieces.texts == ["A b.", "One two.", "", "", "Three four.", "Five!", "Six."]
    assert pieces.owners == [0, 1, 2, 3, 1, 1, 3]
    assert (pieces.too_long, pieces.unread) == ([1, 3], [3])
    grouped = pieces.by_text(pieces.texts)
    assert grouped == [["A b."], ["One two.", "Three four.", "Five!"], [""], ["", "Six."]]
