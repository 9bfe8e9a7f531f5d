"""Ranks a model's tales by its denoising score, and compares with the exact judge of the tales.

    python scripts/rank_stories.py runs/demo ranking.json --num-samples 1024

The file has the share of stories that are right throughout, the AUROC of the score (how often a right story
has a higher score than a wrong one) and the share of right stories among the best of n.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cdcd.data.vocabulary import EOS
from cdcd.inference.load import load
from cdcd.languages import tales


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--num-samples", type=int, default=1024)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the decoder"
    )
    return parser.parse_args()


def auroc(right: torch.Tensor, wrong: torch.Tensor) -> float:
    """Returns how often a right story has the higher score; ties count half."""
    difference = right[:, None] - wrong[None]
    return float(((difference > 0).double() + (difference >= 0).double()).mean() / 2)


def ranking(scores: torch.Tensor, is_right: torch.Tensor, counts: Sequence[int]) -> dict[str, Any]:
    """Returns how well the score tells right stories from wrong ones."""
    best_of = {}
    for count in counts:
        groups = len(scores) // count
        chosen = scores[: groups * count].view(groups, count).argmax(1, keepdim=True)
        right = is_right[: groups * count].view(groups, count).gather(1, chosen)
        best_of[count] = float(right.double().mean())
    return {
        "right_share": float(is_right.double().mean()),
        "auroc": auroc(scores[is_right], scores[~is_right]),
        "right_share_of_best": best_of,
    }


def main() -> None:
    asked = arguments()
    model = load(asked.run)
    settings = dict(each.split("=", 1) for each in asked.set)
    scores, is_right = [], []
    for start in range(0, asked.num_samples, asked.batch_size):
        rows = range(start, min(start + asked.batch_size, asked.num_samples))
        nothing = torch.zeros(len(rows), model.length, dtype=torch.long, device=model.device)
        is_noisy = torch.ones_like(nothing, dtype=torch.bool)
        seeds = [(asked.seed, row) for row in rows]
        tokens = model.fill(nothing, is_noisy, seeds, model.settings(settings))
        scores += model.scores(tokens, is_noisy, asked.seed).tolist()
        texts = [row[: row.index(EOS)] if EOS in row else row for row in tokens.tolist()]
        stories = [model.tokenizer.decode(text) for text in texts]
        is_right += [tales.check(story).log_prob is not None for story in stories]
    report = {"asked": {name: str(value) for name, value in vars(asked).items()}}
    report |= ranking(torch.tensor(scores).double(), torch.tensor(is_right), asked.counts)
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
