"""Compressed files, told by their first bytes: gzip, bzip2, xz and Zstandard.

Knows bytes; knows no lines. A kind is one row of `COMPRESSIONS`.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from nmt import extras
from nmt.errors import UserError

MAGIC_BYTES = 10
"""Bytes at the start of a file that tell how it is compressed."""


class Compression(NamedTuple):
    """One kind of compression."""

    name: str
    suffix: str
    magic: re.Pattern[bytes]
    """What files of the kind, and no text, begin with."""
    opener: Callable[[BinaryIO], object]
    """Returns the stream of the uncompressed bytes."""
    writer: Callable[[BinaryIO], object]
    """Returns a stream that compresses what it is given into a file, the same bytes at any time."""


def _open_zst(file: BinaryIO) -> object:
    """Return the uncompressed bytes of all frames; raise `UserError` when the library is missing."""
    require_zstandard(file.name)
    opened: object = import_module(extras.ZSTANDARD).ZstdFile(file)
    return opened


def _xz_writer(file: BinaryIO) -> object:
    return lzma.LZMAFile(file, "wb")


def _zst_writer(file: BinaryIO) -> object:
    made: object = import_module(extras.ZSTANDARD).ZstdFile(file, mode="wb")
    return made


def require_zstandard(path: object) -> None:
    """Raise `UserError` unless the library that reads the file `path` is there."""
    extras.require("zst", f"{path} is compressed by Zstandard (or decompress it: zstd -d), which")


COMPRESSIONS = (
    Compression(
        "gzip",
        ".gz",
        re.compile(rb"\x1f\x8b"),
        lambda file: gzip.GzipFile(fileobj=file),
        lambda file: gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0),
    ),
    Compression(
        "bzip2", ".bz2", re.compile(rb"BZh[1-9]1AY&SY"), bz2.BZ2File, lambda file: bz2.BZ2File(file, "wb")
    ),
    Compression("xz", ".xz", re.compile(rb"\xfd7zXZ\x00"), lzma.LZMAFile, _xz_writer),
    Compression("zstd", ".zst", re.compile(rb"\x28\xb5\x2f\xfd"), _open_zst, _zst_writer),
)


def without_suffix(name: str) -> str:
    """Return the name of a file without the suffix of its compression, if it has one."""
    for kind in COMPRESSIONS:
        name = name.removesuffix(kind.suffix)
    return name


def compression_of(start: bytes) -> Compression | None:
    """Return the kind of a file that begins with `start`, or None for one that is not compressed."""
    return next((kind for kind in COMPRESSIONS if kind.magic.match(start)), None)


def uncompressed(file: BinaryIO, path: Path, key: str) -> BinaryIO:
    """Return the stream of the uncompressed bytes of an open file, which is `file` itself for a plain one.

    Raises:
        UserError: the name has the suffix of another kind, or a library is missing; names `key`.
    """
    start = file.read(MAGIC_BYTES)
    file.seek(0)
    kind = compression_of(start)
    named = next((other for other in COMPRESSIONS if other.suffix == path.suffix), None)
    if start and named and named is not kind:
        raise UserError(
            f"{key}: {path} ends in {path.suffix} but is not {named.name}-compressed; "
            f"remove {path.suffix} from its name"
        )
    return cast(BinaryIO, kind.opener(file)) if kind else file


@contextlib.contextmanager
def compressing(file: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """Yield the stream that compresses into an open file, as the name `path` says, or the file itself."""
    kind = next((kind for kind in COMPRESSIONS if kind.suffix == path.suffix), None)
    if kind is None:
        yield file
        return
    with cast(BinaryIO, kind.writer(file)) as target:
        yield target


def damages() -> tuple[type[Exception], ...]:
    """Return the errors of the libraries for a damaged file; so is `OSError` without a number, of bzip2."""
    known: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
    zstd = sys.modules.get(extras.ZSTANDARD)
    return (*known, zstd.ZstdError) if zstd else known
