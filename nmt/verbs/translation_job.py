"""A file to translate: its blocks of lines, the parts that are finished, and the output they make.

    OUTPUT.parts/job.json         what is translated with what; the parts count for nothing else
    OUTPUT.parts/block_00000012   the SHA-256 of the translations of block 12, a line feed, the translations
    OUTPUT.parts/.lock            keeps every other process from this job

A job is one process writing beside its output. Whatever ends it, a part is there whole or not at all, so that
the same job goes on from the parts. The output appears at once, under its name, when the last part is there;
then the parts go. An output that is there already is never overwritten. Blocks are read one after the other,
so that no more of the file than some blocks is in memory. Knows no model and no processes.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt.data.lines import decoded
from nmt.decoding.translate import LINES_AT_ONCE
from nmt.errors import UserError, suggest
from nmt.files import locked, read_json, write_atomically, write_json, written_atomically

GZIP_MAGIC = b"\x1f\x8b"
OTHER_OUTPUT = "choose another output=..."


@dataclass
class Block:
    """Some lines of the input, which are translated at once."""

    number: int
    """Counted from 0."""
    first_line: int
    """The number of its first line in the file, counted from 0."""
    raw: list[bytes]
    """At most `LINES_AT_ONCE` lines as they stand in the file."""


@dataclass
class Source:
    """The input, as it was when it was read through."""

    path: Path
    num_lines: int
    sha256: str
    """Of the text, whether or not it is compressed."""
    stamp: tuple[int, int]
    """Size in bytes and time of the last change in nanoseconds."""

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read the file through once.

        Raises:
            UserError: it is missing, no regular file, damaged, or not UTF-8.
        """
        _require_file(path)
        stamp, num_lines, digest = _stamp(path), 0, hashlib.sha256()
        for block in _read_blocks(path):
            for line in decoded(block.raw, first_line=num_lines + 1, name=f"input={path}"):
                del line  # only whether it is UTF-8 matters here
            digest.update(b"".join(block.raw))
            num_lines += len(block.raw)
        return cls(path, num_lines, digest.hexdigest(), stamp)

    @property
    def num_blocks(self) -> int:
        """How many blocks the lines make."""
        return -(-self.num_lines // LINES_AT_ONCE)

    def blocks(self) -> Iterator[Block]:
        """Read the blocks again, in order; raise `UserError` when the file has changed."""
        for block in _read_blocks(self.path):
            self.require_unchanged()
            yield block

    def require_unchanged(self) -> None:
        """Raise `UserError` when the file is not what it was."""
        if not self.path.is_file() or _stamp(self.path) != self.stamp:
            raise UserError(f"input: {self.path} has changed while it was translated; start anew")


class Job:
    """The parts of one output; to be had from `opened_job`."""

    def __init__(self, source: Source, output: Path):
        self.source, self.output = source, output
        self.folder = parts_folder(output)
        self.finished: set[int] = set()
        """Numbers of the blocks whose part is there."""

    @property
    def lines_finished(self) -> int:
        """How many lines have been translated."""
        lines = LINES_AT_ONCE * len(self.finished)
        if self.source.num_blocks - 1 in self.finished:  # the last block may be a short one
            lines -= LINES_AT_ONCE * self.source.num_blocks - self.source.num_lines
        return lines

    def missing(self) -> Iterator[Block]:
        """The blocks that are yet to be translated, in order. Raises like `Source.blocks`."""
        return (block for block in self.source.blocks() if block.number not in self.finished)

    def save(self, number: int, translations: bytes) -> None:
        """Write the part of a block; raise `TrainingStopped` when the disk is full."""
        write_atomically(self._part(number), _digest(translations) + b"\n" + translations)
        self.finished.add(number)

    def find_finished(self, note: Callable[[str], None]) -> None:
        """Learn which parts are there; one that is damaged goes, and `note` is told."""
        for number in range(self.source.num_blocks):
            part = self._part(number)
            if not part.exists():
                continue
            if self._load(number) is None:
                note(f"warning: {part} is damaged; its lines are translated again")
                part.unlink()
            else:
                self.finished.add(number)

    def finish(self) -> None:
        """Make the output of the parts, and remove them.

        Raises:
            UserError: a part is damaged, or the output has appeared in the meantime.
        """
        self.source.require_unchanged()
        draft = self.folder / "output"
        with written_atomically(draft) as file, _compressed(file, self.output) as target:
            for number in range(self.source.num_blocks):
                translations = self._load(number)
                if translations is None:
                    raise UserError(
                        f"{self._part(number)} is damaged; the same command translates its lines again"
                    )
                target.write(translations)
        _require_free(self.output)
        try:
            draft.replace(self.output)
        except OSError as error:
            raise UserError(f"cannot write {self.output}: {error.strerror}") from error
        shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self, number: int) -> bytes | None:
        """The translations of a block, or None when its part is damaged."""
        try:
            digest, _, translations = self._part(number).read_bytes().partition(b"\n")
        except OSError:
            return None
        return translations if digest == _digest(translations) else None

    def _part(self, number: int) -> Path:
        return self.folder / f"block_{number:08d}"


