"""Categories that are no English text: documents of published lines, and judges that are exact."""

import json

import pytest

from cdcd.languages import chorales
from cdcd.languages.gallery import CATEGORIES

RULES = {name: category.judge([]) for name, category in CATEGORIES.items()}


def hidden(name, text):
    """Returns the pieces of a document that are hidden in the task with gaps."""
    split = list if name in ("molecules", "dialogues") else str.split
    pieces = split(text)
    hide = CATEGORIES[name].hide(pieces)
    return hide and [piece for piece, is_hidden in zip(pieces, hide, strict=True) if is_hidden]


# Molecules


@pytest.mark.parametrize(
    ("smiles", "is_valid"),
    [
        ("CCO", True),
        ("C1CC1O", True),
        ("C1CC", False),  # a ring that is not closed
        ("C(C)(C)(C)(C)C", False),  # five bonds of a carbon
        ("C.C", False),  # two molecules
        ("CC(", False),
        ("", False),
        ("hello", False),
    ],
)
def test_molecules_are_those_whose_valences_are_possible(smiles, is_valid):
    pytest.importorskip("rdkit", reason="the extra gallery is not installed")
    assert RULES["molecules"](smiles) == {"valid": is_valid}


def test_two_ways_to_write_a_molecule_are_one():
    pytest.importorskip("rdkit", reason="the extra gallery is not installed")
    normal = CATEGORIES["molecules"].normal
    assert normal("OCC") == normal("C(O)C") == normal("CCO") is not None
    assert normal("C(O)N") != normal("CCO")
    assert normal("C1CC") is None


def test_all_but_a_ring_is_hidden():
    assert hidden("molecules", "OCC1CCC1N") == ["O", "C", "N"]
    assert hidden("molecules", "CCO") is None


# Chess

OPENING = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6"


@pytest.mark.parametrize(
    ("game", "legal", "first"),
    [
        (f"1-0 {OPENING} e1g1", True, True),
        (f"1/2-1/2 {OPENING}", True, True),
        (OPENING, False, False),  # without a result, the first move is none
        ("1-0 e2e4 e7e5 e4e5", False, False),  # the square is taken
        ("1-0 e2e4 e2e4", False, False),
        (f"1-0 {OPENING} " + "f3g1 f6g8 g1f3 g8f6 " * 3 + "a1a8", False, True),
        ("1-0", False, False),
        ("", False, False),
    ],
)
def test_games_are_those_that_can_be_played(game, legal, first):
    pytest.importorskip("chess", reason="the extra gallery is not installed")
    assert RULES["chess"](game) == {"legal": legal, "first_twenty_legal": first}


def test_games_are_cut_and_ten_moves_hidden():
    moves = [f"m{i}" for i in range(80)]
    [game] = CATEGORIES["chess"].read([" ".join(["0-1", *moves]) + "\n"])
    assert game.split() == ["0-1", *moves[:62]]
    assert hidden("chess", game) == moves[20:30]
    assert hidden("chess", "0-1 m0 m1") is None


# Chorales

C_MAJOR, D_MINOR = [72, 67, 64, 48], [74, 69, 65, 50]


@pytest.mark.parametrize(
    ("chords", "broken"),
    [
        ([C_MAJOR, [71, 67, 62, 55]], set()),
        # All voices up a tone: fifths and octaves in parallel.
        ([C_MAJOR, D_MINOR], {"no_parallels"}),
        # A chord that is held or silent makes no parallels.
        ([C_MAJOR, C_MAJOR, [72, None, 64, 48]], set()),
        ([[67, 72, 64, 48]], {"no_crossing"}),
        ([[90, 67, 64, 48]], {"in_ranges"}),
    ],
)
def test_rules_of_four_voices(chords, broken):
    rules = chorales.check(chorales.write(chords))
    assert {name for name, is_kept in rules.items() if not is_kept} == broken


@pytest.mark.parametrize("text", ["", "S72 A67 T64", "A67 S72 T64 B48", "S72 A67 T64 B48 S72", "x"])
def test_what_is_no_sequence_of_chords_keeps_no_rule(text):
    assert not any(chorales.check(text).values())


def test_chorales_are_windows_of_four_bars_in_seven_keys():
    line = " ".join(["72,67,64,48"] * 2 * 39 + ["-1,67,64,48"] * 2)
    documents = list(chorales.read([line]))
    # 40 eighths are two windows, each in the keys from three semitones down to three up.
    assert len(documents) == 2 * 7
    assert chorales.parse(documents[0]) == [[69, 64, 61, 45]] * 32
    assert chorales.parse(documents[-1])[-1] == [None, 70, 67, 51]
    assert hidden("chorales", documents[0])[:4] == ["A64", "T61", "B45", "A64"]
    high = " ".join(["81,67,64,48"] * 2 * 32)
    assert len(list(chorales.read([high]))) == 4


