"""A chorale as a picture: time from left to right, pitch upwards, a colour for each voice."""

from pathlib import Path

from cdcd.evaluation.plots import new_figure
from cdcd.languages.chorales import VOICES, notes

NAMES = {"S": "soprano", "A": "alto", "T": "tenor", "B": "bass"}
COLOURS = {"S": "#c53030", "A": "#dd6b20", "T": "#2f855a", "B": "#2b6cb0"}
OCTAVE = ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")


def plot_piano_roll(text: str, path: Path, *, given: str = "") -> None:
    """Draws the notes of a chorale; the voices in `given` were not generated, and say so."""
    played = notes(text)
    figure, (axis,) = new_figure(1, 1, (10, 4.5))
    for voice in VOICES:
        own = [note for note in played if note.voice == voice]
        label = f"{NAMES[voice]} (given)" if voice in given else NAMES[voice]
        axis.barh(
            [note.pitch for note in own],
            [note.length - 0.12 for note in own],
            left=[note.start for note in own],
            height=0.85,
            color=COLOURS[voice],
            hatch="///" if voice in given else None,
            edgecolor="white",
            linewidth=0.5,
            label=label,
        )
    end = max(note.start + note.length for note in played)
    for bar in range(0, end + 1, 8):
        axis.axvline(bar, color="#cbd5e0", linewidth=0.8, zorder=0)
    octaves = range(36, 90, 12)
    axis.set_yticks(list(octaves), [f"{OCTAVE[pitch % 12]}{pitch // 12 - 1}" for pitch in octaves])
    axis.set_xlim(0, end)
    axis.set_xlabel("eighth notes; a line every eight")
    axis.set_ylabel("pitch")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
