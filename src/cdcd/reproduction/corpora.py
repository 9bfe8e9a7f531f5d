"""The corpora of a scale: prepared data sets in the user's folder, or made of the files there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cdcd.data.dataset_files import DESCRIPTION
from cdcd.data.pairs import holds_pairs
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.data.sequences import is_dataset
from cdcd.reproduction.rows import Row
from cdcd.reproduction.scales import TEXT, RawCorpus, Scale

PREPARED = {
    True: "a data set made by cdcd data prepare with --judge-share and --test-share",
    False: "for table4 a data set of pairs {0} made by cdcd data prepare in the folder {0}",
}
"""The data sets that may be given, by whether they are text."""


def corpora(scale: Scale, rows: Iterable[Row], data: str | None, out: Path) -> dict[str, str]:
    """Returns the corpora that rows need, by name, prepared in `out` where `data` holds their files."""
    names = sorted({_name(scale, row) for row in rows})
    if scale.is_built_in:
        return {name: "tales" if name == TEXT else name for name in names}
    folder = None if data is None else Path(data)
    wanted = [Wanted(scale.raw.get(name), name, folder) for name in names]
    if missing := [each for each in wanted if each.prepared() is None and each.raw() is None]:
        raise ValueError(
            f"scale {scale.name} needs {'' if data else '--data: '}"
            f"{'; and '.join(each.described() for each in missing)}"
        )
    return {each.name: each.located(out) for each in wanted}


def _name(scale: Scale, row: Row) -> str:
    return scale.translators.base(row).data.source if row.is_translation else TEXT


@dataclass(frozen=True)
class Wanted:
    """A corpus that is looked for in the user's folder."""

    files: RawCorpus | None
    """The files that it can be made of."""
    name: str
    data: Path | None

    def prepared(self) -> Path | None:
        """Returns the data set, if it is there."""
        if self.data is None:
            return None
        folders = [self.data / self.name, *([self.data] if self.name == TEXT else [])]
        fits = (f for f in folders if is_dataset(f) and holds_pairs(f) == (self.name != TEXT))
        return next(fits, None)

    def raw(self) -> Path | None:
        """Returns the folder that holds the files, if one does."""
        names = self.files.files.values() if self.files else ()
        has_all = (f for f in self._folders() if all((f / name).is_file() for name in names))
        return next(has_all, None)

    def _folders(self) -> Iterator[Path]:
        if self.data is not None and self.files is not None:
            yield from (self.data, self.data / self.files.folder)

    def described(self) -> str:
        """Returns what is looked for, and where."""
        text = PREPARED[self.name == TEXT].format(self.name)
        if self.files is not None:
            text += f", or a folder with {' and '.join(self.files.files.values())}"
        if self.data is None:
            return text
        return f"{text}; looked for in {' and '.join(map(str, self._folders())) or self.data}"

    def located(self, out: Path) -> str:
        """Returns the data set, prepared where only its files are there."""
        if (prepared := self.prepared()) is not None:
            return str(prepared)
        folder, files = self.raw(), self.files
        assert folder is not None
        assert files is not None
        target = out / "data" if self.name == TEXT else out / "pairs" / self.name
        if not (target / DESCRIPTION).is_file():
            paths = {field: str(folder / name) for field, name in files.files.items()}
            prepare(PrepareConfig(**paths, **files.settings), target)
        return str(target)
