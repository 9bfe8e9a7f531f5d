"""`cdcd data prepare` and `cdcd data verify`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from cdcd.settings import add_options, chosen


def data_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.data.prepare import PrepareConfig

    verbs = parser.add_subparsers(metavar="prepare|verify", required=True, dest="data_verb")
    prepare = verbs.add_parser(
        "prepare", help="tokenise a corpus, or pairs to translate, into memory-mapped shards"
    )
    prepare.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="data set")
    add_options(prepare, PrepareConfig)
    prepare.set_defaults(parser=prepare)
    verify = verbs.add_parser("verify", help="compare every file with its checksum")
    verify.add_argument("out", metavar="FOLDER", type=Path, help="data set")
    verify.set_defaults(parser=verify)


def data(options: Any) -> None:
    from rich.console import Console

    from cdcd.data.pairs import PreparedPairs, holds_pairs
    from cdcd.data.prepare import PrepareConfig, prepare
    from cdcd.data.sequences import TokenDataset

    def prepared() -> PreparedPairs | TokenDataset:
        return PreparedPairs(options.out) if holds_pairs(options.out) else TokenDataset(options.out)

    if options.data_verb == "verify":
        dataset = prepared()
        dataset.verify()
        print(f"{options.out} is whole: {', '.join(dataset.splits)}")
        return
    changes = chosen(options, PrepareConfig)
    if "source" not in changes:
        raise ValueError("say what to prepare with --source PATH")
    prepare(PrepareConfig(**changes), options.out, console=Console(soft_wrap=True))
    name = shlex.quote(str(options.out))
    if "valid" not in prepared().splits:
        print(
            f"it cannot be trained on, since the split valid is empty: delete {name} and prepare it "
            f"again with a higher --valid-share or with --valid-source PATH"
        )
    elif holds_pairs(options.out):
        print(
            f"train on it with: cdcd train --task translation --preset multi30k --data {name} "
            f"--data.languages SOURCE-TARGET --out RUN (millions of pairs: --preset wmt-base)"
        )
    else:
        print(f"train on it with: cdcd train --data {name} --out RUN")
