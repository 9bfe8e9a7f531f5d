"""Chorales of four voices as text: symbols such as S72, four for each step of time, an eighth note.

A document is `S72 A67 T60 B48 S72 A67 …`: soprano, alto, tenor and bass as MIDI pitches, `S_` for silence.
A pitch that is repeated is held. `to_midi` and `notes` turn it into music and into what a picture shows.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

VOICES = "SATB"
RANGES = {"S": (60, 81), "A": (52, 74), "T": (46, 69), "B": (36, 66)}
"""Lowest and highest pitch of each voice in the training set of the JSB chorales."""
NUM_STEPS = 32
"""Steps of a document: four bars of eight eighths."""
SHIFTS = range(-3, 4)
"""Semitones by which the chorales are transposed."""
PERFECT = (0, 7)
"""Fifths and octaves in semitones, modulo the octave."""
SYMBOL = re.compile(r"([SATB])(\d{1,3}|_)")

Chords = list[list[int | None]]


@dataclass(frozen=True)
class Note:
    """A held pitch of a voice."""

    voice: str
    pitch: int
    start: int
    """Its first step."""
    length: int
    """Its number of steps."""


def read(lines: Iterable[str]) -> Iterator[str]:
    """Yields documents of published lines `S,A,T,B S,A,T,B …` in sixteenths, -1 for silence.

    Every second sixteenth is taken, in windows of four bars that begin every bar, in seven keys where
    all voices stay in their ranges.
    """
    for line in lines:
        steps = [[int(pitch) for pitch in step.split(",")] for step in line.split()[::2]]
        for start in range(0, len(steps) - NUM_STEPS + 1, 8):
            for shift in SHIFTS:
                moved = [
                    [None if pitch < 0 else pitch + shift for pitch in step]
                    for step in steps[start : start + NUM_STEPS]
                ]
                if all(_in_ranges(step) for step in moved):
                    yield write(moved)


def write(chords: Chords) -> str:
    """Returns chords as a document."""
    return " ".join(
        f"{voice}{'_' if pitch is None else pitch}"
        for chord in chords
        for voice, pitch in zip(VOICES, chord, strict=True)
    )


def parse(text: str) -> Chords | None:
    """Returns the chords of a document; None where the voices do not follow one another in whole chords."""
    symbols = [SYMBOL.fullmatch(symbol) for symbol in text.split()]
    if not symbols or len(symbols) % 4:
        return None
    pitches: list[int | None] = []
    for number, symbol in enumerate(symbols):
        if symbol is None or symbol[1] != VOICES[number % 4]:
            return None
        pitches.append(None if symbol[2] == "_" else int(symbol[2]))
    return [pitches[i : i + 4] for i in range(0, len(pitches), 4)]


def check(text: str) -> dict[str, bool]:
    """Returns which rules a document keeps; one that is no sequence of chords keeps none."""
    chords = parse(text)
    if chords is None:
        return dict.fromkeys(("whole_chords", "in_ranges", "no_crossing", "no_parallels"), False)
    return {
        "whole_chords": True,
        "in_ranges": all(map(_in_ranges, chords)),
        "no_crossing": not any(map(_crosses, chords)),
        "no_parallels": not any(map(_is_parallel, chords, chords[1:])),
    }


def _in_ranges(chord: Sequence[int | None]) -> bool:
    return all(
        pitch is None or low <= pitch <= high
        for pitch, (low, high) in zip(chord, RANGES.values(), strict=True)
    )


def _crosses(chord: Sequence[int | None]) -> bool:
    sung = [pitch for pitch in chord if pitch is not None]
    return sung != sorted(sung, reverse=True)


def _is_parallel(chord: Sequence[int | None], following: Sequence[int | None]) -> bool:
    """Returns whether two voices move in parallel fifths or octaves."""
    for upper in range(4):
        for lower in range(upper + 1, 4):
            a, b, c, d = chord[upper], chord[lower], following[upper], following[lower]
            if a is None or b is None or c is None or d is None or b == d:
                continue
            if (a - b) % 12 in PERFECT and a - b == c - d:
                return True
    return False


# Out


def notes(text: str) -> list[Note]:
    """Returns the notes of a document, pitches that are repeated held."""
    chords = parse(text)
    if chords is None:
        raise ValueError(f"no chorale of whole chords: {text[:60]!r}")
    held: list[Note] = []
    for number, voice in enumerate(VOICES):
        row = [chord[number] for chord in chords]
        start = 0
        for step in range(1, len(row) + 1):
            if step == len(row) or row[step] != row[start]:
                pitch = row[start]
                if pitch is not None:
                    held.append(Note(voice, pitch, start, step - start))
                start = step
    return held


def to_midi(text: str, *, beats_a_minute: int = 72) -> bytes:
    """Returns a MIDI file of a document: one track for each voice, and one for the tempo."""
    tempo = round(60_000_000 / beats_a_minute)
    tracks = [b"\x00\xff\x51\x03" + tempo.to_bytes(3, "big")]
    played = notes(text)
    for channel, voice in enumerate(VOICES):
        # An eighth is 24 of the 48 ticks of a beat; ends come before beginnings.
        events = [(24 * n.start, 0x90, n.pitch, 80) for n in played if n.voice == voice]
        events += [
            (24 * (n.start + n.length), 0x80, n.pitch, 0) for n in played if n.voice == voice
        ]
        content, now = b"", 0
        for tick, kind, pitch, velocity in sorted(events):
            content += _variable(tick - now) + bytes([kind | channel, pitch, velocity])
            now = tick
        tracks.append(content)
    header = b"MThd" + (6).to_bytes(4, "big") + b"\x00\x01" + bytes([0, len(tracks), 0, 48])
    ended = [track + b"\x00\xff\x2f\x00" for track in tracks]
    return header + b"".join(b"MTrk" + len(t).to_bytes(4, "big") + t for t in ended)


def _variable(number: int) -> bytes:
    """Returns a number in groups of seven bits, all but the last one marked."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F | 0x80)
    return bytes(reversed(groups))
