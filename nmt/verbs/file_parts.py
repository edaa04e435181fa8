"""The parts of a file job: blocks of the input, and the answers to them on disk.

    OUTPUT.parts/job.json         the input and settings that the parts belong to
    OUTPUT.parts/block_00000012   the SHA-256 of the answers to block 12, a line feed, the answers
    OUTPUT.parts/.lock            a lock against all other processes, or all but other shards
    OUTPUT.parts/.shard_3_of_16/  a lock against the same shard

Several processes, on machines that share the folder, may each do a shard of the blocks. What is a shard
follows from numbers alone, so that nothing has to be agreed on. The first process claims the folder; others
with another input or other settings are refused. The last one to end joins the parts. Locks save work, but no
answer hangs on them: a part depends on nothing but the job, and is whole or missing. What makes the answers
is unknown here.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt import extras
from nmt.config.roots import Shard
from nmt.containment import require_contained
from nmt.data.parallel_text import stamp_of_files
from nmt.data.reading.compression import compressing
from nmt.data.reading.lines import read_lines, require_file
from nmt.errors import InUse, UserError, warn
from nmt.files import link_first, locked, read_json, write_atomically, write_json, written_atomically
from nmt.translation.translate import LINES_AT_ONCE

OTHER_OUTPUT = "choose another output=..."
WHOLE = Shard(1, 1)
"""The shard of a process that answers a file alone."""

Reader = Callable[[Iterable[str]], Iterator[str]]
"""A function of all lines of the input that yields another line for each, which knows those before it."""


@dataclass
class Block:
    """Some lines of the input that are answered together."""

    part: Path
    """File for their answers."""
    first_line: int
    """The number of the first line in the file, counted from 0."""
    lines: list[str]
    """At most `LINES_AT_ONCE`."""


@dataclass
class Job:
    """The way of one file to another, and its progress by the parts on disk."""

    source: Path
    output: Path
    done: str
    """What lines are afterwards, such as "translated"."""
    stamp: str
    """Stamp of the input file, to find out whether the file changes."""
    num_lines: int = 0
    sha256: str = ""
    """Hash of the uncompressed text of the input."""
    reader: Reader | None = None
    """How the lines are read before blocks are made of them, if not as they are."""
    shard: Shard = WHOLE
    """Which of the blocks this process answers."""

    @classmethod
    def read(
        cls, source: Path, output: Path, done: str, reader: Reader | None = None, shard: Shard = WHOLE
    ) -> Job:
        """Read the input through once.

        Raises:
            UserError: the input is missing, no regular file, damaged or not UTF-8, or the output cannot be
                written.
        """
        require_files(source, output)
        if shard == WHOLE:  # else it is not known yet whether there is something to write
            _require_free(output)
        job = cls(source, output, done, stamp_of_files([source]), reader=reader, shard=shard)
        digest = hashlib.sha256()
        for block in job.blocks():
            digest.update("".join(f"{line}\n" for line in block.lines).encode())
            job.num_lines += len(block.lines)
        job.sha256 = digest.hexdigest()
        return job

    @property
    def folder(self) -> Path:
        """Directory of the parts."""
        return self.output.with_name(f"{self.output.name}.parts")

    @property
    def name(self) -> str:
        """What is counted: "lines", or "lines of shard 3/16"."""
        return "lines" if self.shard == WHOLE else f"lines of shard {self.shard}"

    @property
    def numbers(self) -> range:
        """Numbers of all blocks."""
        return range(-(-self.num_lines // LINES_AT_ONCE))

    @property
    def own(self) -> range:
        """Numbers of the blocks of the shard."""
        return self.numbers[self.shard.number - 1 :: self.shard.of]

    @property
    def is_idle(self) -> bool:
        """Whether the file has too few blocks for the shard; the first shard sees to an empty file."""
        return self.shard.number > 1 and not self.own

    @property
    def parts(self) -> Iterator[Path]:
        """Files of all parts, in order, finished or not."""
        return map(self._part, self.numbers)

    @property
    def missing(self) -> list[int]:
        """Numbers of the blocks of the shard whose part is missing."""
        finished = self._finished
        return [number for number in self.own if number not in finished]

    @property
    def num_own(self) -> int:
        """Lines of the shard."""
        return self._num_lines_of(self.own)

    @property
    def num_finished(self) -> int:
        """Lines of the shard whose part is finished."""
        return self.num_own - self._num_lines_of(self.missing)

    @property
    def num_written(self) -> int:
        """Lines of the input whose part is finished, by any process."""
        return self._num_lines_of(self._finished)

    @property
    def progress(self) -> str:
        """The progress as "1,024 of 30,000 lines"."""
        return f"{self.num_finished:,} of {self.num_own:,} {self.name}"

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the input, in order; raise `UserError` when the file has changed."""
        lines = read_lines(self.source, "input", may_be_empty=True)
        lines = self.reader(lines) if self.reader else lines
        for number in itertools.count():
            self._require_unchanged()
            if not (block := list(itertools.islice(lines, LINES_AT_ONCE))):
                return
            yield Block(self._part(number), number * LINES_AT_ONCE, block)

    def own_blocks(self) -> Iterator[Block]:
        """Yield the blocks of the shard; see `blocks`."""
        return itertools.islice(self.blocks(), self.shard.number - 1, None, self.shard.of)

    @contextmanager
    def locked(self, facts: dict[str, Any]) -> Iterator[None]:
        """Lock the folder of parts for this job, new or continued, and remove damaged parts of the shard.

        `facts` are the settings that the answers depend on. A job that ends without any part leaves
        no folder.

        Raises:
            UserError: another process has the lock, the parts in the folder belong to another job, a name
                in the folder leads out of it, or the output is there.
        """
        own = {
            "input.lines": self.num_lines,
            "input.sha256": self.sha256[:16],
            "lines per part": LINES_AT_ONCE,
        }
        _require_free(self.output)
        require_contained(self.folder)
        with ExitStack() as locks:
            self._lock(locks)
            _claim(self.folder, own | facts)
            try:
                _require_free(self.output)  # which another process may have finished meanwhile
                for part in map(self._part, self.own):
                    if part.exists() and read_part(part) is None:
                        warn(f"{part} is damaged; its lines are {self.done} again")
                        part.unlink()
                yield
            finally:
                locks.close()
                self._remove_empty()

    def finish(self) -> bool:
        """Join the parts to the output, and remove them, if all are there; return whether the output is.

        Nothing is done where another process is at work in the folder, which then does it.

        Raises:
            UserError: a part is damaged, or the input has changed.
        """
        if self._is_complete:
            with suppress(InUse), locked(self.folder, OTHER_OUTPUT):
                if self._is_complete:
                    self._join()
        self._remove_empty()  # which the lock has made anew where another process was faster
        return self.output.exists()

    def _lock(self, locks: ExitStack) -> None:
        """Lock the folder against all other processes, or against all but those of other shards."""
        locks.enter_context(locked(self.folder, OTHER_OUTPUT, shared=self.shard != WHOLE))
        if self.shard != WHOLE:
            folder = self.folder / f".shard_{self.shard.number}_of_{self.shard.of}"
            locks.enter_context(locked(folder, "give this process another shard=..."))

    def _join(self) -> None:
        self._require_unchanged()
        draft = self.folder / "output"
        with written_atomically(draft) as file, compressing(file, self.output) as target:
            for part in self.parts:
                answers = read_part(part)
                if answers is None:
                    command = "the same command" + (" without shard=..." if self.shard != WHOLE else "")
                    raise UserError(f"{part} is damaged; its lines are {self.done} again by {command}")
                target.write(answers)
        _require_free(self.output)
        draft.replace(self.output)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_empty(self) -> None:
        """Remove the folder unless it has a part, or another process is at work."""
        if not self.folder.exists() or self._finished:
            return
        with suppress(InUse), locked(self.folder, OTHER_OUTPUT):
            if not self._finished:
                shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _finished(self) -> set[int]:
        """Numbers of the blocks whose part is there.

        A list of the folder is up to date where a shared disk may still remember that one name was missing.
        """
        names = set[str]()
        with suppress(FileNotFoundError):
            names.update(os.listdir(self.folder))
        return {number for number in self.numbers if self._part(number).name in names}

    @property
    def _is_complete(self) -> bool:
        return len(self._finished) == len(self.numbers)

    def _num_lines_of(self, numbers: Iterable[int]) -> int:
        return sum(min(self.num_lines - number * LINES_AT_ONCE, LINES_AT_ONCE) for number in numbers)

    def _part(self, number: int) -> Path:
        return self.folder / f"block_{number:08d}"

    def _require_unchanged(self) -> None:
        if not self.source.is_file() or stamp_of_files([self.source]) != self.stamp:
            raise UserError(f"input: {self.source} has changed while it was {self.done}; start anew")


