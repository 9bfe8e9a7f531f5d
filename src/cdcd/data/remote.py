"""Prepared data sets at an address of fsspec, such as s3://BUCKET/NAME or hf://datasets/OWNER/NAME.

The manifest, `dataset.json`, is read first, and its SHA-256 names a folder of the cache. The tokenizer
and the shards are fetched into it; a shard gets its name when its checksum is right, and the manifest is
written last. So a fetch that was broken off goes on where it ended, and what is in the cache is a prepared
data set like any other, which is all that the rest of the library sees.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from cdcd.data.dataset_files import (
    DESCRIPTION,
    REMEDY,
    SIDES,
    checked_description,
    file_sizes,
    split_content,
)
from cdcd.data.tokenizers import LOADERS, load_tokenizer, token_dtype, tokenizer_hash
from cdcd.files import JSON_LIMIT, VOCABULARY_LIMIT, expanded, file_hash, parse_json, write_durably

CACHE = "CDCD_CACHE"
"""The environment variable that names the folder of the cache."""
BLOCK = 1 << 24
"""Bytes that are read at a time."""


def is_remote(source: str | Path) -> bool:
    """Returns whether a source is an address, no path."""
    return re.match(r"[a-z][a-z0-9+.-]*(::|://)", str(source)) is not None


def dataset_folder(source: str | Path) -> Path:
    """Returns the folder of a data set, which is fetched into the cache where the source is an address."""
    return fetch(str(source)) if is_remote(source) else expanded(source)


def cache_folder() -> Path:
    """Returns the folder of the data sets that were fetched."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cdcd"
    return expanded(os.environ.get(CACHE) or default) / "datasets"


@dataclass(frozen=True)
class Remote:
    """A folder at an address."""

    files: Any
    """The file system of fsspec."""
    path: str
    url: str

    @classmethod
    def at(cls, url: str) -> "Remote":
        """Opens the file system of an address; what it needs is installed by its own packages."""
        try:
            from fsspec.core import url_to_fs

            return cls(*url_to_fs(url), url)
        except ImportError as error:
            raise ValueError(
                f"{url} needs a package ({error}): pip install 'cdcd[remote]', or the package of its "
                f"file system"
            ) from None
        except ValueError as error:
            raise ValueError(f"{url} cannot be opened: {error}") from None

    def __truediv__(self, name: str) -> "Remote":
        return Remote(
            self.files, f"{self.path.rstrip('/')}/{name}", f"{self.url.rstrip('/')}/{name}"
        )

    def exists(self) -> bool:
        with self._failing():
            return self.files.exists(self.path)

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from `start` to `end`, or fewer where the file ends before."""
        with self._failing(), self.files.open(self.path, "rb") as file:
            file.seek(start)
            while start < end and (block := file.read(min(BLOCK, end - start))):
                start += len(block)
                yield block

    def read(self, limit: int) -> bytes:
        """Returns the content of a file of at most `limit` bytes."""
        content = b"".join(self.blocks(0, limit + 1))
        if len(content) > limit:
            raise ValueError(
                f"{self.url} has more than {limit:,} bytes, the most that is read of it"
            )
        return content

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Says in one line which address could not be read."""
        try:
            yield
        except FileNotFoundError:
            raise ValueError(f"{self.url} does not exist") from None
        except Exception as error:  # Each file system has errors of its own.
            reason = str(error) or type(error).__name__
            raise ValueError(
                f"{self.url} could not be read: {reason}; when it can, the same command goes on"
            ) from error


@cache
def manifest(url: str) -> bytes:
    """Returns the description of a data set at an address, as it is when first asked for."""
    remote = Remote.at(url) / DESCRIPTION
    if not remote.exists():
        raise ValueError(
            f"{url} is not a prepared data set (no {DESCRIPTION} in it): copy there the whole folder that "
            f"cdcd data prepare made"
        )
    return remote.read(JSON_LIMIT)


def described_at(url: str) -> dict[str, Any]:
    """Returns the description of a data set at an address, checked."""
    return _described(manifest(url), f"{url}/{DESCRIPTION}")


def _described(content: bytes, name: str) -> dict[str, Any]:
    try:
        described = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{name} is damaged: it is not a JSON object")
    return checked_description(described, name)


