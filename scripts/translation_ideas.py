"""Ideas against wrong, repeated and missing tokens, each at equal cost on the built-in translation task.

    python scripts/translation_ideas.py OUT [--option …]

Trains the preset `numerals` with one change at a time, over seeds, for as many steps as each other, and
counts what the exact checker finds right on held-out sentences, by many steps of sampling and by few.
Finished runs are kept in OUT, so that the script can be stopped and started again; OUT/ideas.json has
the table. Further options go to `cdcd train`.
"""

import json
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cdcd
from cdcd.languages import numerals

IDEAS = {
    "none": "",
    "self-conditioning from an earlier step": "--objective.self-conditioning-lag 0.1",
    "extra padding": "--data.extra-padding 0.3",
    "dropout 0.1": "--seq2seq.dropout 0.1",
    "source dropout 0.1": "--seq2seq.source-dropout 0.1",
    "self-conditioning on 75%": "--objective.self-conditioned-share 0.75",
    "embeddings start at 0.001": "--embedding.init-scale 0.001",
    "no self-conditioning": "--objective.self-conditioning false",
}
SEEDS = (0, 1)
SETTINGS = {
    "50 steps": {"num_steps": 50},
    "10 steps": {"num_steps": 10},
    "50 steps, guidance 2": {"num_steps": 50, "guidance_scale": 2.0},
    "50 steps, score temperature 0.6": {"num_steps": 50, "score_temperature": 0.6},
}
TRAINING = "--preset numerals --training.steps 700 --training.decay-steps 250"
SENTENCES = 500


def train(out: Path, options: list[str]) -> None:
    command = [
        "cdcd",
        "train",
        "--resume",
        "auto",
        "--out",
        str(out),
        *shlex.split(TRAINING),
        *options,
    ]
    subprocess.run(command, check=True)


def measure(run: Path) -> dict[str, dict[str, float]]:
    """What share is right under each setting, and what is wrong with the rest."""
    translator = cdcd.load_translator(run)
    sources = [pair[0] for pair in numerals.sample_pairs(SENTENCES, seed=1234, held_out=True)]
    found = {}
    for name, settings in SETTINGS.items():
        texts = translator.translate(sources, batch_size=250, **settings)
        pairs = zip(sources, texts, strict=True)
        counts = Counter(numerals.check(*pair, "en-de").reason for pair in pairs)
        found[name] = {reason: count / SENTENCES for reason, count in counts.items()}
    return found


def main() -> None:
    folder, *more = sys.argv[1:]
    results: dict[str, list[dict[str, dict[str, float]]]] = {}
    for seed in SEEDS:
        for idea, options in IDEAS.items():
            run = Path(folder) / f"{idea.replace(' ', '_')}_{seed}"
            kept = run / "right.json"
            if not kept.is_file():
                train(run, [*shlex.split(options), f"--training.seed={seed}", *more])
                kept.write_text(json.dumps(measure(run)))
            results.setdefault(idea, []).append(json.loads(kept.read_text()))
            write_table(Path(folder), results)


def write_table(folder: Path, results: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    """The table so far."""
    table = {
        idea: {
            name: {
                "right": [each[name].get("right", 0.0) for each in seeds],
                "mean": statistics.mean(each[name].get("right", 0.0) for each in seeds),
            }
            for name in SETTINGS
        }
        for idea, seeds in results.items()
    }
    content = {"training": TRAINING, "ideas": IDEAS, "sentences": SENTENCES, "right": table}
    content |= {"by_reason": results}
    (folder / "ideas.json").write_text(json.dumps(content, indent=1) + "\n")
    for idea, by_setting in table.items():
        print(f"{idea:40s}", *(f"{name}: {row['mean']:.1%}" for name, row in by_setting.items()))


if __name__ == "__main__":
    main()
