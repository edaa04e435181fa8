"""The one reader of text files, plain or compressed: lines, block by block.

Files are read as bytes and must be UTF-8. A line ends at a line feed and nowhere else: U+2028, U+0085 and a
lone carriage return are text, as they are for `wc -l`; one carriage return before the line feed is dropped,
and so is a byte order mark. The last line needs no line feed. Bytes that cannot be read exactly are an error
with file and line. Of a line longer than `MAX_LINE_CHARS` only the beginning is read, so that memory is
bounded for a file, or a bomb of compression, that has no line feed. Standard input has the same rules, but is
not decompressed. Pairs and columns are unknown here.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.data.reading.compression import compression_of, damages, uncompressed
from nmt.errors import UserError, suggest

BLOCK_BYTES = 1 << 22
"""Bytes that are read at a time."""
MAX_LINE_BYTES = 4 * (MAX_LINE_CHARS + 2)
"""Bytes that certainly hold more than `MAX_LINE_CHARS` characters, after a byte order mark."""

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def open_bytes(path: Path, key: str) -> Iterator[BinaryIO]:
    """Open a file, plain or compressed, to read its uncompressed bytes.

    Raises:
        UserError: the file is unreadable or damaged, found out at any time until the block ends; names
            `key`, the config key of the path.
    """
    try:
        with path.open("rb") as raw:
            yield uncompressed(raw, path, key)
    except damages() as error:
        raise UserError(f"{key}: {path} is a damaged file ({error}); copy it again") from error
    except OSError as error:
        if error.errno is None:  # bzip2 has no error of its own
            raise UserError(f"{key}: {path} is a damaged file ({error}); copy it again") from error
        raise UserError(f"{key}: {path} cannot be read: {error.strerror}") from error


def decoded(source: BinaryIO) -> Iterator[str]:
    """Decode the lines of standard input, each as soon as it is there; raise `UserError` for no text."""
    for before in itertools.count():
        line = source.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = _beginning(line, source)
        if not before and compression_of(line):
            raise UserError("the input is compressed; decompress it first")
        text = _decode(line.removesuffix(b"\n").removesuffix(b"\r"), "the input", before)
        yield text[: MAX_LINE_CHARS + 1]


def is_cut(line: str) -> bool:
    """Return whether `line` is the beginning of a line that was too long to be read whole."""
    return len(line) > MAX_LINE_CHARS


def read_lines(path: Path, key: str, *, may_be_empty: bool = False) -> Iterator[str]:
    """Yield the lines of a file, with one block of it in memory; errors name `key`, the config key.

    Raises:
        UserError: the file is empty (unless it may be), unreadable or not text.
    """
    return itertools.chain.from_iterable(_blocks(path, key, may_be_empty))


def require_no_pipe(path: Path, key: str) -> None:
    """Raise `UserError` when `path` is a pipe, such as /dev/stdin: data is read again when a run goes on."""
    if path.is_fifo():
        raise UserError(
            f"{key}: {path} is a pipe, which can be read only once, but data is read several times, and "
            "again when a run goes on; write it into a file, which may be compressed: ... | gzip > FILE.gz"
        )


def require_file(path: Path, key: str, way_out: str = "") -> None:
    """Raise `UserError` for a directory, a pipe, or what is not there; a directory has a `way_out`."""
    require_no_pipe(path, key)
    if path.is_dir():
        raise UserError(f"{key}: {path} is a directory, not a file{way_out}")
    if not path.parent.is_dir():
        raise UserError(f"{key}: there is no file {path}, nor a directory {path.parent}")
    if not path.exists():
        near = [file.name for file in path.parent.iterdir()]
        raise UserError(f"{key}: there is no file {path}{suggest(path.name, near)}")


def _blocks(path: Path, key: str, may_be_empty: bool) -> Iterator[list[str]]:
    """Yield one list of lines for each block."""
    read = 0
    for raw in _whole_lines(path, key):
        if not read and compression_of(raw):
            raise UserError(f"{key}: {path} is compressed twice; decompress it once")
        text = _decode(raw, f"{key}: {path}", read)
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        read += len(lines)
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        if max(map(len, lines), default=0) > MAX_LINE_CHARS:
            lines = [line[: MAX_LINE_CHARS + 1] for line in lines]
        yield lines
    if not read and not may_be_empty:
        raise UserError(f"{key}: {path} is empty")


def _whole_lines(path: Path, key: str) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks that end with a line feed, or with the file."""
    with open_bytes(path, key) as file:
        rest = b""
        while block := file.read(BLOCK_BYTES):
            head, feed, rest = (rest + block).rpartition(b"\n")
            if feed:
                yield head + feed
            if len(rest) > MAX_LINE_BYTES:
                yield _beginning(rest, file) + b"\n"
                rest = b""
        if rest:
            yield rest


def _beginning(line: bytes, file: BinaryIO) -> bytes:
    """Return whole characters from the beginning of a `line` whose rest, in `file`, is skipped."""
    while (skipped := file.readline(BLOCK_BYTES)) and not skipped.endswith(b"\n"):
        pass
    ends = range(MAX_LINE_BYTES, MAX_LINE_BYTES - 4, -1)
    return line[: next((end for end in ends if line[end] & 0xC0 != 0x80), MAX_LINE_BYTES)]


def _decode(raw: bytes, where: str, before: int) -> str:
    """Decode UTF-8 strictly and refuse NUL; `before` lines precede `raw`, 0 at the start of a file."""
    if not before:
        if raw.startswith(_UTF16_MARKS):
            raise UserError(f"{where} is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
        raw = raw.removeprefix(codecs.BOM_UTF8)
    nul = raw.find(b"\0")
    if nul >= 0:
        raise UserError(
            f"{where}: {_position(raw, nul, before)} is a NUL character, which no text has; "
            "remove it (tr -d '\\000'), or convert the file if it is UTF-16 (iconv -f UTF-16 -t UTF-8)"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        guess = _guess_encoding(raw[error.start : error.start + 1])
        raise UserError(f"{where}: {_position(raw, error.start, before)} is not UTF-8; {guess}") from error


def _position(raw: bytes, offset: int, before: int) -> str:
    start_of_line = raw.rfind(b"\n", 0, offset) + 1
    line = before + raw.count(b"\n", 0, offset) + 1
    return f"line {line:,}, byte {offset - start_of_line + 1:,} of the line (0x{raw[offset]:02x})"


def _guess_encoding(byte: bytes) -> str:
    letter = byte.decode("cp1252", errors="ignore")
    if letter.isprintable() and letter:
        return f"in Windows-1252 that byte is {letter!r}; if so, convert the file: iconv -f cp1252 -t UTF-8"
    return "find its encoding with `file` and convert it with iconv"