@contextmanager
def opened_job(
    source: Source, output: Path, facts: dict[str, Any], note: Callable[[str], None]
) -> Iterator[Job]:
    """The job of translating `source` to `output`, new or begun before, closed to every other process.

    `facts` are what else the translations depend on. A job that ends without a single part leaves nothing.

    Raises:
        UserError: another process is at it, or what is left in the folder is of another job.
    """
    job = Job(source, output)
    facts = {
        "input.lines": source.num_lines,
        "input.sha256": source.sha256[:16],
        "lines per part": LINES_AT_ONCE,
        **facts,
    }
    with locked(job.folder, OTHER_OUTPUT):
        _claim(job.folder, facts)
        job.find_finished(note)
        try:
            yield job
        finally:
            if not job.finished:
                shutil.rmtree(job.folder, ignore_errors=True)


def parts_folder(output: Path) -> Path:
    """Where the parts of an output lie while it is made."""
    return output.with_name(f"{output.name}.parts")


def require_output(output: Path, source: Path) -> None:
    """Raise `UserError` for an output that cannot be made there."""
    if output.is_dir():
        raise UserError(f"output: {output} is a directory; name a file in it: output={output / source.name}")
    if not output.parent.is_dir():
        raise UserError(f"output: there is no directory {output.parent}; make it, or {OTHER_OUTPUT}")
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"output: {output} is the input; {OTHER_OUTPUT}")
    _require_free(output)


def _require_free(output: Path) -> None:
    if output.exists():
        raise UserError(f"output: {output} is there already and stays; remove it, or {OTHER_OUTPUT}")


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"input: {path} is a directory, not a file")
    if path.exists() and not path.is_file():
        raise UserError(f"input: {path} is no regular file; leave out input and output to read a stream")
    if not path.parent.is_dir():
        raise UserError(f"input: there is no file {path}, nor a directory {path.parent}")
    if not path.exists():
        near = [file.name for file in path.parent.iterdir()]
        raise UserError(f"input: there is no file {path}{suggest(path.name, near)}")


def _claim(folder: Path, facts: dict[str, Any]) -> None:
    """Take the folder over for the job that `facts` describe, unless it holds something else."""
    file = folder / "job.json"
    if not file.exists():
        if strange := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise UserError(
                f"{folder} is where parts of the output go, but it holds {strange[0]} and no job.json; "
                f"move it away, or {OTHER_OUTPUT}"
            )
        write_json(file, facts)
    stored = read_json(file)
    changes = [
        f"{key}: {stored.get(key, 'unset')} -> {facts.get(key, 'unset')}"
        for key in dict.fromkeys((*stored, *facts))
        if stored.get(key, "unset") != facts.get(key, "unset")
    ]
    if changes:
        lines = "\n  ".join([f"{folder} is left over from another job:", *changes])
        raise UserError(f"{lines}\nrepeat that one to finish it, remove the directory, or {OTHER_OUTPUT}")


def _read_blocks(path: Path) -> Iterator[Block]:
    with ExitStack() as closing:
        try:
            file: BufferedReader | gzip.GzipFile = closing.enter_context(path.open("rb"))
            if file.peek(2).startswith(GZIP_MAGIC):
                file = closing.enter_context(gzip.GzipFile(fileobj=file))
            for number in itertools.count():
                raw = list(itertools.islice(file, LINES_AT_ONCE))
                if not raw:
                    return
                yield Block(number, number * LINES_AT_ONCE, raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"input: {path} is a damaged gzip file ({error}); copy it again") from error
        except OSError as error:
            raise UserError(f"input: {path} cannot be read: {error.strerror}") from error


@contextmanager
def _compressed(file: BinaryIO, output: Path) -> Iterator[BinaryIO]:
    """`file` itself, or for an output that ends in .gz what compresses into it; equal text, equal bytes."""
    if output.suffix != ".gz":
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as target:
        yield cast(BinaryIO, target)


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
