"""Chooses the best setting of each system by the rule of cdcd.evaluation.best_setting.

    python scripts/best_settings.py runs/diffusion/evaluation/report.json …

Several reports of one test set, such as those of 8, 20, 50 and 200 network calls, are one sweep; the
data of the first is the measure of all.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from cdcd.evaluation.best_setting import MeasuredSetting, best_settings
from cdcd.files import read_json


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reports", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    reports = [read_json(path) for path in options.reports]
    rows = [MeasuredSetting.of_row(row) for report in reports for row in report["rows"]]
    best = best_settings(rows)
    print(json.dumps({name: each and asdict(each) for name, each in best.items()}, indent=1))


if __name__ == "__main__":
    main()
