"""Chooses among a translator's samples by likeness, denoising score and both, and measures each by BLEU.

    python scripts/choose_translations.py runs/mine choices.json --split valid --num-samples 10

Samples are drawn once. The file has the BLEU of the first sample, of the choice by likeness (minimum Bayes
risk) with each weight of the denoising score, of the score alone and of the oracle. Choose the weight on
`--split valid`; then `cdcd evaluate --split test --score-weight W` reports it.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cdcd.evaluation.held_out_pairs import held_out_pairs
from cdcd.inference.load import load_translator
from cdcd.metrics.bleu import chosen_samples, mbr_curve, score, utility_for
from cdcd.metrics.mbr import mbr_batch

ALONE = 1e6
"""A weight at which likeness no longer counts."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--num-sentences", type=int)
    parser.add_argument("--num-samples", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--utility", choices=("bleu", "chrf"), default="bleu")
    parser.add_argument(
        "--weights", type=float, nargs="+", default=[0, 3, 10, 30, 100, 300, 1000, ALONE]
    )
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the decoder"
    )
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    translator = load_translator(asked.run)
    corpus = held_out_pairs(
        translator.config, split=asked.split, num_sentences=asked.num_sentences
    ).corpus
    drawn = translator.scored_samples(
        corpus.sources,
        num_samples=asked.num_samples,
        seed=asked.seed,
        batch_size=asked.batch_size,
        score_weight=1.0,
        **dict(each.split("=", 1) for each in asked.set),
    )
    first = score([row[0] for row in drawn.texts], corpus).bleu
    utility = utility_for(asked.utility, corpus.target_language)
    rows = []
    for weight in asked.weights:
        bonuses = (weight * np.array(drawn.scores)).tolist()
        choices = mbr_batch(drawn.texts, utility, bonuses=bonuses, processes=asked.processes)
        bleu = score(chosen_samples(drawn.texts, choices[:, 0]), corpus).bleu
        rows.append({"score_weight": weight, "bleu": asdict(bleu)})
        print(f"weight {weight:g}: {bleu.value:.2f} BLEU")
    counts = [asked.num_samples]
    [curve] = mbr_curve(drawn.texts, corpus, counts=counts, choices=choices)
    report = {
        "asked": {name: str(value) for name, value in vars(asked).items()},
        "first": asdict(first),
        "oracle_bleu": curve.oracle_bleu,
        "rows": rows,
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"one sample: {first.value:.2f}, the oracle's choice: {curve.oracle_bleu:.2f}")


if __name__ == "__main__":
    main()