def _claim(folder: Path, facts: dict[str, Any]) -> None:
    """Claim the folder for the job that `facts` describe; raise `UserError` if it holds anything else."""
    file = folder / "job.json"
    strange = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if not file.exists():
        if strange:
            raise UserError(
                f"{folder} is where parts of the output go, but it holds {strange[0]} and no job.json; "
                f"move it away, or {OTHER_OUTPUT}"
            )
        draft = folder / f".job.{secrets.token_hex(8)}"
        write_json(draft, facts)
        link_first(draft, file)
    stored = read_json(file)
    changes = [
        f"{key}: {stored.get(key, 'unset')} -> {facts.get(key, 'unset')}"
        for key in dict.fromkeys((*stored, *facts))
        if stored.get(key, "unset") != facts.get(key, "unset")
    ]
    if changes:
        lines = "\n  ".join([f"{folder} belongs to another job:", *changes])
        raise UserError(f"{lines}\nrepeat that one to finish it, remove the directory, or {OTHER_OUTPUT}")


def write_part(part: Path, answers: bytes) -> None:
    """Write a part with its SHA-256; raise `TrainingStopped` when the disk is full."""
    write_atomically(part, hashlib.sha256(answers).hexdigest().encode() + b"\n" + answers)


def read_part(part: Path) -> bytes | None:
    """Return the answers in a part, or None when it is damaged."""
    digest, _, answers = part.read_bytes().partition(b"\n")
    return answers if digest == hashlib.sha256(answers).hexdigest().encode() else None


def require_files(source: Path, output: Path) -> None:
    """Raise `UserError` for an input that cannot be read, or an output that cannot be written."""
    if output.is_dir():
        raise UserError(f"output: {output} is a directory; name a file in it: output={output / source.name}")
    if not output.parent.is_dir():
        raise UserError(f"output: there is no directory {output.parent}; make it, or {OTHER_OUTPUT}")
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"output: {output} is the input; {OTHER_OUTPUT}")
    if output.suffix == ".zst":
        extras.require("zst", f"output: {output} is to be compressed by Zstandard, which")
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UserError(f"input: {source} is no regular file; leave out input and output to read a stream")
    require_file(source, "input")


def _require_free(output: Path) -> None:
    if output.exists():
        raise UserError(f"output: {output} is there already and stays; remove it, or {OTHER_OUTPUT}")