def fetch(url: str) -> Path:
    """Fetches a data set into the cache, unless it is there, and returns its folder."""
    content = manifest(url)
    described = described_at(url)
    folder = cache_folder() / hashlib.sha256(content).hexdigest()
    if (folder / DESCRIPTION).is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (folder / DESCRIPTION).is_file():
            return folder
        if "sides" in described:
            _fetch_pairs(Remote.at(url), folder, described)
        else:
            _fetch_texts(Remote.at(url), folder, described)
        write_durably(folder / DESCRIPTION, content)
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process of this machine fetches into a folder."""
    with (folder / ".fetching").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_pairs(remote: Remote, folder: Path, described: dict[str, Any]) -> None:
    for side in SIDES:
        content = (remote / side / DESCRIPTION).read(JSON_LIMIT)
        url = f"{remote.url}/{side}/{DESCRIPTION}"
        if hashlib.sha256(content).hexdigest() != described["sides"][side]:
            raise ValueError(f"{url} is not the side that was prepared with {remote.url}; {REMEDY}")
        (folder / side).mkdir(exist_ok=True)
        _fetch_texts(remote / side, folder / side, _described(content, url))
        write_durably(folder / side / DESCRIPTION, content)
    _fetch_tokenizer(remote, folder, tokenizer_hash(load_tokenizer(folder / SIDES[0])))


def _fetch_texts(remote: Remote, folder: Path, described: dict[str, Any]) -> None:
    _fetch_tokenizer(remote, folder, described["tokenizer"]["hash"])
    token_bytes = token_dtype(load_tokenizer(folder).vocab_size).itemsize
    shards = [
        shard
        for name, split in described["splits"].items()
        for shard in split_content(name, split, f"{remote.url}/{DESCRIPTION}").shards
    ]
    missing = [
        (f"{shard['name']}.{suffix}", size, shard["sha256"][suffix])
        for shard in shards
        for suffix, size in file_sizes(shard, token_bytes).items()
        if not (folder / f"{shard['name']}.{suffix}").is_file()
    ]
    _check_space(folder, sum(size for _, size, _ in missing))
    total = sum(size for _, size, _ in missing) / 1e9
    Console(stderr=True, soft_wrap=True).print(
        f"fetching {len(missing)} files ({total:.2f} GB) of {remote.url} into {folder}",
        markup=False,
        highlight=False,
    )
    for name, size, sha256 in missing:
        _fetch_file(remote / name, folder / name, size, sha256)


def _check_space(folder: Path, needed: int) -> None:
    begun = sum(path.stat().st_size for path in folder.glob(".*.part"))
    if (free := shutil.disk_usage(folder).free) < needed - begun:
        raise ValueError(
            f"{folder} needs {needed:,} bytes, its disk has {free:,} free: make room, or name a folder "
            f"of another disk with the environment variable {CACHE}"
        )


def _fetch_tokenizer(remote: Remote, folder: Path, expected: str) -> None:
    (folder / "tokenizer").mkdir(exist_ok=True)
    names = [name for name in LOADERS if (remote / "tokenizer" / name).exists()]
    if not names:
        raise ValueError(
            f"{remote.url}/tokenizer holds no tokenizer ({', '.join(LOADERS)}); {REMEDY}"
        )
    file = folder / "tokenizer" / names[0]
    write_durably(file, (remote / "tokenizer" / names[0]).read(VOCABULARY_LIMIT))
    if (present := tokenizer_hash(load_tokenizer(file))) != expected:
        raise ValueError(
            f"{remote.url}/tokenizer is damaged: its hash is {present}, {DESCRIPTION} says {expected}; "
            f"{REMEDY}"
        )


def _fetch_file(remote: Remote, path: Path, size: int, sha256: str) -> None:
    """Fetches a file of known size, or the rest of it; one with another checksum is not kept."""
    part = path.with_name(f".{path.name}.part")
    with part.open("ab") as file:
        for block in remote.blocks(file.tell(), size):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if (present := file_hash(part)) != sha256:
        part.unlink()
        raise ValueError(
            f"{remote.url} is damaged, or changed while it was fetched: its SHA-256 is {present}, "
            f"{DESCRIPTION} says {sha256}; fetch it again with the same command, or {REMEDY}"
        )
    part.replace(path)
