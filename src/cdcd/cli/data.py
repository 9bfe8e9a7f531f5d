"""`cdcd data prepare` and `cdcd data verify`."""

import shlex
from typing import Any

from rich.console import Console

from cdcd.cli.messages import for_terminal
from cdcd.data.pairs import PreparedPairs, holds_pairs
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.sequences import TokenDataset
from cdcd.settings import chosen


def data(options: Any) -> None:
    def prepared() -> PreparedPairs | TokenDataset:
        return PreparedPairs(options.out) if holds_pairs(options.out) else TokenDataset(options.out)

    if options.data_verb == "verify":
        dataset = prepared()
        dataset.verify()
        print(for_terminal(f"{options.out} is whole: {', '.join(dataset.splits)}"))
        return
    changes = chosen(options, PrepareConfig)
    if "source" not in changes:
        raise ValueError("say what to prepare with --source PATH")
    prepare(PrepareConfig(**changes), options.out, console=Console(soft_wrap=True))
    name = for_terminal(shlex.quote(str(options.out)))
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