def test_a_repeated_pitch_is_one_note_and_the_midi_file_plays_it():
    text = chorales.write([C_MAJOR, [72, 65, 65, None], [74, 65, 65, 41]])
    found = {(n.voice, n.pitch, n.start, n.length) for n in chorales.notes(text)}
    assert found == {
        *{("S", 72, 0, 2), ("S", 74, 2, 1), ("A", 67, 0, 1), ("A", 65, 1, 2)},
        *{("T", 64, 0, 1), ("T", 65, 1, 2), ("B", 48, 0, 1), ("B", 41, 2, 1)},
    }
    assert played(chorales.to_midi(text)) == {
        (channel, note.pitch, 24 * note.start, 24 * note.length)
        for channel, voice in enumerate("SATB")
        for note in chorales.notes(text)
        if note.voice == voice
    }


def played(midi):
    """Returns (channel, pitch, start, length) in ticks of all notes of a MIDI file, read as the standard says."""
    assert midi[:4] == b"MThd"
    assert (midi[8:10], midi[12:14]) == (b"\x00\x01", b"\x00\x30")
    found, at = set(), 14
    for _ in range(int.from_bytes(midi[10:12], "big")):
        assert midi[at : at + 4] == b"MTrk"
        end = at + 8 + int.from_bytes(midi[at + 4 : at + 8], "big")
        at, now, sounding = at + 8, 0, {}
        while at < end:
            ticks = 0
            while midi[at] & 0x80:
                ticks = ticks << 7 | midi[at] & 0x7F
                at += 1
            now, at = now + (ticks << 7 | midi[at]), at + 1
            if midi[at] == 0xFF:
                at += 3 + midi[at + 2]
                continue
            kind, pitch = midi[at], midi[at + 1]
            if kind & 0xF0 == 0x90:
                sounding[pitch] = now
            else:
                start = sounding.pop(pitch)
                found.add((kind & 0x0F, pitch, start, now - start))
            at += 3
        assert at == end
        assert not sounding
    return found


# Quatrains

POEM = "孫吳紀德舊刊碑，草沒蟠螭與伏龜。惆悵岡頭三段石，至今猶似鼎分時。"


def test_quatrains_have_a_form_and_rhymes_of_training_poems():
    [spaced] = CATEGORIES["quatrains"].read([POEM + "\n"])
    assert spaced.replace(" ", "") == POEM
    assert len(spaced.split()) == 32
    check = CATEGORIES["quatrains"].judge([spaced])
    assert check(spaced) == {"form": True, "rhyme": True}
    swapped = POEM.replace("龜", "?").replace("時", "龜").replace("?", "時")
    assert check(" ".join(swapped)) == {"form": True, "rhyme": True}
    assert check(" ".join(POEM.replace("時", "明"))) == {"form": True, "rhyme": False}
    # The same word twice is no rhyme.
    assert check(" ".join(POEM.replace("時", "龜"))) == {"form": True, "rhyme": False}
    for broken in (POEM[:-1], POEM.replace("，", "草", 1), POEM + "明", ""):
        assert check(" ".join(broken))["form"] is False
    assert "".join(hidden("quatrains", spaced)) == POEM[:24]


# Dialogues


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("U: Hello. | S: Good morning!", (True, True, True)),
        ("S: Hello. | U: Where? | S: Here", (True, True, False)),
        ("U: Hello. | U: Again.", (True, False, True)),
        ("U: Hello. | S: ", (False, False, False)),
        ("U: Hello. | nobody speaks.", (False, False, False)),
        ("U: Hello.", (True, False, True)),
        ("", (False, False, False)),
    ],
)
def test_dialogues_take_turns(text, rules):
    names = ("turns", "alternating", "ended")
    assert RULES["dialogues"](text) == dict(zip(names, rules, strict=True))


def test_dialogues_are_stretches_of_whole_turns():
    turns = [["US"[i % 2], f"This is turn | number {i}."] for i in range(10)]
    first, second = CATEGORIES["dialogues"].read([json.dumps({"turns": turns})])
    assert first.startswith("U: This is turn number 0. | S: This is turn number 1.")
    assert first.count(" | ") == 5
    assert second.startswith("U: This is turn number 6.")
    assert RULES["dialogues"](first)["alternating"]
    long = [["US"[i % 2], "word " * 30] for i in range(6)]
    assert [*CATEGORIES["dialogues"].read([json.dumps({"turns": long})])] == []
    pieces = ["U: Hi.", " |", " S:", " Hello.", " |", " U: Bye."]
    assert CATEGORIES["dialogues"].hide(pieces) == [False, False, True, True, False, False]
