"""The settings of `cdcd data prepare`."""

from dataclasses import asdict, dataclass
from typing import Any

from cdcd.data.prepare.reading import Unit
from cdcd.settings import BelowOne, Count, Large, Processes, Seed, Settings, VocabSize


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(Settings):
    """A corpus, and how it becomes tokens."""

    source: str
    """A file, a folder or `hf:NAME[:CONFIG][:SPLIT]`; text, .jsonl, .tsv, .csv or .parquet, also compressed. With
    target_source or target_column: the side of pairs that is translated."""
    target_source: str | None = None
    """The translations: line n of it is the translation of line n of the source."""
    unit: Unit = "auto"
    """A document of a text file: its `line`, its text between blank lines (`blank-line`) or the `file`; `auto`:
    rows of tables, files of a folder, lines of a file."""
    column: str | None = None
    """The column of a table that holds the text: a name (`text` if not given), `outer.inner`, or a number
    from 1. Names of a .tsv or .csv are in its first line, which is a row where all columns are numbers."""
    target_column: str | None = None
    """The column of the translations; without target_source they are in the table of the source."""
    tokenizer: str = "sentencepiece"
    """`sentencepiece`, `words`, `symbols` or `bytes`; or one to take over: a run, a data set, a .model file."""
    vocab_size: VocabSize = 32_000
    """Largest size of a vocabulary that is learnt."""
    tokenizer_bytes: Large = 50_000_000
    """Bytes of text, taken evenly from the corpus, that SentencePiece learns from."""
    valid_share: BelowOne = 0.01
    """Share of the documents in the split `valid`."""
    test_share: BelowOne = 0.01
    """Share of the documents in the split `test`."""
    judge_share: BelowOne = 0.0
    """Share of the documents in the split `judge`, for a model that judges samples and must not share text."""
    valid_source: str | None = None
    """Source of the split `valid`, instead of a share."""
    test_source: str | None = None
    """Source of the split `test`, instead of a share."""
    valid_target_source: str | None = None
    """The translations of valid_source, where they are not in its target_column."""
    test_target_source: str | None = None
    """The translations of test_source, where they are not in its target_column."""
    group_size: Count = 1
    """Number of successive documents that always fall into the same split, such as captions of one picture."""
    max_documents: Large | None = None
    """Number of documents of the source that are read; if not given: all."""
    shard_tokens: Large = 1 << 28
    """Tokens of a shard; the document that reaches this number is its last."""
    workers: Processes | None = None
    """Processes that tokenise; if not given: one a core. The result does not depend on it."""
    seed: Seed = 0
    """Seed of the splits and of the sample that SentencePiece learns from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.shares) >= 1:
            raise ValueError(
                f"the shares of valid, test and judge sum to {sum(self.shares):g}; they must leave "
                f"documents to train on: lower them to a sum below 1"
            )
        if (
            self.target_column
            and not self.target_source
            and self.column in (None, self.target_column)
        ):
            raise ValueError(
                f"column is {self.column!r} and target_column {self.target_column!r}: name two columns of "
                f"{self.source}"
            )
        for split in ("valid", "test"):
            self._check_held_out(f"{split}_source", f"{split}_target_source")

    def _check_held_out(self, source: str, target: str) -> None:
        given, translations = getattr(self, source), getattr(self, target)
        if translations and not self.is_pairs:
            raise ValueError(
                f"{target} is for pairs: say where the translations are with target_source or "
                f"target_column"
            )
        if translations and not given:
            raise ValueError(f"{target} needs {source}, the side that is translated")
        if self.is_pairs and given and not (translations or self.target_column):
            raise ValueError(f"{source} needs {target}, or target_column where it is a table")

    @property
    def is_pairs(self) -> bool:
        """True where a document has a source and a target."""
        return bool(self.target_source or self.target_column)

    @property
    def shares(self) -> tuple[float, float, float]:
        """The shares of valid, test and judge that are taken from the source."""
        return (
            0.0 if self.valid_source else self.valid_share,
            0.0 if self.test_source else self.test_share,
            self.judge_share,
        )

    @property
    def defining(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        return {name: value for name, value in asdict(self).items() if name != "workers"}
