"""Measure the data pipeline: preparing a corpus, and reading shuffled batches of it.

    python scripts/bench_data.py --corpus train.txt.xz --tokenizer RUN --out data_pipeline.json

Without --tokenizer, one of 32,000 pieces is learnt first (a minute or two), which is not measured.
Preparing is measured as a command of its own, start and decompression included. CPU seconds are those
of all of its processes; where other programs share the machine they tell more than the clock.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

BARS = {"prepare_mb_per_s": 15.0, "tokens_per_s": 50e6}
BATCH, LENGTH = 1024, 64

PREPARE = """
import sys
from pathlib import Path
from cdcd.data.prepare import PrepareConfig, prepare
source, unit, tokenizer, out = sys.argv[1:]
prepare(PrepareConfig(source=source, unit=unit, tokenizer=tokenizer), Path(out))
"""


def prepare_once(corpus: Path, unit: str, tokenizer: Path, out: Path) -> dict[str, float]:
    """Prepares a corpus in a process of its own, and returns its clock and CPU seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", PREPARE, str(corpus), unit, str(tokenizer), str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    splits = json.loads((out / "dataset.json").read_text())["splits"].values()
    megabytes = sum(split["bytes"] for split in splits) / 1e6
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "megabytes": megabytes,
        "tokens": sum(split["tokens"] for split in splits),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "mb_per_s": megabytes / seconds,
        "cpu_seconds_per_mb": cpu / megabytes,
    }


def read_batches(dataset: Path, num_batches: int) -> dict[str, float]:
    """Reads shuffled batches from memory-mapped shards that are in the page cache."""
    from cdcd.data.sequences import ShuffledBatches, TokenDataset

    sequences = TokenDataset(dataset).documents("train").stream(LENGTH)
    batches = ShuffledBatches(sequences, BATCH, seed=0)
    for step in range(len(sequences) // BATCH + 1):  # the page cache, and this process's page table
        batches.batch(step)
    memory = private_memory()
    started = time.perf_counter()
    for step in range(num_batches):
        batches.batch(step)
    seconds = time.perf_counter() - started
    return {
        "sequences": len(sequences),
        "batches": num_batches,
        "tokens_per_s": num_batches * BATCH * LENGTH / seconds,
        "private_memory_growth_mb": (private_memory() - memory) / 1e6,
    }


def private_memory() -> int:
    """Returns the bytes of this process's memory that are not of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/self/status lacks the line RssAnon: the memory cannot be measured")


def make_tokenizer(corpus: Path, unit: str, folder: Path) -> Path:
    from cdcd.data.prepare.reading import Documents
    from cdcd.data.tokenizer_learning import learn_sentencepiece

    folder.mkdir()
    documents = Documents(str(corpus), unit=unit)  # pyright: ignore[reportArgumentType]
    learn_sentencepiece((text for (text,) in documents), 32_000).save(folder)
    return folder


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tokenizer = options.tokenizer or make_tokenizer(options.corpus, options.unit, folder / "tok")
    runs = [
        prepare_once(options.corpus, options.unit, tokenizer, folder / f"data{i}")
        for i in range(options.repeats)
    ]
    readings = [read_batches(folder / "data0", options.batches) for _ in range(options.repeats)]
    return {
        "prepare": max(runs, key=lambda run: run["mb_per_s"]),
        "prepare_all_mb_per_s": [run["mb_per_s"] for run in runs],
        "batches": max(readings, key=lambda reading: reading["tokens_per_s"]),
        "batches_all_tokens_per_s": [reading["tokens_per_s"] for reading in readings],
    }


def print_table(figures: dict[str, Any]) -> None:
    prepared, read = figures["prepare"], figures["batches"]
    rows = [
        ("", "measured", "wanted"),
        ("prepare, MB of text a second", f"{prepared['mb_per_s']:.1f}", "≥ 15"),
        ("prepare, CPU seconds a MB", f"{prepared['cpu_seconds_per_mb']:.3f}", ""),
        (
            f"batches of {BATCH} × {LENGTH}, M tokens a second",
            f"{read['tokens_per_s'] / 1e6:.0f}",
            "≥ 50",
        ),
        ("memory gained meanwhile, MB", f"{read['private_memory_growth_mb']:.1f}", "0"),
    ]
    for name, figure, bar in rows:
        print(f"{name:45} {figure:>10} {bar:>8}")


def hardware() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count()}


def _portable(argument: str) -> str:
    """Returns an argument without the folders of this machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, required=True, help="file to prepare")
    parser.add_argument("--unit", default="blank-line")
    parser.add_argument("--tokenizer", type=Path, help="folder of a trained tokenizer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.corpus.exists():
        sys.exit(f"there is no corpus {options.corpus}")
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    record = {
        "command": " ".join(["python scripts/bench_data.py", *map(_portable, sys.argv[1:])]),
        "corpus": "/".join(options.corpus.parts[-2:]),
        "hardware": hardware(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "sentencepiece", "torch")},
        },
        "bars": BARS,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    print_table(figures)
    print(json.dumps(record))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
