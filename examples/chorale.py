"""A four-part chorale as sound and as a picture: a new one, or a harmony for a given soprano.

    python examples/chorale.py RUN --seed 3 --out runs/chorale
    python examples/chorale.py RUN --soprano "67 67 69 71 72 72 71 69" --out runs/harmony

RUN is a model of chorales: the installed `chorales`, or one that `scripts/gallery.sh` has trained. The
soprano has a MIDI pitch for each eighth note, 32 in all; a shorter one is repeated. The result is a MIDI
file and a picture of the piano roll, OUT.mid and OUT.png.
"""

import argparse
from itertools import cycle, islice
from pathlib import Path

import cdcd
from cdcd.evaluation.piano_roll import plot_piano_roll
from cdcd.languages import chorales


def compose(
    model: str, soprano: list[int] | None, *, seed: int, tries: int = 16, **settings: object
) -> str:
    """Returns the first chorale of a few that keeps all rules; without one, the first of whole chords."""
    loaded = cdcd.load(model)
    text = f"[{4 * chorales.NUM_STEPS}]"
    if soprano:
        pitches = islice(cycle(soprano), chorales.NUM_STEPS)
        text = " ".join(f"S{pitch} [3]" for pitch in pitches)
    canvas = loaded.infill_canvas(text)
    drawn = loaded.generate(canvas, num_samples=tries, seed=seed, **settings)
    checked = [(each.text, chorales.check(each.text)) for each in drawn]
    whole = [text for text, rules in checked if rules["whole_chords"]]
    if not whole:
        raise SystemExit(f"none of {tries} samples is a sequence of chords; train the model longer")
    return next((text for text, rules in checked if all(rules.values())), whole[0])


def main(arguments: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--soprano", default="", help="MIDI pitches of the given soprano")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("chorale"))
    options = parser.parse_args(arguments)
    soprano = [int(pitch) for pitch in options.soprano.split()]
    text = compose(options.run, soprano, seed=options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".mid").write_bytes(chorales.to_midi(text))
    plot_piano_roll(text, options.out.with_suffix(".png"), given="S" if soprano else "")
    kept = [name.replace("_", " ") for name, is_kept in chorales.check(text).items() if is_kept]
    print(f"{options.out}.mid and {options.out}.png: {', '.join(kept)}")
    return text


if __name__ == "__main__":
    main()
