"""Files the outcome of `cdcd reproduce` in a few files: tables, verdicts, rows and trainings.

    python scripts/file_reproduction.py OUT results/reproduction/SCALE
    python scripts/file_reproduction.py --restore results/reproduction/SCALE OUT

`--restore` makes from the files a folder that `cdcd reproduce --out OUT` goes on with, or writes the tables of
again (`--tables`); models are not in it, and those that further rows need, the judge among them, are trained again.
`rows.json` has the numbers of each row and seed, `trainings.json` the configuration, validation, seconds and hardware
of each model. Paths of the machine are left out.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

TABLES = (
    "table*.md",
    "figure6.md",
    "appendix.md",
    "verdicts.md",
    "verdicts.json",
    "protocol.json",
    "figure7.md",
)


def main(out: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in TABLES:
        for path in out.glob(pattern):
            shutil.copy(path, folder / path.name)
    rows = {path.stem: read(path) for path in sorted((out / "rows").glob("*.json"))}
    write(folder / "rows.json", rows)
    records = {path.parent.name: read(path) for path in sorted(out.glob("runs/*/record.json"))}
    # Trainings whose rows were restored are not in OUT.
    filed = folder / "trainings.json"
    before = read(filed) if filed.is_file() else {}
    write(filed, before | {name: brief(name, record) for name, record in records.items()})


def restore(folder: Path, out: Path) -> None:
    (out / "rows").mkdir(parents=True)
    shutil.copy(folder / "protocol.json", out)
    for name, row in read(folder / "rows.json").items():
        write(out / "rows" / f"{name}.json", row)


def brief(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Returns a training's record; the time warp, and the losses at each noise level, of base rows alone."""
    if name.startswith("base."):
        return record | {"environment": without_paths(record["environment"])}
    kept = {key: value for key, value in record.items() if key != "warp"}
    validation = {k: v for k, v in record["validation"].items() if isinstance(v, int | float)}
    return kept | {"validation": validation, "environment": without_paths(record["environment"])}


def without_paths(environment: dict[str, Any]) -> dict[str, Any]:
    return environment | {"command": re.sub(r"(/[\w.-]+)+/", "", environment.get("command", ""))}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, values: dict[str, Any]) -> None:
    """Writes one entry a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(rounded(each))}" for name, each in values.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    if sys.argv[1] == "--restore":
        restore(*map(Path, sys.argv[2:]))
    else:
        main(*map(Path, sys.argv[1:]))
