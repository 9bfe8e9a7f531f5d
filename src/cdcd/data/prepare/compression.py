"""Opening files that may be compressed: .xz, .gz, .bz2, .zst."""

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

BUFFER = 1 << 20


def optional(package: str, what: str) -> Any:
    """A package that is not always installed; `what` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(f"{what} needs the package {package}: pip install 'cdcd[data]'") from None


class _Zstandard(io.RawIOBase):
    """The content of a .zst file, frame after frame; a last frame cut short is an error."""

    def __init__(self, raw: BinaryIO, make: Callable[[], Any]) -> None:
        self.raw, self.make = raw, make
        self.frame = make()
        self.begun = False
        self.ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready and self._feed(self.raw.read(BUFFER)):
            pass
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def _feed(self, compressed: bytes) -> bool:
        """Decompress a part of the file; whether there may be more."""
        if not compressed and self.begun:
            raise EOFError("it ends in the middle of a frame")
        content = [self.frame.decompress(compressed)] if compressed else []
        self.begun = self.begun or bool(compressed)
        while self.frame.eof:
            rest, self.frame = self.frame.unused_data, self.make()
            self.begun = bool(rest)
            if not rest:
                break
            content.append(self.frame.decompress(rest))
        self.ready = b"".join(content)
        return bool(compressed)


def _open_zstandard(raw: BinaryIO) -> Any:
    package = optional("zstandard", getattr(raw, "name", "a .zst file"))
    return _Zstandard(raw, lambda: package.ZstdDecompressor().decompressobj())


OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".zst": _open_zstandard,
}
DAMAGES = (EOFError, OSError, lzma.LZMAError, zlib.error)


def opened(raw: BinaryIO, suffix: str) -> BinaryIO:
    """The content of an open file by its suffix, buffered so that lines are read fast."""
    if suffix not in OPENERS:
        return raw
    return io.BufferedReader(OPENERS[suffix](raw), BUFFER)


def damaged(path: Path, error: Exception) -> ValueError:
    """What to say of a file that cannot be decompressed."""
    return ValueError(f"{path} is damaged or cut short ({error}); fetch it again")


def is_damage(error: Exception) -> bool:
    """Whether an error means that a compressed file is damaged."""
    return isinstance(error, DAMAGES) or type(error).__name__ == "ZstdError"
